"""Rotary positions."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import Inner


class Rotary(Inner):
    """Rotation of queries and keys by the patch's place (RoPE; Su et al., 2021, in 2-D).

    A pair of channels, i and i + d/2 of a head's d, turns by one angle. Half of the pairs turn with
    the row, half with the column, and the frequencies fall from pair to pair (DINOv3, EVA-02,
    Perception Encoder, RoPE-ViT axial). With rope_kind=mixed every pair has learned frequencies
    for both, in each head of each block (RoPE-ViT mixed; Heo et al., 2024). Prefix tokens and
    further ones are not turned.

    With rope_kind=free every channel has its own, in each block, so that a pair is turned and
    stretched, and registers have places around the image (CAPI; Darcet et al., 2025).
    """

    name = "rope"
    uses = ("rope_base", "rope_kind")
    undecayed = ("freqs",)
    cos: Tensor
    sin: Tensor
    places: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        patches, head = math.prod(config.grid), config.width // config.heads
        learned = {"mixed": (2, config.heads, head // 2), "free": (2, 1, head)}
        shape = learned.get(config.rope_kind)
        self.freqs = nn.Parameter(torch.empty(shape)) if shape else None
        placed = config.registers + patches if config.rope_kind == "free" else patches
        for name in ("places",) if shape else ("cos", "sin"):
            size = (2, placed) if shape else (placed, head)
            self.register_buffer(name, torch.empty(size), persistent=False)

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse heads whose channels cannot be quartered."""
        Inner.check(config)
        if (head := config.width // config.heads) % 4:
            raise OptionError(
                f"positions={config.positions} needs a head width (width / heads) that is a "
                f"multiple of 4, not {head}"
            )
        if config.rope_kind == "free" and (config.has_token or config.registers % 4):
            raise OptionError(
                "rope_kind=free has places for registers on four edges, and none for a class "
                "token: set pool=mean and registers to a multiple of 4"
            )

    @staticmethod
    def tables(config: ViTConfig) -> int:
        """Return the number of tables: one, or one per layer where frequencies are learned."""
        return config.depth if config.rope_kind in ("mixed", "free") else 1

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the directions of learned frequencies, one per head, as the official code does.

        Those of rope_kind=free are for rows in one half, for columns in the other, and fall from 7
        to 7e-4 turns over the image.
        """
        if self.freqs is not None and self.config.rope_kind == "free":
            quarter, device = self.freqs.shape[-1] // 4, self.freqs.device
            turns = 7 * 1e-4 ** torch.linspace(0, 1, quarter, device=device)
            waves = 2 * math.pi * turns.tile(2)
            none = torch.zeros_like(waves)
            lines = torch.stack([torch.cat([waves, none]), torch.cat([none, waves])])
            self.freqs.detach().copy_(lines[:, None])
        elif self.freqs is not None:
            size = 1 / self.periods(self.freqs.device)
            turn = size.new_empty(len(self.freqs[0]), 1)
            turn.uniform_(0, 2 * math.pi, generator=generator)
            both = torch.cat([turn, turn + math.pi / 2], 1)[:, :, None]  # (h, 2, 1)
            waves = torch.stack([both.sin() * size, both.cos() * size])
            self.freqs.detach().copy_(waves.flatten(2))
        super().reset_parameters(generator)

    def periods(self, device: torch.device) -> Tensor:
        """Return the periods of a quarter of a head's channels, (d / 4)."""
        width = self.config.width // self.config.heads
        periods = self.config.rope_base ** torch.arange(0, 1, 4 / width, device=device)
        return periods.bfloat16().to(periods) if self.config.rope_rounded else periods

    def refresh(self) -> None:
        """Compute the places of the patches, (2, N), or their angles, (N, head width)."""
        for name, buffer in self.on(self.config.grid).items():
            setattr(self, name, buffer)

    def on(self, grid: tuple[int, int]) -> dict[str, Tensor]:
        """Return the buffers by their names, for a grid of patches."""
        device = next(self.buffers()).device
        if self.freqs is not None:
            return {"places": places(self.config, grid, device)}
        turns = 2 * math.pi if self.config.rope_kind == "image" else 1
        angles = turns * places(self.config, grid, device).T[:, :, None] / self.periods(device)
        angles = angles.flatten(1).tile(2)
        return {"cos": angles.cos(), "sin": angles.sin()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Change type or device of every tensor, but compute angles in fp32 at least."""
        super()._apply(fn, recurse)
        if next(self.buffers()).dtype.itemsize < 4:
            self.refresh()
        return self

    def waves(self) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of the angles: (N, d), or (h, N, d) for each head's own."""
        if self.freqs is None:
            return self.cos, self.sin
        precise = torch.promote_types(self.freqs.dtype, torch.float32)
        freqs, places = self.freqs.to(precise), self.places.to(precise)
        rows, columns = places[:, None, :, None] * freqs[:, :, None]  # (2, h, N, d / 2)
        angles = rows + columns
        angles = angles.tile(2) if self.config.rope_kind == "mixed" else angles
        return angles.cos(), angles.sin()

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Turn queries and keys, each (B, h, N, d)."""
        waves = self.waves()
        return self.turn(q, waves), self.turn(k, waves), None

    def turn(self, heads: Tensor, waves: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Turn queries or keys (B, h, N, d) where they are of patches, or of registers with places.

        Heads of several branches side by side turn alike, branch by branch. Sums are in fp32 at
        least: with cosines rounded to bf16 the logits drift from block to block.
        """
        cos, sin = waves or self.waves()
        if cos.ndim == 3:
            branches = heads.shape[1] // len(cos)
            cos, sin = cos.repeat(branches, 1, 1), sin.repeat(branches, 1, 1)
        first = 0 if self.config.rope_kind == "free" else self.config.prefix
        last = first + cos.shape[-2]
        before, patches, behind = heads[:, :, :first], heads[:, :, first:last], heads[:, :, last:]
        left, right = patches.chunk(2, -1)
        turned = patches * cos + torch.cat([-right, left], -1) * sin
        return torch.cat([before, turned.to(heads.dtype), behind], 2)


def places(config: ViTConfig, grid: tuple[int, int], device: torch.device) -> Tensor:
    """Return the rows and columns of a grid's patches as rotary positions count them, (2, N).

    Numbers from rope_offset, perhaps scaled from the patches of the image to a grid of rope_grid;
    or with rope_kind=image, from -1 to 1 over the image. With rope_kind=free, from 0 to 1 from the
    first to the last, with the registers before them: (2, R + N).
    """

    def line(size: int) -> Tensor:
        numbers = torch.arange(size, device=device)
        if config.rope_kind == "free":
            return torch.linspace(0, 1, size, device=device)
        if config.rope_kind == "image":
            return 2 * (numbers + 0.5) / size - 1
        scale = config.rope_grid / size if config.rope_grid else 1.0
        return (numbers + config.rope_offset) * scale

    patches = torch.stack(torch.meshgrid(*map(line, grid), indexing="ij")).flatten(1)
    if config.rope_kind != "free":
        return patches
    around = edges(config.registers, device) * patches.amax(1, keepdim=True)
    return torch.cat([around, patches], 1)


def edges(count: int, device: torch.device) -> Tensor:
    """Return places around a square of side 1, as many on each edge: (2, count)."""
    way = torch.arange(count // 4, device=device) / max(1, count // 4)
    zero, one = torch.zeros_like(way), torch.ones_like(way)
    rows = torch.cat([way, one, 1 - way, zero])
    return torch.stack([rows, torch.cat([zero, way, one, 1 - way])])
