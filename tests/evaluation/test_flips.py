"""Flips: probabilities are averaged over an image and its mirror image."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import call, photo_folder
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import fitted_image
from vitlab.data.sources.memory import Arrays
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import predict

CPU = torch.device("cpu")


def arrays(rows: int, columns: int, images: int = 3) -> Arrays:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (images, rows, columns, 3), np.uint8)
    return Arrays(pixels, SingleLabels.blank(images, 2), ("a", "b"))


def model(**choices: object) -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    made = vitlab.create(name, **{"classes": 2, "image_size": 28} | choices)
    assert isinstance(made, vitlab.VisionTransformer)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, 0.3)
    return made.eval()


def test_probabilities_are_averaged() -> None:
    made, source = model(mean=0.2, std=0.7), arrays(32, 40)
    made.provenance["temperature"] = 2.0
    done = predict(made, source, Compute(CPU), flips=True)
    for index in range(3):
        image = torch.from_numpy(fitted_image(source.image(index), made.config))
        pixels = (image[None].permute(0, 3, 1, 2) / 255 - 0.2) / 0.7
        with torch.inference_mode():
            both = made(torch.cat([pixels, pixels.flip(3)]))
        want = (both.double() / 2).softmax(-1).mean(0)
        np.testing.assert_allclose(done.probabilities[index], want, atol=1e-5)
    assert done.logits is None
    assert not np.allclose(predict(made, source, Compute(CPU)).probabilities, done.probabilities)


def test_the_commands_take_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = model(labels=("a", "b"))
    vitlab.save(made, tmp_path / "model")
    data = str(photo_folder(tmp_path / "photos", {"a": 12, "b": 12}))
    image = str(tmp_path / "photos" / "a" / "000.png")
    answers = vitlab.classify(made, [image], flips=True)[0].classes
    code, out, _ = call(capsys, "predict", str(tmp_path / "model"), image, "--flips")
    assert code == 0
    assert f"{answers[0][0]} {answers[0][1]:.1%}" in out
    flipped = vitlab.evaluate(made, data, workers=0, flips=True)["nll"]
    assert flipped != vitlab.evaluate(made, data, workers=0)["nll"]
