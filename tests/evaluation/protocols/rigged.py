"""A model whose answers are written down: an image of gray level g gets row g of a table."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.models.packed import Packed


class Rigged(Model):
    def __init__(self, outputs: int, labels: Sequence[str] = ()) -> None:
        nn.Module.__init__(self)
        self.config = ViTConfig(
            width=8, depth=1, heads=1, mlp=8, patch=4, image_size=4, channels=1,
            classes=outputs, labels=tuple(labels),
        )  # fmt: skip
        self.provenance, self.source = {}, ""
        self.table = nn.Parameter(torch.zeros(256, outputs))

    def answer(self, level: int, *best_first: int) -> None:
        """The outputs that images of this gray level get most, and in which order."""
        for place, output in enumerate(best_first):
            with torch.no_grad():
                self.table[level, output] = 20 - place

    def features(self, images: Tensor | Packed) -> Tensor:
        assert isinstance(images, Tensor)
        return (images.mean((1, 2, 3)) * 0.5 + 0.5) * 255

    def scores(self, features: Tensor) -> Tensor:
        return self.table[features.round().long()]


def gray(file: Path, level: int, side: int = 4) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side), level, np.uint8)).save(file, "PNG")
    return file
