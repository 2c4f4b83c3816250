"""Temperature scaling: fitted as scikit-learn does, on validation images alone, kept and used."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression

import vitlab
from conftest import SHOWN, call, photo, photo_folder
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, OptionError, WeightsError
from vitlab.evaluation.answers import SingleAnswers
from vitlab.evaluation.calibration import validation_of
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import predict
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.temperature import fitted_temperature, temperature_of
from vitlab.weights.save import own_folder

CLASSES = ("blue", "green", "red")


def some(classes: int, images: int = 400) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, images)
    logits = generator.normal(size=(images, classes)) + 1.5 * np.eye(classes)[labels]
    return 4 * logits + generator.normal(size=(images, 1)), labels  # much too confident


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    chances = np.exp(logits - logits.max(1, keepdims=True))
    return chances / chances.sum(1, keepdims=True)


def loss(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    return float(SingleAnswers.of(softmax(logits), labels).loss.mean())


@pytest.mark.parametrize(("classes", "scale"), [(2, 0.01), (10, 1), (2, 50)])
def test_the_temperature_of_the_least_loss_by_scipy(classes: int, scale: float) -> None:
    logits, labels = some(classes)
    logits = scale * logits
    want = minimize_scalar(
        lambda log: loss(logits / np.exp(log), labels), bounds=(-8, 8), method="bounded",
        options={"xatol": 1e-10},
    )  # fmt: skip
    ours = fitted_temperature(logits, SingleLabels(labels))
    assert ours == pytest.approx(np.exp(want.x), rel=1e-5)
    assert loss(logits / ours, labels) <= want.fun + 1e-12


def test_several_labels_as_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    table = (generator.random((150, 4)) < 0.3).astype(np.uint8)
    logits = 3 * (generator.normal(size=(150, 4)) + 2 * table - 1)
    fitted = LogisticRegression(C=1e12, fit_intercept=False, tol=1e-10)
    fitted.fit(logits.reshape(-1, 1), table.reshape(-1))
    ours = fitted_temperature(logits, MultiLabels.of_table(table))
    assert 1 / ours == pytest.approx(fitted.coef_[0, 0], rel=1e-5)


def test_where_no_temperature_fits() -> None:
    labels = SingleLabels(np.arange(12) % 3)
    with pytest.raises(DataError, match="no mistake on the 12 validation images"):
        fitted_temperature(np.eye(3)[labels.values], labels)
    with pytest.raises(DataError, match="no better than guessing"):
        fitted_temperature(-np.eye(3)[labels.values], labels)
    with pytest.raises(DataError, match="no mistake"):  # all classes alike: the first is right
        fitted_temperature(np.zeros((4, 3)), SingleLabels(np.zeros(4, np.int64)))


def test_a_temperature_whatever_the_logits() -> None:
    labels = SingleLabels(np.repeat(np.arange(3), 20))
    right = np.eye(3).repeat(20, 0)
    assert 0.05 < temperature_of(right, labels) < 0.5
    assert temperature_of(-right, labels) == 1.0
    table = MultiLabels.of_table(right.astype(np.uint8))
    assert 0.05 < temperature_of(right - 0.5, table) < 0.5
    logits, values = some(10)
    every = SingleLabels(values)
    assert temperature_of(logits, every) == fitted_temperature(logits, every)


def tinted() -> vitlab.VisionTransformer:
    """A classifier that looks at the tint of a picture, far too sure of itself."""
    made = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", image_size=16, labels=CLASSES,
                         classes=3)  # fmt: skip
    assert isinstance(made, vitlab.VisionTransformer)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, 0.4, generator=generator)
        made.head.classify.weight *= 6
        made.head.classify.bias *= 6
    return made.eval()


model = pytest.fixture(tinted)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Splits whose labels are the model's own answers, but for one in four."""
    root = tmp_path_factory.mktemp("calibrated")
    for first, (split, count) in enumerate((("train", 6), ("val", 40), ("test", 40))):
        pictures = [photo(100 * first + number, 16, 16, number % 3) for number in range(count)]
        for number, answer in enumerate(vitlab.classify(tinted(), pictures)):
            own = number % 4 == 0 or split == "train"
            folder = root / split / (CLASSES[number % 3] if own else answer.classes[0][0])
            folder.mkdir(parents=True, exist_ok=True)
            pictures[number].save(folder / f"{number:03d}.png")
    return str(root)


