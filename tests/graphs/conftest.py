"""A model for the tests of graphs, each of which is traced once."""

from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.evaluation.unlike import fit_unlike
from vitlab.models.model import Model

CLASSES = ("cat", "dog", "Känguru 🦘")


def model_of(name: str = "ViT(width=32,depth=2,heads=2,mlp=64)/8", **choices: Any) -> Model:
    chosen = {"image_size": 32, "zero_head": False, "interpolation": "bicubic", "crop": 0.9}
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(name, 3, generator=generator, **(chosen | {"labels": CLASSES} | choices))
    with torch.no_grad():
        for weight in model.parameters():  # so that images differ in their classes
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    model.provenance |= {"temperature": 1.3, "recipe": "vit", "license": "mit"}
    model.provenance |= {"source": "/home/me/secret/weights.npz"}
    return model.eval()


@pytest.fixture(scope="session", autouse=True)
def _traced_once(traced_once: None) -> None:
    """Graphs are shared by all tests here."""


@pytest.fixture(scope="session")
def model() -> Model:
    """The model of most tests here, which knows how far images are from those of one gray each."""
    made = model_of()
    levels = np.random.default_rng(0).integers(0, 256, (90, 1, 1, 3), np.uint8)
    with torch.inference_mode():
        ready = vitlab.preprocess(made)([*np.broadcast_to(levels, (90, 32, 32, 3))])
        inner = made.inner(ready, 1).numpy()
    made.unlike = fit_unlike(inner, np.arange(90) % 3, np.arange(90) // 3 % 5, 1)
    return made
