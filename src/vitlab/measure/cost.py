"""Parameters and multiply-adds, counted from the configuration."""

import math
from dataclasses import dataclass

from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer


@dataclass(frozen=True)
class Part:
    """One part of a model: its parameters, and its multiply-adds for one image."""

    name: str
    params: int
    macs: int


@dataclass(frozen=True)
class Cost:
    """What a model costs at its configuration's image size.

    Multiply-adds are counted once each, as in the per-image figures of Three things: those of
    matrix products and convolutions, which PyTorch's own counter sees too, and the norms' scale and
    shift, one an element. (The papers' counter takes five for a norm, up to 0.3% more in all.)
    """

    parts: tuple[Part, ...]

    @property
    def params(self) -> int:
        """Parameters in all."""
        return sum(part.params for part in self.parts)

    @property
    def macs(self) -> int:
        """Multiply-adds for one image."""
        return sum(part.macs for part in self.parts)


def cost(model: VisionTransformer | ViTConfig) -> Cost:
    """Parameters and multiply-adds of a model, a part each: stem, attention, MLP, norms, head."""
    config = model if isinstance(model, ViTConfig) else model.config
    width, tokens, patches = config.width, config.tokens, math.prod(config.grid)
    blocks = config.depth * config.branches
    pixels = config.channels * config.patch**2
    placed = tokens * width if config.positions == "1d" else 0
    stem = Part(
        "stem",
        (pixels + 1) * width + config.prefix * width + placed,
        patches * pixels * width,
    )
    bias = 3 * width if config.qkv_bias else 0
    attention = Part(
        "attention",
        blocks * (4 * width**2 + width + bias),
        blocks * (4 * tokens * width**2 + 2 * tokens**2 * width),
    )
    mlp = Part(
        "MLP",
        blocks * (2 * width * config.mlp + config.mlp + width),
        blocks * 2 * tokens * width * config.mlp,
    )
    places = 2 * blocks + 1  # of a norm: before each branch, and at the end
    norms = Part("norms", places * 2 * width, places * tokens * width)
    hidden = config.pre_logits
    head = Part(
        "head",
        hidden * (width + 1) + (config.features + 1) * config.classes,
        hidden * width + config.features * config.classes,
    )
    return Cost((stem, attention, mlp, norms, head))