def test_calibrated_probabilities_are_used_everywhere(
    model: vitlab.VisionTransformer, data: str, tmp_path: Path
) -> None:
    splits = open_to_learn(data)
    assert splits.validation is not None
    images = torch.rand(2, 3, 16, 16)
    before, logits = vitlab.evaluate(model, data, workers=0), model(images)
    found = vitlab.calibrate(model, data, workers=0)
    raw = predict(model, splits.validation, Compute(torch.device("cpu"), workers=0), logits=True)
    assert raw.logits is not None
    assert found.temperature == fitted_temperature(raw.logits, raw.labels) == model.temperature > 1
    assert (found.data, found.images) == (data, 40)
    assert torch.equal(model(images), logits)
    after = vitlab.evaluate(model, data, workers=0)
    assert (before["temperature"], after["temperature"]) == (1.0, found.temperature)
    assert after["accuracy"] == before["accuracy"]
    file = str(next(Path(data).rglob("test/*/000.png")))
    answer = vitlab.classify(model, [file])[0].classes
    row = next(i for i in range(40) if splits.test.name(i) == file)
    tested = predict(model, splits.test, Compute(torch.device("cpu"), workers=0), logits=True)
    assert tested.logits is not None
    want = softmax(tested.logits[row : row + 1] / found.temperature)[0]
    for name, chance in answer:
        assert chance == pytest.approx(want[CLASSES.index(name)])
    result = vitlab.evaluate(model, data, workers=0, calibrate=True)  # starts from the logits
    about = result["calibration"]
    assert about["temperature"] == result["temperature"] == found.temperature
    assert about["images"] == 40
    moved = {name for name, each in METRICS.items() if each.moved_by == "temperature"}
    for name in ("nll", "ece", "brier", "calibration_error"):
        assert about["before"][name] == pytest.approx(before[name])
        assert about["after"][name] == result[name] < before[name]
    assert {"nll", "accuracy"} & about["after"].keys() == {"nll"}
    assert about["before"]["intervals"].keys() == before["intervals"].keys() & moved
    ranges = {name: ends for name, ends in result["intervals"].items() if name in moved}
    assert about["after"]["intervals"] == ranges != {}


def test_what_is_saved_is_calibrated(
    model: vitlab.VisionTransformer, data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = tmp_path / "base"
    vitlab.save(model, base)
    vitlab.calibrate(model, data, workers=0)
    again = vitlab.load(vitlab.save(model, tmp_path / "saved"))
    assert again.temperature == model.temperature
    assert again.provenance["calibration"] == {"data": Path(data).name, "images": 40}
    with torch.no_grad():
        model.head.classify.bias += 1
    file = vitlab.delta(model, vitlab.load(base)).save(tmp_path / "delta.safetensors")
    assert vitlab.load(file).temperature == model.temperature
    assert vitlab.load(base).temperature == 1
    assert vitlab.fuse(again).temperature == model.temperature
    assert vitlab.load(tmp_path / "saved", classes=3).temperature == 1  # a new head
    assert vitlab.load(tmp_path / "saved", image_size=32).temperature == model.temperature
    vitlab.save(again, tmp_path / "timm", to="timm")
    assert f"temperature={model.temperature:.4g}: left out" in caplog.text


@pytest.mark.parametrize("value", [0, -1.5, float("nan"), float("inf"), "warm", True, [2]])
def test_a_saved_temperature_is_not_trusted(model: vitlab.VisionTransformer, value: object) -> None:
    model.provenance["temperature"] = value
    with pytest.raises(WeightsError, match="not a number above 0: calibrate it again"):
        assert model.temperature


def test_logits_that_are_no_numbers_are_refused(model: vitlab.VisionTransformer, data: str) -> None:
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match="gives 40 of 40 images a logit that is not a number"):
        vitlab.calibrate(model, data, workers=0)


