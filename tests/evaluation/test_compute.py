"""Commands use the fast form where there is work enough, and agree with the plain model."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import nn

import vitlab
from conftest import call
from models.test_architectures import a_model
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.memory import Arrays
from vitlab.errors import DataError
from vitlab.evaluation import compute as room
from vitlab.evaluation.compute import Compute, FastForm, borrowed
from vitlab.evaluation.infer import predict
from vitlab.models.fast import accelerate as engines
from vitlab.models.fast.accelerate import CHANCES
from vitlab.models.model import Model

CPU = torch.device("cpu")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any work is large enough, on any processor."""
    for name in ("PACKING", "HALVING", "FEW", "SOME"):
        monkeypatch.setattr(room, name, 0)
    monkeypatch.setattr(engines, "multiplies_bf16", lambda device: True)


def source_for(model: Model, count: int = 12) -> Images:
    """Smooth images of a model's size."""
    rows, columns = model.config.size
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(count, model.config.channels, 4, 4, generator=generator)
    large = nn.functional.interpolate(coarse, size=(rows, columns), mode="bilinear")
    pixels = (255 * large).byte().permute(0, 2, 3, 1).contiguous().numpy()
    labels = SingleLabels(np.arange(count) % model.config.classes)
    return Images.of(Arrays(pixels), labels, model.config.class_names)


def chances(form: FastForm, source: Images) -> Any:
    found = predict(form.model, source, Compute(CPU, workers=0).of(form))
    return found.probabilities


def a_digits_model() -> Model:
    generator = torch.Generator().manual_seed(4)
    made = vitlab.create(
        "ViT(width=32,depth=2,heads=2,mlp=64)/4",
        classes=10, image_size=8, channels=1, generator=generator,
    )  # fmt: skip
    nn.init.normal_(made.head.classify.weight, std=0.3, generator=generator)  # type: ignore[union-attr, arg-type]
    return made.eval()


@pytest.mark.parametrize("case", ["plain", "rope, parallel", "axial, parallel", "BiT"])
def test_architectures_have_the_same_probabilities(case: str, eager: None) -> None:
    model = a_model(case)
    source = source_for(model, 2)
    wanted = chances(FastForm(model, "fp32"), source)
    for precision, limit in (("fp32", 1e-5), ("auto", CHANCES)):
        fast = Compute(CPU, precision).fast(model, source)  # type: ignore[arg-type]
        assert fast.model is not model
        assert fast.precision == "fp32" or precision == "auto"
        assert np.abs(chances(fast, source) - wanted).max() <= limit


def test_little_work_is_left_to_the_model_and_bf16_is_autocast_there() -> None:
    model = a_digits_model()
    for precision, computes in (("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")):
        form = Compute(CPU, precision).fast(model, source_for(model, 100))  # type: ignore[arg-type]
        assert (form.model is model, form.autocast, form.precision) == (True, computes, computes)


class Traveler(nn.Linear):
    """Remembers where it was sent."""

    sent: tuple[str, ...] = ()

    def to(self, device: torch.device) -> "Traveler":  # type: ignore[override]
        """Remember the device; tests have only one to be on."""
        self.sent += (str(device),)
        return self


def test_a_model_returns_to_its_device_and_modes() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2)).train()
    model[1].eval()
    with borrowed(model, CPU):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, False, True]
    traveler = Traveler(2, 2)
    with pytest.raises(ZeroDivisionError), borrowed(traveler, torch.device("meta")):
        raise ZeroDivisionError
    assert traveler.sent == ("meta", "cpu")


