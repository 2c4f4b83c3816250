"""`vitlab.probe` and `vitlab probe`: an ordinary run, and its head against scikit-learn's."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import vitlab
from conftest import BRIEF, LIGHT, SHOWN, call, photo, photo_folder
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, OptionError, RunError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.probes.blocks import LinearHead
from vitlab.evaluation.probes.searching import FoundHead, choices_of, fit_head, with_head
from vitlab.recipes.recipe import Host
from vitlab.transfer import linear_probe

HOST = Host(workers=0, report="no", effort=BRIEF)


VIT = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def backbone(folder: Path, name: str = VIT, **more: object) -> str:
    torch.manual_seed(0)
    model = vitlab.create(name, **{"classes": 0, "image_size": 8} | more)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    return str(vitlab.save(model, folder / "weights"))


@pytest.fixture(scope="module")
def probed(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, vitlab.Run]:
    folder = tmp_path_factory.mktemp("probe")
    weights = backbone(folder, channels=1)
    return weights, vitlab.probe(
        "digits", weights, folder / "run", host=Host(workers=0, effort=SHOWN), cache=None
    )


def test_what_was_chosen_and_what_was_tried_are_said(probed: tuple[str, vitlab.Run]) -> None:
    _, run = probed
    head, tried = run.metrics["head"], run.metrics["tried"]
    assert {"layer", "pool", "head", "l2", "accuracy", "how"} == set(tried[0])
    ranked = [each for each in tried if each["how"] == "leave-one-out"]
    assert {(each["layer"], each["pool"]) for each in ranked} == {
        (layer, pool) for layer in (1, 2) for pool in ("token", "mean", "both")
    }
    finals = [each for each in tried if each["how"] == "5 folds"]
    assert {each["head"] for each in finals} == {"logistic", "ridge", "means"}
    assert head["cross_validated"] == max(each["accuracy"] for each in finals)
    assert run.metrics["accuracy"] > 0.8
    assert abs(run.metrics["accuracy"] - head["cross_validated"]) < 0.08
    written = tomllib.loads((run.folder / "run.toml").read_text())
    assert written["head"] == head
    assert "optimizer" not in written
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["tried"] * len(tried) + ["result"]
    assert any("head: " in note for note in run.metrics["notes"])
    assert {"accuracy", "nll"} <= set(run.metrics["intervals"])


def test_the_folded_head_says_what_the_standardized_fit_says(
    probed: tuple[str, vitlab.Run],
) -> None:
    """The model of the run, against scikit-learn's fit on the features of the cut backbone."""
    weights, run = probed
    head, splits = run.metrics["head"], open_to_learn("digits")
    model = vitlab.load(run.folder)
    assert (model.config.depth, model.config.pool) == (head["layer"], head["pool"])
    compute = Compute("cpu", engine="plain", workers=0)
    x, test = (
        features_in_memory(model, each, compute).values for each in (splits.train, splits.test)
    )
    base, mean, std = vitlab.load(weights), x.mean(0, np.float64), x.std(0, dtype=np.float64) + 1e-5
    pixels = np.stack([splits.test.image(number).decode(1) for number in range(8)])
    tokens = vitlab.preprocess(base)(list(pixels))
    with torch.inference_mode():
        (left,) = base.intermediates(tokens, [head["layer"]], norm=True)
    pooled = {"token": left[:, 0], "mean": left[:, 1:].mean(1)}
    pooled["both"] = torch.cat([pooled["token"], pooled["mean"]], 1)
    np.testing.assert_allclose(pooled[head["pool"]].numpy(), test[:8], atol=1e-4)
    own = model.head.classify
    plain, bias = own.weight.detach().double().numpy(), own.bias.detach().double().numpy()
    folded = test @ plain.T + bias
    standard = ((test - mean) / std) @ (plain * std).T + (bias + plain @ mean)
    np.testing.assert_allclose(folded, standard, atol=1e-5 * np.abs(folded).max())
    if head["by"] == "logistic":
        peer = LogisticRegression(C=1 / (head["l2"] * len(x)), max_iter=5000, tol=1e-8)
        peer.fit((x - mean) / std, splits.train.target.values)
        assert (peer.predict((test - mean) / std) == folded.argmax(1)).mean() > 0.99
        chances = np.exp(folded - np.logaddexp.reduce(folded, 1)[:, None])
        np.testing.assert_allclose(chances, peer.predict_proba((test - mean) / std), atol=0.02)


