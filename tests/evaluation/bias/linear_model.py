"""A linear classifier, whose answer to any image is known."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.evaluation.compute import Compute, FastForm
from vitlab.evaluation.inductive_bias import Probed, changed_figures
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.models.packed import Packed


class Linear(Model):
    """Logits are products of the pixels with one template per class: (classes, channels, H, W)."""

    def __init__(self, templates: Tensor, **choices: float) -> None:
        classes, channels, *size = templates.shape
        spec = {"image_size": (size[0], size[1]), "patch": 1, "mean": (0.5,), "std": (0.25,)}
        super().__init__(
            ViTConfig(width=8, depth=1, heads=1, mlp=8, classes=classes, channels=channels, **spec)  # type: ignore[arg-type]
        )
        self.templates.data.copy_(templates)

    def build(self) -> None:
        config = self.config
        self.templates = nn.Parameter(torch.empty(config.classes, config.channels, *config.size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.templates)

    def features(self, images: Tensor | Packed) -> Tensor:
        assert isinstance(images, Tensor)
        return images

    def scores(self, features: Tensor) -> Tensor:
        return torch.einsum("bchw,kchw->bk", features, self.templates)


def probed(model: Model, pixels: NDArray[np.uint8], labels: list[int], batch: int = 5) -> Probed:
    """The images (n, H, W, channels), as `probed_images` would return them."""
    return Probed(
        model.eval(),
        FastForm(model, "fp32"),
        torch.from_numpy(pixels),
        torch.tensor(labels),
        0,
        batch,
        Compute("cpu"),
    )


def noise(count: int, size: tuple[int, int], channels: int = 1, seed: int = 0) -> NDArray[np.uint8]:
    """Random pixels (count, rows, columns, channels)."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, *size, channels), np.uint8)


def normalized(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Pixels as `Linear` takes them, (count, channels, rows, columns)."""
    return (np.moveaxis(pixels, -1, 1) / 255 - 0.5) / 0.25


def figures(asked: Probed, seed: int, *kinds: str) -> dict[str, float]:
    """The figures whose names begin so, with generators of one seed."""
    found = changed_figures(asked, *(np.random.default_rng(seed) for _ in range(3)))
    return {name: value for name, value in found.items() if name.startswith(kinds)}
