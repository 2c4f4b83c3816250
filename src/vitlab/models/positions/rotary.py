"""Rotary positions."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.positions.positions import Inner


class Rotary(Inner):
    """Rotation of queries and keys by the patch's place (RoPE; Su et al., 2021, in 2-D).

    A pair of channels, i and i + d/2 of a head's d, turns by one angle. Half of the pairs turn with
    the row, half with the column, and the frequencies fall from pair to pair (DINOv3, EVA-02,
    Perception Encoder, RoPE-ViT axial). Prefix tokens and further ones are not turned.
    """

    name = "rope"
    cos: Tensor
    sin: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        patches, head = math.prod(config.grid), config.width // config.heads
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(patches, head), persistent=False)

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse heads whose channels cannot be quartered."""
        Inner.check(config)
        if (head := config.width // config.heads) % 4:
            raise OptionError(
                f"positions={config.positions} needs a head width (width / heads) that is a "
                f"multiple of 4, not {head}"
            )

    def periods(self, device: torch.device) -> Tensor:
        """Return the periods of a quarter of a head's channels, (d / 4)."""
        width = self.config.width // self.config.heads
        periods = self.config.rope_base ** torch.arange(0, 1, 4 / width, device=device)
        return periods.bfloat16().to(periods) if self.config.rope_rounded else periods

    def refresh(self) -> None:
        """Compute the angles of the patches, (N, head width)."""
        for name, buffer in self.on(self.config.grid).items():
            setattr(self, name, buffer)

    def on(self, grid: tuple[int, int]) -> dict[str, Tensor]:
        """Return the buffers by their names, for a grid of patches."""
        device = self.cos.device
        turns = 2 * math.pi if self.config.rope_kind == "image" else 1
        angles = turns * places(self.config, grid, device).T[:, :, None] / self.periods(device)
        angles = angles.flatten(1).tile(2)
        return {"cos": angles.cos(), "sin": angles.sin()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Change type or device of every tensor, but compute angles in fp32 at least."""
        super()._apply(fn, recurse)
        if self.cos.dtype.itemsize < 4:
            self.refresh()
        return self

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Turn queries and keys, each (B, h, N, d)."""
        return self.turn(q), self.turn(k), None

    def turn(self, heads: Tensor) -> Tensor:
        """Turn queries or keys (B, h, N, d) where they are of patches.

        Sums are in fp32 at
        least: with cosines rounded to bf16 the logits drift from block to block.
        """
        first = self.config.prefix
        last = first + len(self.cos)
        before, patches, behind = heads[:, :, :first], heads[:, :, first:last], heads[:, :, last:]
        left, right = patches.chunk(2, -1)
        turned = patches * self.cos + torch.cat([-right, left], -1) * self.sin
        return torch.cat([before, turned.to(heads.dtype), behind], 2)


def places(config: ViTConfig, grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return the rows and columns of a grid's patches as rotary positions count them, (2, N).

    Numbers from rope_offset, perhaps scaled from the patches of the image to a grid of rope_grid;
    or with rope_kind=image, from -1 to 1 over the image.
    """

    def line(size: int) -> Tensor:
        numbers = torch.arange(size, device=device)
        if config.rope_kind == "image":
            return 2 * (numbers + 0.5) / size - 1
        scale = config.rope_grid / size if config.rope_grid else 1.0
        return (numbers + config.rope_offset) * scale

    return torch.stack(torch.meshgrid(*map(line, grid), indexing="ij")).flatten(1)
