"""What a model costs: its parameters and multiply-adds, part by part."""

from dataclasses import dataclass

import torch

from vitlab.models.config import ModelConfig
from vitlab.models.create import build
from vitlab.models.model import Model, Part


@dataclass(frozen=True)
class Cost:
    """What a model costs at its configuration's image size.

    Multiply-adds are counted once each, as in the per-image figures of Three things: those of
    matrix products and convolutions, which PyTorch's own counter sees too, and the scale and shift
    of the encoder's norms, one per element. (The papers' counter takes five for a norm, up to 0.3%
    more in all.)
    """

    parts: tuple[Part, ...]

    @property
    def params(self) -> int:
        """Number of parameters."""
        return sum(part.params for part in self.parts)

    @property
    def macs(self) -> int:
        """Multiply-adds for one image."""
        return sum(part.macs for part in self.parts)


def cost(model: Model | ModelConfig) -> Cost:
    """Count the parameters and multiply-adds of a model, part by part.

    Parameters are those of the modules themselves, on no device; each module knows its own
    multiply-adds. A Vision Transformer has stem (with class token, registers and positions),
    attention, MLP, norms (with LayerScale) and head; a ResNet has body and head.
    """
    config = model if isinstance(model, ModelConfig) else model.config
    with torch.device("meta"):
        return Cost(tuple(build(config).parts()))


def exaflops(model: Model | ModelConfig, images: float, epochs: float) -> float:
    """Return the work of training in 10^18 operations, as the ViT paper counts it (Table 6).

    A multiply-add is two operations, and the backward pass is twice the forward one.

    Args:
        model: at the image size of the training
        images: in the training set (JFT-300M has 303 million)
        epochs: passes over them
    """
    return 6 * cost(model).macs * images * epochs / 1e18
