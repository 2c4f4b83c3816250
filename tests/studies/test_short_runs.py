"""Short runs of the papers' studies, from the first arm to the picture."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import call, fewer_digits
from studies.small import HOST, TINY, untimed
from vitlab.commands.study import show
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.probing import probe
from vitlab.experiments.timing import timed
from vitlab.models.config import config_of
from vitlab.models.cost import cost
from vitlab.runs.run_folder import RunFolder
from vitlab.studies import study as engine
from vitlab.studies.base import Base, small
from vitlab.studies.papers import STUDIES, advice, study_named, three_things
from vitlab.studies.step_cost import step_macs

OWN = {"compute", "data-size", "features", "optimizers", "self-supervision", "tune"}
RUN = [name if name == "positions" else pytest.param(name, marks=pytest.mark.campaign)
       for name in STUDIES if name not in OWN]  # fmt: skip
SMALLER = "ViT(width=16,depth=1,heads=2,mlp=32)/4"


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "timed", untimed)


def run(name: str, out: Path, *only: str, model: str = TINY, **how: Any) -> dict[str, Any]:
    """Run some rows of a study with one seed on the digits, 1,438 to learn from."""
    recipe = small("digits", model).changed(**how.pop("recipe", {}))
    how = {"epochs": 0.1, "seeds": 1, "only": only, "at_once": 1} | how
    result = vitlab.study(name, out=out, recipe=recipe, host=HOST, **how)
    assert {row["name"] for row in result["rows"]} >= {*only}  # and those that they start from
    return result


@pytest.mark.parametrize("name", RUN)
def test_runs_end_to_end_on_the_digits(name: str, tmp_path: Path) -> None:
    study = study_named(name)
    rows = [arm.name for arm in study.arms(Base(small("digits", TINY))) if arm.row]
    result = run(name, tmp_path / "out", rows[0], rows[-1], epochs=0.02)
    assert all(row["mean"][study.columns[0].key] >= 0 for row in result["rows"])
    for file in ("results.md", "report.html", "picture.svg", "plan.json"):
        assert (tmp_path / "out" / file).is_file() or study.picture.x


def test_methods_without_labels_take_equal_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the operations of a step, which are counted as runs are timed."""
    monkeypatch.setattr(engine, "timed", timed)
    only = ("mae-0.1", "scratch-0.1")
    with fewer_digits():  # 18 steps are an epoch
        result = run(
            "self-supervision",
            tmp_path,
            *only,
            epochs=1.0,
            recipe={"batch": 16, "precision": "fp32"},
        )
        macs = {}
        for name in ("mae", *only):
            folder = RunFolder(tmp_path / f"{name}-seed-0")
            steps = max(line.get("step", 0) for line in folder.journal.read())
            macs[name] = step_macs(folder.recipe, HOST) * folder.recipe.batch * steps
    assert macs["mae"] + macs["mae-0.1"] == pytest.approx(macs["scratch-0.1"], rel=0.06)
    assert sum(macs.values()) == pytest.approx(result["macs"], rel=0.06)


def test_frozen_features_are_judged_as_by_fewshot(tmp_path: Path) -> None:
    model = "ViT(width=32,depth=2,heads=2,mlp=32)/2"
    result = run("features", tmp_path / "out", "random", "visreg", model=model)
    means = {row["name"]: row["mean"] for row in result["rows"]}
    trained = vitlab.load(tmp_path / "out" / "visreg-seed-0")
    how = Probing(protocol=("knn", "logistic"), cache="no")
    found = probe(trained, "digits", how, Compute("cpu", engine="plain", workers=0))
    assert means["visreg"]["knn"] == found["knn"]["20"]["accuracy"]
    assert means["visreg"]["linear"] == pytest.approx(found["logistic"]["accuracy"], abs=0.01)
    assert 1 < means["visreg"]["feature_rank"] <= 32
    assert means["random"]["knn"] != means["visreg"]["knn"] > 0.3


def test_growing_subsets(tmp_path: Path) -> None:
    result = run("data-size", tmp_path, "vit-small-3", "vit-small-100")
    means = [row["mean"] for row in result["rows"]]
    assert [each["train_images"] for each in means] == [43, 1438]
    folders = [tmp_path / f"{row['name']}-seed-0" / "figures.json" for row in result["rows"]]
    steps = [json.loads(file.read_text(encoding="utf-8"))["steps"] for file in folders]
    assert steps == [4, 3]  # of 43 images, all there are, and of 64
    assert all(0 < each["few_shot"] < 1 for each in means)
    assert "training images" in (tmp_path / "picture.svg").read_text(encoding="utf-8")


