"""Rotary positions."""

import math

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import Inner


class Rotary(Inner):
    """Rotation of queries and keys by the patch's place (RoPE; 2-D as in DINOv3).

    Coordinates run from -1 to 1 over the image whatever the grid; a quarter of a head's channels
    turns with the row, a quarter with the column, paired with the other half. Prefix tokens and
    further ones are not turned. Nothing is learned.
    """

    name = "rope"
    uses = ("rope_base",)
    cos: Tensor
    sin: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        shape = (math.prod(config.grid), config.width // config.heads)
        self.register_buffer("cos", torch.empty(shape), persistent=False)
        self.register_buffer("sin", torch.empty(shape), persistent=False)

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse heads whose channels cannot be quartered."""
        Inner.check(config)
        if (head := config.width // config.heads) % 4:
            raise OptionError(
                f"positions=rope needs a head width (width / heads) that is a multiple of 4, "
                f"not {head}"
            )

    def refresh(self) -> None:
        """Compute the angles, (patches, head width)."""
        rows, columns = self.config.grid
        device, width = self.cos.device, self.config.width // self.config.heads
        y = 2 * (torch.arange(rows, device=device) + 0.5) / rows - 1
        x = 2 * (torch.arange(columns, device=device) + 0.5) / columns - 1
        places = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)
        exponent = torch.arange(0, 1, 4 / width, device=device)
        angles = 2 * math.pi * places[:, :, None] / self.config.rope_base**exponent
        angles = angles.flatten(1).tile(2)
        self.cos, self.sin = angles.cos(), angles.sin()

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Turn queries and keys, each (B, h, N, d)."""
        return self.turn(q), self.turn(k), None

    def turn(self, heads: Tensor) -> Tensor:
        """Turn queries or keys (B, h, N, d) where they are of patches."""
        first = self.config.prefix
        last = first + len(self.cos)
        before, patches, behind = heads[:, :, :first], heads[:, :, first:last], heads[:, :, last:]
        left, right = patches.chunk(2, -1)
        cos, sin = self.cos.to(heads.dtype), self.sin.to(heads.dtype)
        turned = patches * cos + torch.cat([-right, left], -1) * sin
        return torch.cat([before, turned, behind], 2)