def test_features_in_bf16_are_as_good(probed: tuple[str, vitlab.Run], tmp_path: Path) -> None:
    weights, run = probed
    how = {"host": HOST, "cache": None, "layers": 2, "pool": "both", "by": "ridge"}
    half = vitlab.probe("digits", weights, tmp_path / "run", precision="bf16", **how)
    assert half.metrics["accuracy"] > 0.75
    for each, precision in ((half, "bf16"), (run, "fp32")):
        written = tomllib.loads((each.folder / "run.toml").read_text())
        assert written["recipe"]["precision"] == precision


def test_every_command_takes_the_run(
    probed: tuple[str, vitlab.Run],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    digits_run: Path,
) -> None:
    weights, run = probed
    place = str(run.folder)
    assert (run.folder / "report.html").is_file()
    code, out, _ = call(capsys, "evaluate", place, "digits", "--workers", "0", "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] == run.metrics["accuracy"]
    assert json.loads(out)["nll"] == pytest.approx(run.metrics["nll"], abs=1e-6)
    delta = vitlab.Delta.apply(vitlab.delta(run.model, vitlab.load(weights)), vitlab.load(weights))
    images = torch.rand(2, 1, *run.model.config.size)
    torch.testing.assert_close(delta(images), run.model(images))
    stored = vitlab.load(run.folder / "delta.safetensors")
    torch.testing.assert_close(stored(images), run.model(images))
    assert stored.temperature == run.model.temperature == run.metrics["head"]["temperature"]
    assert (run.folder / "delta.safetensors").stat().st_size < 2**16
    (listed,) = json.loads(call(capsys, "runs", place, "--json")[1])["runs"]
    assert listed["accuracy"] == listed["best"] == run.metrics["accuracy"]
    page = str(tmp_path / "compare.html")
    code, _, err = call(capsys, "compare", place, str(digits_run), "--out", page)
    assert code == 0, err
    photo = photo_folder(tmp_path / "photos", {"a": 1}) / "a" / "000.png"
    code, _, err = call(capsys, "predict", place, str(photo), "--workers", "0")
    assert code == 0, err
    more = ("--epochs", "0.1", "--workers", "0", "--report", "no", "--out", str(tmp_path / "more"))
    code, out, err = call(capsys, "finetune", "digits", "--from", place, *more, "--json")
    assert code == 0, err
    assert json.loads(out)["accuracy"] > 0.7
    for more in ({}, {"image_size": 8}):  # one that was not said then, and is as it was
        again = vitlab.probe("digits", weights, run.folder, resume=True, **more, host=LIGHT)
        assert again.metrics["accuracy"] == run.metrics["accuracy"]
    for changed, words in (
        ({"seed": 5}, "seed=0, not 5"),
        ({"image_size": 16}, "image_size=8, not 16"),
        ({"weights": str(digits_run)}, f"weights={weights}, not {digits_run}"),
        ({"by": "ridge"}, "by=auto, not ridge"),
        ({"layers": 1}, "layers=6, not 1"),
    ):
        other = {"weights": weights, "resume": True} | changed
        with pytest.raises(RunError, match=rf"was started with {words}: leave the option out, or"):
            vitlab.probe("digits", out=run.folder, **other, host=LIGHT)
    file = run.folder / "run.toml"
    text = file.read_text()
    file.write_text("".join(text.partition("[head.asked]")[:1]))  # as earlier versions left it
    again = vitlab.probe("digits", weights, run.folder, resume=True, by="ridge", host=LIGHT)
    assert again.metrics["accuracy"] == run.metrics["accuracy"]
    file.write_text(text)


def test_a_finished_run_goes_with_its_model_and_images_in_hand(tmp_path: Path) -> None:
    model = vitlab.load(backbone(tmp_path, channels=1))
    rng = np.random.default_rng(0)
    images = [(rng.integers(0, 256, (8, 8), np.uint8), "ab"[n % 2]) for n in range(40)]
    how: dict[str, Any] = {"host": HOST, "cache": None, "by": "means", "resume": True}
    run = vitlab.probe(images, model, tmp_path / "run", **how)
    assert dict(vitlab.probe(images, model, run.folder, **how).metrics) == dict(run.metrics)
    with pytest.raises(RunError, match="was started with other images"):
        vitlab.probe(images[::-1], model, run.folder, **how)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(RunError, match=r"has changed since .* was started: choose another"):
        vitlab.probe(images, model, run.folder, **how)


def test_a_run_that_another_process_has_made_meanwhile_is_left_alone(
    probed: tuple[str, vitlab.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, run = probed

    def fitted(*given: Any) -> FoundHead:
        shutil.copytree(run.folder, tmp_path / "run")
        return fit_head(*given)

    monkeypatch.setattr(linear_probe, "fit_head", fitted)
    with pytest.raises(RunError, match="already contains a run"):
        vitlab.probe("digits", weights, tmp_path / "run", host=HOST, cache=None, by="means")
    before, after = ((each / "run.toml").read_bytes() for each in (run.folder, tmp_path / "run"))
    assert before == after


def test_the_command_prints_what_was_chosen_and_the_test(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = backbone(tmp_path)
    line = f"probe {photos} --from {weights} --out {tmp_path}/run --layers 2 --by means"
    words = f"{line} --pool token --image-size 16 --workers 0".split()
    code, out, err = call(capsys, *words, "--report", "no", "--folds", "3")
    assert code == 0, err
    assert "head: class means on the class token after block" in err
    assert re.search(r"chosen among \d+: \S+% of the training images in .*\(3 folds\)", err)
    for text in ("accuracy", "NLL"):
        assert text in out
    assert "leave-one-out" not in out  # which are figures of another kind
    assert vitlab.load(tmp_path / "run").config.image_size == 16
    code, out, err = call(capsys, *words)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "already contains a run: pass --resume" in err


def test_what_is_left_out_and_learned_from_is_said(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "red" / "phone.heic").write_bytes(b"")
    (photos / "white").mkdir()
    run, weights = str(tmp_path / "run"), backbone(tmp_path)
    more = ["--layers", "1", "--by", "means", "--workers", "0", "--cache", "no", "--report", "no"]
    code, _, err = call(capsys, "probe", str(photos), "--from", weights, "--out", run, *more)
    assert code == 0, err
    assert "skipped 1 .heic file" in err
    assert f"skipped class folder {photos / 'white'}: no images\n" in err
    assert "20% of each class held out for testing" in err
    photo(999, tint=2).save(photos / "red" / "new.png")  # so that the data is another
    (photos / "red" / "damaged.png").write_bytes(b"")
    err = call(capsys, "evaluate", run, str(photos), "--workers", "0")[2]
    assert re.search(r"left out \d+ of 62 images, which the model has learned from\n", err)
    assert f"skipped: {photos / 'red' / 'damaged.png'}: the file is empty\n" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "1e-3"], "is for training: vitlab probe fits a head to frozen features"),
        (["--precision", "bf16-pure"], "is for training: vitlab probe fits a head to frozen"),
        (["--folds", "1"], "folds must be at least 2"),
        (["--by", "svm"], "by must be one of auto, logistic, ridge, means, not svm"),
        (["--out", "x" * 300], "file name too long"),
        (["--from", "y" * 300], "y"),
    ],
)
def test_one_line_for_what_cannot_be(
    tmp_path: Path, photos: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    given = ("probe", str(photos), "--workers", "0")
    start = () if "--from" in words else ("--from", backbone(tmp_path))
    code, out, err = call(capsys, *given, *start, *words)
    assert (code, out, len(err.strip().splitlines()[-1:])) == (2, "", 1), err
    assert message in err.splitlines()[-1]


def test_a_folder_of_another_run_is_left_alone(digits_run: Path, tmp_path: Path) -> None:
    weights = backbone(tmp_path, channels=1)
    for name in ("result", "checkpoint"):  # finished, and interrupted
        place = shutil.copytree(digits_run, tmp_path / name)
        if name == "checkpoint":
            lines = (place / "metrics.jsonl").read_text().splitlines(keepends=True)
            (place / "metrics.jsonl").write_text("".join(lines[:-1]))
        before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
        with pytest.raises(RunError, match=r"contains a run of vitlab train: choose another out="):
            vitlab.probe("digits", weights, place, host=HOST, cache=None, resume=True)
        assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file()} == before