def test_accuracy_against_compute(tmp_path: Path) -> None:
    result = run("compute", tmp_path, "vit-small-half", "vit-small")
    half, whole = (row["mean"]["flops"] for row in result["rows"])
    assert whole == pytest.approx(2 * half, rel=0.5)  # 1 or 2 steps
    macs = cost(config_of(TINY, image_size=8, channels=1, classes=10)).macs
    assert whole in {6.0 * macs * 64 * steps for steps in (2, 3)}
    assert any(each.startswith("ViT, paper") for each in result["findings"])
    assert "ViT, paper, ImageNet: error" in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_what_is_not_tuned_answers_as_before_and_seeds_are_paired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(three_things, "FACTORS", ())
    only = ["none", "sgd-all", "sgd-attention", "adamw-all", "adamw-attention"]
    result = run("tune", tmp_path, *[f"resolution-{each}" for each in only], epochs=1.0, seeds=2)
    row = next(each for each in result["rows"] if each["name"] == "resolution-none")
    for seed, accuracy in enumerate(row["values"]["accuracy"]):
        model = vitlab.load(tmp_path / f"first-seed-{seed}" / "model").resize(8)
        before = vitlab.evaluate(model, "digits", device="cpu")
        assert accuracy == pytest.approx(before["accuracy"], abs=2.5 / 359)  # in other bits
    claim = result["claims"][0]
    assert claim["paired_interval"] is not None
    assert claim["interval"] is not None
    assert claim["paired_interval"] != claim["interval"]
    assert " in pairs (± " in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_a_study_names_the_weights_that_it_starts_from(tmp_path: Path) -> None:
    weights = str(tmp_path / "weights")
    vitlab.save(vitlab.create(TINY, 10, 8), weights)
    run("tune", tmp_path / "out", "resolution-none", recipe={"model": "", "weights": weights})
    lead = (tmp_path / "out" / "results.md").read_text(encoding="utf-8")
    assert f"Data digits: {weights}, 0.1 epochs" in lead


def test_optimizers_leave_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "RATES", ())
    monkeypatch.setitem(advice.SMALL_RESNETS, "optimizers", "BiT-R(1)x1")
    rows = ("adamw", "schedule-free", "resnet-shampoo")
    result = run("optimizers", tmp_path, *rows, model=SMALLER, recipe={"batch": 256, "clip": 0.0})
    starts = [
        json.loads((tmp_path / f"{name}-seed-0" / "metrics.jsonl").read_text().splitlines()[0])
        for name in rows[:2]
    ]
    assert starts[0]["loss"] == starts[1]["loss"]  # the same start and batches
    assert result["table"][0][:4] == ["ViT", "adamw", "2", "the best at usual scale"]
    assert (tmp_path / "picture.svg").is_file()
    assert "(picture.svg)" in (tmp_path / "results.md").read_text()
    assert (tmp_path / "report.html").read_text().count('class="plot"') == 1


def test_what_diverges_is_not_chosen_and_is_told(tmp_path: Path) -> None:
    how: dict[str, Any] = {"lr_grid": (1e29, 1e30), "recipe": {"batch": 256, "clip": 0.0}}
    result = run("optimizers", tmp_path, "lamb", model=SMALLER, **how)
    assert result["rows"][0]["lr"] == pytest.approx(1e26 * 5 * 2e-3)  # the smallest, three beyond
    assert result["rows"][0]["edge"] == -1
    assert result["table"][0][-2:] == ["1e+24 ‡", "diverged"]
    assert "‡ the smallest" in (tmp_path / "results.md").read_text()


def test_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["study", "optimizers", "--epochs", "0.1", "--model", SMALLER, "--seeds", "1"]
    words += ["--only", "muon", "--lr-grid", "0.5", "1", "--out", str(tmp_path), "--json"]
    code, out, err = call(capsys, *words, "--at-once", "1")
    assert code == 0, err
    result = json.loads(out)
    assert result["rows"][0]["name"] == "muon"
    show(result)
    shown = capsys.readouterr().out
    assert "muon" in shown
    assert "report.html" in shown.splitlines()[-1]
    assert "not run: SAM makes the ViT more accurate" in shown
    code, out, err = call(capsys, *words, "--dry-run")
    assert code == 0, err
    show(json.loads(out) | {"sees": 0.012})
    shown = capsys.readouterr().out.splitlines()[-1]
    assert shown == "1 seeds see a difference of 1.2 points of accuracy with a chance of 80%"
    assert (tmp_path / "muon-lr-0.5").is_dir()
