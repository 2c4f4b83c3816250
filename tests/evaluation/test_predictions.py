"""Predictions: a model is used, and left as it was found."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vitlab
from vitlab.data.labels import SingleLabels
from vitlab.data.learning import open_to_learn
from vitlab.data.sources.arrays import Arrays
from vitlab.data.sources.folders import Files
from vitlab.errors import DataError, OptionError
from vitlab.evaluation import predictions
from vitlab.evaluation.predictions import predict, predict_any

CPU = torch.device("cpu")


def model(**choices: object) -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
    made = vitlab.create(name, **{"classes": 10, "image_size": 8, "channels": 1} | choices)
    assert isinstance(made, vitlab.VisionTransformer)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, 0.3)
    return made


def modes(network: nn.Module) -> list[bool]:
    return [module.training for module in network.modules()]


def test_a_training_model_predicts_as_in_evaluation_and_goes_on_training() -> None:
    made = model(dropout=0.5, drop_path=0.5).train()
    made.blocks[0].eval()  # frozen, for instance
    before = modes(made)
    test = open_to_learn("digits").test
    first = predict(made, test, device=CPU).probabilities
    assert modes(made) == before
    assert len(set(before)) == 2
    assert np.array_equal(first, predict(made.eval(), test, device=CPU).probabilities)
    assert modes(made) == [False] * len(before)


@pytest.mark.parametrize(
    "use",
    [
        lambda made: vitlab.evaluate(made, "digits", workers=0),
        lambda made: predict(made, open_to_learn("digits").test, device=CPU),
        lambda made: predict_any(made, open_to_learn("digits").test, device=CPU),
    ],
)
def test_an_error_leaves_the_model_as_it_was(use: Callable[[nn.Module], object]) -> None:
    made = model().train()
    made.blocks[1].eval()
    before = modes(made)
    made.head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        use(made)
    assert modes(made) == before
    assert all(weight.device == CPU and not weight.is_inference() for weight in made.parameters())


def test_weights_can_be_trained_after_a_prediction() -> None:
    made = model()
    predict(made, open_to_learn("digits").test, device=CPU)
    made(torch.zeros(1, 1, 8, 8)).sum().backward()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(1)


def test_every_image_is_predicted_once_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    made, test = model(), open_to_learn("digits").test
    whole = predict(made, test, device=CPU)
    monkeypatch.setattr(predictions, "BATCH", 50)
    steps: list[int] = []
    again = predict(made, test, device=CPU, progress=steps.append)
    np.testing.assert_allclose(again.probabilities, whole.probabilities, atol=1e-6)
    assert whole.indices.tolist() == list(range(359))
    assert whole.labels.values.tolist() == test.labels.values.tolist()
    assert steps == [50, 100, 150, 200, 250, 300, 350, 359]
    np.testing.assert_allclose(whole.probabilities.sum(1), 1)
    assert whole.seconds > 0


def test_pixels_are_normalized_as_the_model_asks() -> None:
    made, test = model(mean=0.2, std=0.7), open_to_learn("digits").test
    pixels = torch.from_numpy(np.stack([test.image(index).decode(1) for index in range(359)]))
    with torch.inference_mode():
        logits = made.eval()((pixels.permute(0, 3, 1, 2) / 255 - 0.2) / 0.7)
    done = predict(made, test, device=CPU)
    np.testing.assert_allclose(done.probabilities, logits.softmax(-1), atol=1e-5)


def test_large_images_come_in_smaller_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictions, "PIXELS", 3 * 8 * 8 + 63)
    steps: list[int] = []
    predict(model(), open_to_learn("digits").test, device=CPU, progress=steps.append)
    assert steps[:3] == [3, 6, 9]
    monkeypatch.setattr(predictions, "PIXELS", 1)
    steps.clear()
    predict(model(), open_to_learn("digits").test, device=CPU, progress=steps.append)
    assert steps[:2] == [1, 2]


def test_damaged_images_are_left_out_and_listed(photos: Path) -> None:
    whole = open_to_learn(str(photos)).whole.whole
    assert isinstance(whole, Files)
    for name in ("blue/001", "red/019"):
        (photos / f"{name}.png").write_bytes(b"no image")
    made = model(classes=3, channels=3)
    done = predict(made, whole, device=CPU, workers=0)
    assert sorted(done.bad) == [1, 59]
    assert (
        done.bad[59] == f"{photos}/red/019.png: not a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF image"
    )
    assert len(done.probabilities) == len(done.labels) == 58
    assert done.labels.counts(3) == [19, 20, 19]
    assert not {1, 59} & set(done.indices.tolist())


def test_without_a_single_usable_image(photos: Path) -> None:
    for file in photos.rglob("*.png"):
        file.write_bytes(b"")
    whole = open_to_learn(str(photos)).whole
    assert whole is not None
    made = model(classes=3, channels=3)
    none = predict_any(made, whole, device=CPU, workers=0)
    assert none.probabilities.shape == (0, 3)
    assert (len(none.labels), none.indices.tolist(), len(none.bad)) == (0, [], 60)
    with pytest.raises(DataError, match=r"blue/000\.png: the file is empty"):
        predict(made, whole, device=CPU, workers=0)
    empty = Arrays(np.empty((0, 8, 8, 1), np.uint8), SingleLabels.blank(0, 3), ("a", "b", "c"))
    with pytest.raises(DataError, match="there are no images"):
        predict(made, empty, device=CPU)


def test_features_alone_are_no_classifier() -> None:
    with pytest.raises(
        OptionError, match=r"features: it has no classifier; train one first with vitlab finetune"
    ):
        predict(model(classes=0), open_to_learn("digits").test, device=CPU)
    with pytest.raises(OptionError, match="outputs features"):
        vitlab.evaluate(model(classes=0), "digits")