def test_features_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    model = vitlab.load(backbone(tmp_path, channels=1))
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(
        DataError, match="gives 1,438 of 1,438 images a feature that is not a number"
    ):
        vitlab.probe("digits", model, tmp_path / "x", host=HOST, cache=None)
    assert not (tmp_path / "x").exists()


def test_several_labels_are_not_fitted(tmp_path: Path) -> None:
    several = photo_folder(tmp_path / "several", {"a": 6})
    lines = [f'{{"path": "a/{n:03d}.png", "labels": ["x", "{"yz"[n % 2]}"]}}' for n in range(6)]
    (several / "list.jsonl").write_text("\n".join(lines))
    weights, data = backbone(tmp_path), str(several / "list.jsonl")
    with pytest.raises(DataError, match="vitlab finetune --tune head learns several"):
        vitlab.probe(data, weights, tmp_path / "x", host=HOST, cache=None)
    assert not (tmp_path / "x").exists()
    with pytest.raises(OptionError, match="epochs is for training"):
        vitlab.probe("digits", weights, epochs=3, host=LIGHT)


@pytest.mark.parametrize(
    ("name", "more", "pools"),
    [(VIT, {"pool": "attention"}, {""}), ("BiT-R(1-1)x1", {"image_size": 32}, {""})],
)
def test_weights_without_a_class_token_and_resnets(
    tmp_path: Path, photos: Path, name: str, more: dict[str, object], pools: set[str]
) -> None:
    weights = backbone(tmp_path, name, **more)
    run = vitlab.probe(str(photos), weights, tmp_path / "run", host=HOST, cache=None)
    assert {each["pool"] for each in run.metrics["tried"]} == pools
    found = vitlab.evaluate(vitlab.load(run.folder), str(photos), workers=0)
    assert found.accuracy == run.metrics["accuracy"]


