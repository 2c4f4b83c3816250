"""Flips: probabilities are averaged over an image and its mirror image."""

import numpy as np
import torch

from evaluation.small_models import noisy
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


def test_probabilities_are_averaged() -> None:
    made = noisy(classes=2, image_size=28, mean=0.2)
    source = arrays(32, 40)
    made.provenance["temperature"] = 2.0
    done = predict(made, source, Compute(CPU), flips=True)
    for index in range(3):
        image = torch.from_numpy(fitted_image(source.image(index), made.config))
        pixels = (image[None].permute(0, 3, 1, 2) / 255 - 0.2) / 0.5
        with torch.inference_mode():
            both = made(torch.cat([pixels, pixels.flip(3)]))
        want = (both.double() / 2).softmax(-1).mean(0)
        np.testing.assert_allclose(done.probabilities[index], want, atol=1e-5)
    assert done.logits is None
    assert not np.allclose(predict(made, source, Compute(CPU)).probabilities, done.probabilities)
