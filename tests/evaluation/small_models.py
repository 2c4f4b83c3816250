"""Small classifiers of noise: every weight is drawn, so that no part of a model is idle."""

from typing import Any

import torch

import vitlab

TWO = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def noisy(name: str = TWO, std: float = 0.3, seed: int = 0, **choices: Any) -> Any:
    """A model of 3 classes for images of 8x8, unless said otherwise; the same for the same seed."""
    torch.manual_seed(seed)
    made = vitlab.create(name, **{"classes": 3, "image_size": 8} | choices)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, std)
    return made.eval()