@pytest.mark.parametrize(
    "more",
    [
        {"registers": 2},
        {"norm_at": "pooled", "pool": "mean", "class_token": True},
        {"positions": "bias", "pool": "both"},
    ],
)
def test_a_cut_model_computes_the_features_that_were_chosen(
    tmp_path: Path, photos: Path, more: dict[str, object]
) -> None:
    model = vitlab.load(backbone(tmp_path, **more)).resize(16)
    model = vitlab.load(vitlab.save(model, tmp_path / "new"), classes=3)
    source, compute = open_to_learn(str(photos)).test, Compute("cpu", engine="plain", workers=0)
    vectors, choices = choices_of(model, 2)
    values = features_in_memory(model, source, compute, vectors).values
    assert len(choices) == (4 if "norm_at" in more else 6)
    for choice in choices:
        weights = np.random.default_rng(0).normal(size=(3, choice.width))
        head = LinearHead(weights, np.ones(3), "ridge", 1.0)
        cut = with_head(model, FoundHead(choice, head, 0.5, 1.0, (), np.zeros(0, np.int64)))
        own = features_in_memory(cut, source, compute).values
        np.testing.assert_allclose(own, choice.of(values), atol=1e-4)


@pytest.mark.parametrize(
    "line", ["probe --cache no", "finetune --steps 2 --batch 4 --warmup-steps 0"]
)
def test_one_image_in_a_class_one_class_and_nothing_but_damage(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights, (command, *more) = backbone(tmp_path), line.split()
    more += ["--from", weights, "--report", "no", "--image-size", "8", "--workers", "0", "--json"]
    data = photo_folder(tmp_path / "photos", {"a": 1, "b": 9, "c": 9})
    code, out, err = call(capsys, command, str(data), *more, "--out", str(tmp_path / "run"))
    assert code == 0, err
    assert json.loads(out)["images"] > 0
    one, damaged = photo_folder(tmp_path / "one", {"a": 9}), tmp_path / "damaged"
    for file in photo_folder(damaged, {"a": 9, "b": 9}).rglob("*.png"):
        file.write_bytes(file.read_bytes()[:60])
    for data, says in ((one, ("has only one class",)), (damaged, ("damaged", "decode"))):
        code, out, err = call(capsys, command, str(data), *more, "--out", str(data / "r"))
        assert (code, out) == (2, ""), err
        assert "Traceback" not in err
        assert any(word in err.splitlines()[-1] for word in says), err