def test_bf16_needs_more_work_than_packing_and_a_processor_that_has_it(
    eager: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = a_digits_model()
    assert Compute(CPU, "auto").fast(model, source_for(model)).precision == "bf16"
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("computing in bf16: 8 of the images have the features and probabilities")
    assert "--precision fp32" in line
    for place, name, value in ((room, "HALVING", 1e12), (room, "SOME", 1e12),
                               (engines, "multiplies_bf16", lambda device: False)):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            form = Compute(CPU, "auto").fast(model, source_for(model))
        assert form.model is not model
        assert form.precision == "fp32"


@pytest.mark.parametrize(("images", "engine"), [(2_000, "packed"), (2_000_000, "auto")])
def test_a_gpu_measures_no_engines_for_seconds_of_work(
    images: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is compiled, which takes longer than a GPU needs for 2,000 images."""
    model = vitlab.create("ViT-S/14", 10, 224)
    asked: list[str] = []

    def noted(model: Model, **how: Any) -> Model:
        asked.append(how["engine"])
        return model

    monkeypatch.setattr(room, "accelerate", noted)
    monkeypatch.setattr(room, "remembered", lambda *of: None)
    monkeypatch.setattr(room, "spread", lambda *of: torch.empty(0))
    monkeypatch.setattr(room.devices, "forked_random", lambda device: nullcontext())
    source = MagicMock(__len__=lambda self: images)
    Compute(torch.device("cuda")).fast(model, source)
    assert asked == [engine]


def test_bf16_that_does_not_agree_is_not_used(
    eager: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = a_digits_model()
    with torch.no_grad():  # the answer hangs on differences that bf16 does not have
        model.head.classify.weight *= 1e4  # type: ignore[union-attr, operator]
    form = Compute(CPU, "auto").fast(model, source_for(model))
    assert form.precision == "fp32"
    assert not caplog.records


def test_predict_says_its_precision(
    eager: None, few_digits: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, found = vitlab.save(a_digits_model(), tmp_path / "model"), {}
    for more in ("", "--precision fp32", "--out rows.csv", "--out parts --format csv"):
        words = ("predict", str(folder), "digits", "--json", "--device", "cpu", *more.split())
        status, text, said = call(capsys, *words)
        assert status == 0, said
        found[more] = json.loads(text)
        assert found[more]["precision"] == ("fp32" if "fp32" in more else "bf16")
    tops = [[each["top"][0] for each in found[more]["predictions"]] for more in [*found][:2]]
    away = [abs(a["probability"] - b["probability"]) for a, b in zip(*tops, strict=True)]
    assert max(away) < 0.05


def test_damaged_images_only_are_no_reason_for_bf16(eager: None, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(b"\xff\xd8 not an image")
    model = a_digits_model()
    with pytest.raises(DataError, match="not a JPEG"):
        vitlab.classify(model, tmp_path)


def test_evaluations_agree_and_say_their_precision(
    few_digits: None, request: pytest.FixtureRequest
) -> None:
    model = a_digits_model()
    plain = vitlab.evaluate(model, "digits", workers=0, device="cpu")
    request.getfixturevalue("eager")
    fast = vitlab.evaluate(model, "digits", workers=0, device="cpu", precision="fp32")
    half = vitlab.evaluate(model, "digits", workers=0, device="cpu")
    assert [each["precision"] for each in (plain, fast, half)] == ["fp32", "fp32", "bf16"]
    assert fast["accuracy"] == plain["accuracy"]
    assert fast["nll"] == pytest.approx(plain["nll"], abs=1e-5)
    assert half["nll"] == pytest.approx(plain["nll"], abs=0.02)


def test_embedded_features_agree(
    few_digits: None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = a_digits_model()

    def rows(name: str, precision: Literal["fp32", "bf16"]) -> Any:
        file = tmp_path / f"{name}.parquet"
        told = vitlab.embed(model, "digits", file, precision=precision, workers=0)
        assert told["engine"] == ("plain" if name == "plain" else "packed")
        return np.array(parquet.read_table(file)["features"].to_pylist(), np.float32)

    plain = rows("plain", "fp32")
    request.getfixturevalue("eager")
    for precision, limit in (("fp32", 1e-5), ("bf16", 0.05)):
        away = np.abs(rows(precision, precision) - plain).max()  # type: ignore[arg-type]
        assert 0 < away <= limit * np.abs(plain).max()