def test_only_validation_images_are_fitted(
    model: vitlab.VisionTransformer, tmp_path: Path, data: str
) -> None:
    for split in ("train", "test"):
        photo_folder(tmp_path / "two" / split, dict.fromkeys(CLASSES, 10), 16, 16)
    with pytest.raises(DataError, match=r"has no validation split to calibrate on.*--patience"):
        vitlab.evaluate(model, str(tmp_path / "two"), calibrate=True)
    assert model.temperature == 1
    photo_folder(tmp_path / "two" / "val", dict.fromkeys(CLASSES, 5), 16, 16)  # the advice
    assert len(validation_of(model, str(tmp_path / "two"))) == 15
    for split in ("validation", "train", "all"):
        with pytest.raises(OptionError, match="choose split=test"):
            vitlab.evaluate(model, data, calibrate=True, split=split)
    with pytest.raises(OptionError, match="do it without flips first"):
        vitlab.evaluate(model, data, calibrate=True, flips=True)


def test_what_training_held_out_to_stop_is_validation_data(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other advice: `--patience` holds images out, which calibrating finds again."""
    choices = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/4", "epochs": 1, "batch": 256}
    run = vitlab.train(
        vitlab.recipe("digits", patience=1, **choices),
        tmp_path / "run",
        host=vitlab.Host(effort=SHOWN),
    )
    held_out = validation_of(run.model, "digits")
    assert 110 < len(held_out) < 180  # a tenth of 1,437, or so
    test = open_to_learn("digits").test
    tested = {test.image(i).content() for i in range(len(test))}
    assert not tested & {held_out.image(i).content() for i in range(len(held_out))}
    code, out, _ = call(capsys, "evaluate", str(run.folder), "digits", "--calibrate", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["report"] == str(run.folder / "report.html")
    report = (run.folder / "report.html").read_text()
    assert run.metrics["calibration"]["temperature"] == run.model.temperature
    assert run.model.temperature == pytest.approx(result["temperature"], rel=1e-6)
    assert vitlab.load(run.folder).temperature == result["temperature"] != 1
    for words in ("validation images", "validation, 359 test"):
        assert f"{len(held_out)} {words}" in report
    assert all(note in report for note in run.metrics["notes"])  # what training had to say stays
    other = vitlab.load(tmp_path / "run")
    other.provenance["fingerprint"] = "of other data"
    with pytest.raises(DataError, match="no validation split"):
        validation_of(other, "digits")


def test_the_command_keeps_it_with_the_weights(
    capsys: pytest.CaptureFixture[str], model: vitlab.VisionTransformer, data: str, tmp_path: Path
) -> None:
    folder = vitlab.save(model, tmp_path / "saved")
    weights = (folder / "model.safetensors").read_bytes()
    code, out, err = call(capsys, "evaluate", str(folder), data, "--calibrate", "--json")
    assert code == 0, err
    result = json.loads(out)["calibration"]
    assert result["saved"] == str(folder)
    assert vitlab.load(folder).temperature == result["temperature"]
    assert (folder / "model.safetensors").read_bytes() == weights
    assert {each.name for each in folder.iterdir()} == {"config.json", "model.safetensors"}
    code, out, _ = call(capsys, "evaluate", str(folder), data, "--calibrate")
    assert "fitted to 40 images" in out
    assert f"kept in {folder}" in out
    code, out, _ = call(capsys, "evaluate", str(folder), data)
    assert f"{result['temperature']:.4g}" in out
    picture = str(next(Path(data).rglob("*.png")))
    code, out, _ = call(capsys, "predict", str(folder), picture)
    assert f"probabilities are calibrated: temperature {result['temperature']:.4g}" in out


def test_weights_that_cannot_keep_it(
    capsys: pytest.CaptureFixture[str], model: vitlab.VisionTransformer, data: str, tmp_path: Path
) -> None:
    theirs = vitlab.save(model, tmp_path / "timm", to="timm")
    code, _, err = call(capsys, "evaluate", str(theirs), data, "--calibrate")
    assert (code, err.count("\n")) == (2, 1)
    assert f"run vitlab export {theirs} --to vitlab --out FOLDER, then use FOLDER" in err
    with pytest.raises(WeightsError, match="no such file or folder"):
        own_folder(tmp_path / "nothing")
    with pytest.raises(WeightsError, match="me/pets is neither a run nor a folder saved by vitlab"):
        own_folder("me/pets")  # nothing is fetched
