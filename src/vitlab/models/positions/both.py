"""Learned positions before the encoder, and others within attention."""

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.layers import reset_parts
from vitlab.models.positions.bias import Bias
from vitlab.models.positions.learned import Learned
from vitlab.models.positions.positions import Inner, Positions
from vitlab.models.positions.rotary import Rotary
from vitlab.models.regrid import within


class Both(Positions):
    """Learned positions that are added before the encoder, and a scheme that acts in attention.

    Attributes:
        within: the scheme that acts in attention; the first of its tables comes with `added`
    """

    within: ClassVar[type[Inner]]

    def __init__(self, config: ViTConfig, first: bool = True) -> None:
        super().__init__(config)
        self.added = Learned(config) if first else None
        self.inner = self.within(config)

    @classmethod
    def check(cls, config: ViTConfig) -> None:
        """Refuse what the scheme within attention refuses."""
        cls.within.check(config)

    @classmethod
    def tables(cls, config: ViTConfig) -> int:
        """Return the number of tables within attention."""
        return cls.within.tables(config)

    @classmethod
    def of_layers(cls, config: ViTConfig) -> Sequence[Self]:
        """Return the modules, the first with the learned positions."""
        return [cls(config, first=not number) for number in range(cls.tables(config))]

    def again(self, config: ViTConfig) -> Self:
        """Return the same for another image size, with the learned positions if they are here."""
        return type(self)(config, first=self.added is not None)

    def refresh(self) -> None:
        """Fill in place the buffers within attention."""
        self.inner.refresh()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of each scheme."""
        reset_parts(generator, self.added, self.inner)

    def start(self, tokens: Tensor) -> Tensor:
        """Add the learned positions: (B, N, D) -> (B, N, D)."""
        return tokens if self.added is None else self.added.added(tokens)

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys, (B, h, N, d), and a bias on their logits, as `within` does."""
        return self.inner.relate(q, k)

    @classmethod
    def resized(
        cls, tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig
    ) -> dict[str, Tensor]:
        """Return a table's tensors for another image size, each scheme's as it does itself."""
        result = dict(tensors)
        for prefix, scheme in (("added.", Learned), ("inner.", cls.within)):
            if own := within(prefix, tensors):
                result |= {prefix + n: t for n, t in scheme.resized(own, old, new).items()}
        return result


class LearnedAndBias(Both):
    """Learned positions, and a learned bias for each 2-D offset and head (BEiT, both at once)."""

    name = "1d+bias"
    takes_extra = False
    within = Bias


class LearnedAndRotary(Both):
    """Learned positions, and rotation by the patch's place (EVA-02, Perception Encoder)."""

    name = "1d+rope"
    within = Rotary
