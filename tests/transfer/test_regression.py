"""Regression of columns: losses, ridge and figures by their oracles, tables, commands, refusals."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from onnxruntime import InferenceSession
from scipy.stats import norm
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import Tensor, nn

import vitlab
from conftest import BRIEF, call
from places_opened import open_targets
from six_runs import PICTURES, run_in
from vitlab.data.box_targets import boxes_of
from vitlab.data.boxes import scenes
from vitlab.data.number_targets import numbers_of
from vitlab.data.settings import Data
from vitlab.data.standardize import standardize
from vitlab.effort import Effort
from vitlab.errors import DataError, OptionError, RunError, WeightsError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.feature_cache import features_of
from vitlab.evaluation.probes.searching import FeatureChoice, find_ridge
from vitlab.evaluation.regression import evaluate_targets, target_figures
from vitlab.models.heads.regress import Estimates
from vitlab.objectives.regress import target_loss
from vitlab.recipes.recipe import Host
from vitlab.weights.regressor import load_regressor

VIT = "ViT(width=16,depth=2,heads=2,mlp=32)/8"
# two halves of other grays are near-duplicates, whatever the grays
HOST = Host(
    workers=0, device="cpu", report="no", checkpoint_every=1000, check_duplicates="no", effort=BRIEF
)


@pytest.fixture
def table(numbers_run: Path) -> Path:
    """A list of pictures with their numbers."""
    return numbers_run.with_name("data") / "table.csv"


# Oracles


@pytest.mark.parametrize(
    ("kind", "theirs"),
    [("l2", nn.MSELoss()), ("huber", nn.HuberLoss()), ("gaussian", nn.GaussianNLLLoss(full=True))],
)
def test_losses_are_those_of_pytorch(kind: Any, theirs: nn.Module) -> None:
    draw = torch.Generator().manual_seed(0)
    targets = torch.randn(9, 3, generator=draw) * 2
    outputs: Tensor = torch.randn(9, 6 if kind == "gaussian" else 3, generator=draw)
    values = outputs[:, :3], targets
    more = (outputs[:, 3:].exp(),) if kind == "gaussian" else ()
    torch.testing.assert_close(target_loss(outputs, targets, kind), theirs(*values, *more))


def test_figures_are_those_of_scikit_learn_and_scipy() -> None:
    draw = np.random.default_rng(0)
    truth = draw.normal(1e6, 3, (200, 2))
    found = Estimates(truth + draw.normal(0, 1, truth.shape), np.full(truth.shape, 2.0))
    figures = target_figures(truth, found, ["a", "b"])
    for number, row in enumerate(figures["targets"]):
        pair = truth[:, number], found.values[:, number]
        assert row["mae"] == pytest.approx(mean_absolute_error(*pair))
        assert row["rmse"] == pytest.approx(root_mean_squared_error(*pair))
        assert row["r2"] == pytest.approx(r2_score(*pair))
        assert row["nll"] == pytest.approx(-norm.logpdf(*pair, 2.0).mean())
        assert row["coverage_50"] == (np.abs(pair[0] - pair[1]) <= 2 * norm.ppf(0.75)).mean()
        assert row["coverage_90"] == (np.abs(pair[0] - pair[1]) <= 2 * norm.ppf(0.95)).mean()
        assert all(low <= row[key] <= high for key, (low, high) in row["intervals"].items())
        assert row["intervals"].keys() == row.keys() - {"target", "intervals"}
    assert figures["r2"] == pytest.approx(r2_score(truth, found.values))
    low, high = figures["intervals"]["r2"]
    assert low < figures["r2"] < high


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    held, truth = 0, math.sqrt(2 / math.pi)
    for seed in range(40):
        errors = np.random.default_rng(seed).normal(size=(100, 1))
        row = target_figures(errors, Estimates(np.zeros((100, 1)), None), ["a"])["targets"][0]
        low, high = row["intervals"]["mae"]
        held += low <= truth <= high
    assert 0.85 < held / 40 <= 1


def test_what_is_alike_has_no_r2() -> None:
    figures = target_figures(np.ones((60, 1)), Estimates(np.zeros((60, 1)), None), ["a"])
    assert figures["r2"] is figures["targets"][0]["r2"] is None
    assert figures["targets"][0]["mae"] == 1
    # a target that is alike in these images takes nothing from the mean over the others
    truth = np.stack([np.arange(60.0), np.ones(60)], 1)
    figures = target_figures(truth, Estimates(truth * 0.9, None), ["a", "b"])
    assert figures["r2"] == figures["targets"][0]["r2"] == pytest.approx(r2_score(*(
        each[:, 0] for each in (truth, truth * 0.9))))  # fmt: skip
    assert figures["intervals"]["r2"] == figures["targets"][0]["intervals"]["r2"]


@pytest.mark.parametrize(("images", "given"), [(4, set()), (5, {"coverage_50", "coverage_90"})])
def test_shares_of_too_few_images_have_no_interval(images: int, given: set[str]) -> None:
    truth = np.arange(images, dtype=np.float64)[:, None]
    found = Estimates(truth + 0.1, np.ones((images, 1)))
    assert target_figures(truth, found, ["a"])["targets"][0]["intervals"].keys() == given


@pytest.fixture
def probed(numbers_run: Path) -> vitlab.Run:
    """A ridge regression on the features of random weights."""
    return run_in(numbers_run)


def test_a_finished_run_stays_if_options_and_weights_do(probed: vitlab.Run, table: Path) -> None:
    how: dict[str, Any] = {"targets": "price,slope", "host": HOST, "cache": None, "resume": True}
    weights = probed.folder.parent / "weights"
    again = vitlab.probe(table, weights, probed.folder, **how)
    assert dict(again.metrics) == dict(probed.metrics)
    with pytest.raises(RunError, match="was started with folds=5, not 3: leave the option out"):
        vitlab.probe(table, weights, probed.folder, **how, folds=3)
    torch.manual_seed(1)  # whichever test came first, and made the other weights
    other = vitlab.create(VIT, image_size=16, channels=1)
    with pytest.raises(RunError, match="has changed since"):
        vitlab.probe(table, other, probed.folder, **how)


def test_what_a_probe_would_not_heed_is_refused(table: Path, tmp_path: Path) -> None:
    model = vitlab.create(VIT, image_size=16, channels=1)
    how: dict[str, Any] = {"targets": "price,slope", "host": HOST, "cache": None}
    for name, value in (("fold", "1/5"), ("train_images", 9), ("by", "means"), ("concat", 2)):
        words = f"{name}={value} does not apply with task=regress: leave it out"
        with pytest.raises(OptionError, match=words):
            vitlab.probe(table, model, tmp_path / "x", **how, **{name: value})
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match="images a feature that is not a number"):
        vitlab.probe(table, model, tmp_path / "x", **how)


def test_the_closed_form_is_scikit_learns_ridge(probed: vitlab.Run, table: Path) -> None:
    splits = standardize(open_targets(table, ["price", "slope"], Data()))
    model, regressor = probed.model, load_regressor(probed.folder)
    train, test = (
        features_of(model, each, Compute("cpu", workers=0)) for each in (splits.train, splits.test)
    )
    mean, deviation = train.values.mean(0, np.float64), train.values.std(0, np.float64) + 1e-5
    theirs = Ridge(alpha=probed.metrics["head"]["l2"])
    truth = numbers_of(splits.train)
    theirs.fit((train.values - mean) / deviation, (truth - truth.mean(0)) / truth.std(0))
    wanted = theirs.predict((test.values - mean) / deviation) * truth.std(0) + truth.mean(0)
    found = regressor.estimates(test.values)
    np.testing.assert_allclose(found.values, wanted, rtol=1e-6, atol=1e-6)
    left = np.sqrt(np.mean((truth - regressor.estimates(train.values).values) ** 2, 0))
    assert found.deviations is not None  # of images left out
    assert (found.deviations[0] > left).all()
    assert probed.metrics["targets"][0]["r2"] > 0.8
    assert probed.metrics["test_images"] == len(splits.test)


# Training


@pytest.mark.parametrize(("loss", "steps"), [("huber", 3), ("gaussian", 60)])
def test_numbers_are_learned_in_their_own_units(
    loss: Any, steps: int, table: Path, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"model": VIT, "batch": 16, "steps": steps, "lr": 8e-3}
    recipe = vitlab.recipe("regress", str(table), targets="price,slope", loss=loss, **how)
    run = vitlab.train(recipe, tmp_path / "run", host=HOST)
    assert run.metrics["r2"] > 0.4 or steps < 60
    assert run.metrics["targets"][0]["rmse"] > 1  # dollars
    assert run.model.config.classes == 0
    regressor = load_regressor(run.folder)
    assert regressor.about.spread == (loss == "gaussian")
    assert regressor.scale[0, 0] == pytest.approx(1e6 + 255, rel=1e-4)
    with pytest.raises(OptionError, match="has no classifier"):
        vitlab.evaluate(run.model, str(table))


def test_fine_tuning_begins_with_weights(table: Path, tmp_path: Path) -> None:
    model = vitlab.create(VIT, image_size=16, channels=1)
    how: dict[str, Any] = {"batch": 8, "steps": 2, "precision": "fp32", "host": HOST}
    frame = pd.read_csv(table)
    frame["path"] = [str(table.parent / each) for each in frame["path"]]
    for tune, data in (("all", table), ("lora", frame)):
        run = vitlab.finetune(data, model, tmp_path / tune, tune, targets="slope", **how)
        assert run.metrics["targets"][0]["target"] == "slope"
        assert run.model.config.name == model.config.name


def test_fine_tuning_begins_as_ridge_regression(table: Path, tmp_path: Path) -> None:
    model, notes = vitlab.create(VIT, image_size=16, channels=1), dict[str, list[str]]()
    how: dict[str, Any] = {"steps": 1, "lr": 1e-9, "head_lr": 1e-9, "precision": "fp32",
                           "targets": "price,slope", "loss": "gaussian", "host": HOST}  # fmt: skip
    for start in ("probe", "zero"):
        run = vitlab.finetune(table, model, tmp_path / start, head_start=start, **how)
        notes[start] = run.metrics["notes"]
        assert (run.metrics["r2"] > 0.2) == (start == "probe")
    train = standardize(open_targets(table, ["price", "slope"], Data())).train
    learn = features_of(model, train, Compute("cpu", workers=0))
    found = find_ridge(train, learn, [FeatureChoice(2, "", 0, 16)], BRIEF.folds)
    begun = load_regressor(tmp_path / "probe")
    for name, rows in found.layer().items():
        np.testing.assert_allclose(getattr(begun, name), rows, rtol=1e-4, atol=1e-5)
    (line,) = {*notes["probe"]} - {*notes["zero"]}
    assert f"features of {len(train)} images: R² {found.about['r2']:.3f} of images left" in line


# Tables


def test_rows_in_memory_and_files_are_the_same(table: Path, tmp_path: Path) -> None:
    frame = pd.read_csv(table)
    frame["path"] = [str(table.parent / each) for each in frame["path"]]
    names, wanted = ["price", "slope"], open_targets(table, ["price", "slope"], Data())
    (tmp_path / "table.jsonl").write_text(frame.to_json(orient="records", lines=True))
    as_bytes = [{"bytes": Path(each).read_bytes(), "path": None} for each in frame["path"]]
    stored = frame.assign(image=as_bytes).drop(columns=["path", "odd"])
    stored.to_parquet(tmp_path / "table.parquet")
    for data in (tmp_path / "table.jsonl", tmp_path / "table.parquet", frame):
        found = open_targets(data, names, Data(allow_outside=True))
        assert found.classes == tuple(names)
        for part in ("train", "test"):
            np.testing.assert_allclose(
                numbers_of(found.parts[part]), numbers_of(wanted.parts[part]), rtol=1e-6
            )
    batch = standardize(wanted).train.target.batch()
    np.testing.assert_allclose(batch.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(batch.std(0), 1, atol=1e-5)
    frame["split"] = ["train", "val", "test", "train"] * (PICTURES // 4)
    found = open_targets(frame, ["price"], Data(allow_outside=True))
    sizes = {name: len(each) for name, each in found.parts.items()}
    assert sizes == {"train": 40, "validation": 20, "test": 20}


def test_cells_that_are_no_numbers_are_left_out_and_named(table: Path) -> None:
    splits = open_targets(table, ["odd", "price"], Data())
    assert len(splits.train) + len(splits.test) == PICTURES - 4
    (note,) = (each for each in splits.notes if each.startswith("left out 4 of 80 images"))
    assert "whose odd or price is not finite: " in note
    assert f"{table.parent / '3.png'}, {table.parent / '5.png'}" in note
    assert np.isfinite(numbers_of(splits.train)).all()


def test_digit_scenes_are_counted(few_scenes: None) -> None:
    splits = open_targets("digit-scenes", ["sum", "digits"], Data())
    own = [each[each[:, 0] >= 0, 0] for each in boxes_of(scenes("test"))]
    assert numbers_of(splits.test).tolist() == [[each.sum(), len(each)] for each in own]


WRONG: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("table.csv", {"targets": "pricy"}, DataError, "has no column 'pricy': did you mean price?"),
    ("table.csv", {"targets": "path"}, DataError, "no image is left to learn from: left out 80 of"),
    ("table.csv", {"targets": "same"}, DataError, "same is 7 in every training image"),
    ("table.csv", {"targets": ""}, OptionError, "name them, targets=age,height"),
    (".", {"targets": "price"}, DataError, "has no columns of numbers: give a table"),
    ("table.csv", {"targets": "price", "mixup": 0.2}, OptionError, "mixup needs labels of classes"),
    ("table.csv", {"targets": "price", "loss": "bce"}, OptionError, "needs loss=l2, as a rule"),
    ("table.csv", {"targets": "price", "head_start": "random"}, OptionError, "head_start needs"),
    ("table.csv", {"targets": "price", "head_start": "probe"}, OptionError, "=probe needs trained"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "given", "kind", "words"), WRONG, ids=[each[3] for each in WRONG])
def test_bad_input_is_one_line(
    data: str, given: dict[str, Any], kind: type[Exception], words: str, table: Path, tmp_path: Path
) -> None:
    with pytest.raises(kind) as said:
        recipe = vitlab.recipe("regress", str(table.parent / data), model=VIT, **given)
        vitlab.train(recipe, tmp_path / "run", host=HOST)
    assert words in str(said.value)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "run").exists()


# Commands


def test_train_evaluate_predict(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, how = str(tmp_path / "run"), ["--workers", "0", "--device", "cpu", "--json"]
    what = ["--targets", "price,slope", "--loss", "gaussian", "--model", VIT, "--steps", "9"]
    code, out, err = call(capsys, "train", str(table), *what, "--out", run, *how, effort=Effort())
    trained = json.loads(out)
    report = (tmp_path / "run" / "report.html").read_text()
    assert "learned to estimate numbers" in report
    assert "slope" in report
    assert json.loads(call(capsys, "runs", run, "--json")[1])["runs"][0]["r2"] == trained["r2"]
    code, out, err = call(capsys, "evaluate", run, str(table), *how)
    assert code == 0, err
    assert json.loads(out)["targets"] == trained["targets"]
    assert json.loads(out)["split"] == "test"
    out = call(capsys, "evaluate", run, str(table), "--split", "all", *how[:-1])[1]
    assert "Within 90%" in out
    photo = str(table.parent / "1.png")
    code, out, err = call(capsys, "predict", run, photo, *how)
    assert code == 0, err
    (row,) = json.loads(out)["estimates"]
    assert {*row} == {"image", "values", "deviations"}
    assert 1e6 < row["values"]["price"] < 1e6 + 600
    assert f"{photo}  price 1.000" in call(capsys, "predict", run, photo, *how[:-1])[1]
    file = str(tmp_path / "numbers.onnx")
    code, out, err = call(capsys, "export", run, "--to", "onnx", "--out", file, "--json")
    assert code == 0, err
    images = vitlab.preprocess(vitlab.load(run))([photo]).numpy()
    found = InferenceSession(file).run(None, {"images": images})
    for own, exact in zip(found, (row["values"], row["deviations"]), strict=True):
        np.testing.assert_allclose(own[0], [*exact.values()], rtol=1e-5)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    code, out, err = call(capsys, "predict", run, str(tmp_path / "bad.png"), photo, *how)
    assert code == 0, err
    bad, good = json.loads(out)["estimates"]
    assert bad.keys() == {"image", "error"}
    assert good == row
    for words, said in {
        f"evaluate {run} {table} --flips": "flips does not apply to a run of masks, boxes",
        f"finetune {table} --targets price --task detect": "objects are learned",
        f"pretrain {table} --recipe regress": "learns from labels: use vitlab train",
        f"train {table} --loss l2": "loss=l2 learns numbers: name them with targets",
        f"probe {table} --from {run} --targets price --by means": "by=means does not",
    }.items():
        code, _, err = call(capsys, *words.split())
        assert code == 2, words
        assert said in err.splitlines()[-1]


def test_a_probe_is_measured_again_and_fits_its_own_model(
    probed: vitlab.Run, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = json.loads(call(capsys, "evaluate", str(probed.folder), str(table), "--json")[1])
    for mine, first in zip(again["targets"], probed.metrics["targets"], strict=True):
        assert mine["rmse"] == pytest.approx(first["rmse"])
    (tmp_path / "run").mkdir()
    with pytest.raises(WeightsError, match="run vitlab train TABLE --task regress first"):
        load_regressor(tmp_path / "run")


def test_a_run_on_a_fold_is_evaluated_on_its_fold(table: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe(
        "regress", str(table), targets="price", model=VIT, steps=1, batch=8, fold="2/4"
    )
    run = vitlab.train(recipe, tmp_path / "run", host=HOST)
    found = evaluate_targets(run.folder, str(table), "auto", Compute("cpu", workers=0))
    assert (found["split"], found["images"]) == ("test", run.metrics["test_images"])
    ((mine,), (first,)) = found["targets"], run.metrics["targets"]
    assert mine["rmse"] == pytest.approx(first["rmse"])
