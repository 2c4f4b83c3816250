"""Attention in a byte per number: small enough to keep all of it, and to send a part at once."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.models.config import ModelConfig, ViTConfig

LEVELS = 255


class Attended:
    """The attention of every head of every layer, for one image.

    A number is `largest * byte / 255`, where `largest` is that of its head for the token that
    attends: half a percent of it is lost at most, however small it is.

    Args:
        heads: of a layer; one with fewer has heads of zeros at the end
    """

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self._bytes: list[NDArray[np.uint8]] = []
        self._largest: list[NDArray[np.float32]] = []

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self._bytes)

    @property
    def tokens(self) -> int:
        """How many attend in each layer."""
        return self._bytes[0].shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(each.nbytes for each in self._bytes) + sum(each.nbytes for each in self._largest)

    def add(self, weights: Tensor) -> None:
        """Add a layer: (1, heads, tokens that attend, N)."""
        weights = weights[0].float()
        missing = self.heads - len(weights)
        if missing:
            weights = torch.nn.functional.pad(weights, (0, 0, 0, 0, 0, missing))
        largest = weights.amax(-1, keepdim=True)
        scale = LEVELS / largest.clamp(min=torch.finfo(torch.float32).tiny)
        self._bytes.append((weights * scale).round().to(torch.uint8).cpu().numpy())
        self._largest.append(largest[..., 0].cpu().numpy())

    def of(self, token: int) -> bytes:
        """Return what one token attends to.

        Returns:
            float32, little-endian, (layers, heads): the largest number; then uint8, (layers, heads,
            N).
        """
        largest = np.stack([each[:, token] for each in self._largest]).astype("<f4")
        return largest.tobytes() + np.stack([each[:, token] for each in self._bytes]).tobytes()


def attention_bytes(config: ModelConfig) -> int:
    """Return the bytes of an image's attention; 0 for a model without."""
    if not isinstance(config, ViTConfig):
        return 0
    tokens = config.prefix + (config.tokens if config.fit == "native" else math.prod(config.grid))
    layers = config.blocks + config.class_blocks
    return layers * config.branches * config.heads * tokens * (tokens + 4)
