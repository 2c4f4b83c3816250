"""Where a token sits: position embeddings, added to tokens or acting within attention.

Shapes: tokens (B, N, D), the class token first where there is one, then the registers, which have
no place, then the patches in raster order, then any further tokens, which have none either.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import UserError
from vitlab.models.config import ViTConfig

Resampling = Literal["bilinear", "bicubic", "area"]


class LearnedPositions(nn.Module):
    """A learned vector for each place in raster order, class token included (ViT paper, 3.1)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.head = config.prefix - config.registers  # the class token, where there is one
        self.registers = config.registers
        self.table = nn.Parameter(torch.empty(1, config.placed, config.width))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Normal with standard deviation 0.02, as in the official code."""
        nn.init.normal_(self.table, std=0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Add its position to each token that has one: (B, N, D) -> (B, N, D)."""
        return add_places(tokens, self.table, self.head, self.registers)


class GridPositions(nn.Module):
    """Half of a patch's position from its column, half from its row (ViT paper, D.4, 2-D).

    The class token has none of its own: where it matters, its learned start can hold one.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        rows, columns = config.grid
        self.head, self.registers = config.prefix - config.registers, config.registers
        self.rows = nn.Parameter(torch.empty(rows, config.width // 2))
        self.columns = nn.Parameter(torch.empty(columns, config.width // 2))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Normal with standard deviation 0.02."""
        nn.init.normal_(self.rows, std=0.02, generator=generator)
        nn.init.normal_(self.columns, std=0.02, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Add its position to each patch: (B, N, D) -> (B, N, D)."""
        rows, columns = len(self.rows), len(self.columns)
        x = self.columns[None].expand(rows, -1, -1)
        y = self.rows[:, None].expand(-1, columns, -1)
        table = torch.cat([x, y], dim=-1).flatten(0, 1)[None]  # (1, patches, D)
        return add_places(tokens, F.pad(table, (0, 0, self.head, 0)), self.head, self.registers)


class RelativePositions(nn.Module):
    """A bias on the logits from a query and the 1-D offset to a key (ViT paper, D.4, relative).

    The original query attends to an embedding of the offset p_q - p_k between places in raster
    order (the class token is place 0, registers behind it), scaled like the main attention. The
    paper leaves open whether heads share the embeddings; here they do, as in Shaw et al. (2018).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.tokens = config.tokens
        width = config.width // config.heads
        self.table = nn.Parameter(torch.empty(2 * config.tokens - 1, width))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Normal with standard deviation 0.02."""
        nn.init.normal_(self.table, std=0.02, generator=generator)

    def bias(self, q: Tensor) -> Tensor:
        """What to add to the scaled logits: queries (B, h, N, d) -> (B, h, N, N)."""
        n = self.tokens
        logits = (q * q.shape[-1] ** -0.5) @ self.table.to(q.dtype).T  # (B, h, N, 2N - 1)
        place = torch.arange(n, device=q.device)
        offset = place[:, None] - place[None, :] + n - 1  # p_q - p_k, from 0
        return logits.gather(-1, offset.expand(*q.shape[:2], -1, -1))


class RotaryPositions(nn.Module):
    """Rotation of queries and keys by the patch's place (RoPE; 2-D as in DINOv3).

    Coordinates run from -1 to 1 over the image whatever the grid; a quarter of a head's channels
    turns with the row, a quarter with the column, paired with the other half. Prefix tokens and
    further ones are not turned. Nothing is learned.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        shape = (math.prod(config.grid), config.width // config.heads)
        self.register_buffer("cos", torch.empty(shape), persistent=False)
        self.register_buffer("sin", torch.empty(shape), persistent=False)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
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

    def turn(self, heads: Tensor) -> Tensor:
        """Queries or keys (B, h, N, d), turned where they are of patches."""
        first = self.config.prefix
        last = first + len(self.cos)
        before, patches, behind = heads[:, :, :first], heads[:, :, first:last], heads[:, :, last:]
        left, right = patches.chunk(2, -1)
        cos, sin = self.cos.to(heads.dtype), self.sin.to(heads.dtype)
        turned = patches * cos + torch.cat([-right, left], -1) * sin
        return torch.cat([before, turned, behind], 2)


Additive = LearnedPositions | GridPositions
Inner = RelativePositions | RotaryPositions


def build_positions(config: ViTConfig) -> list[Additive | Inner]:
    """The tables that the configuration names: none, one, or one for each block."""
    kinds: dict[str, type[Additive | Inner]] = {
        "1d": LearnedPositions,
        "2d": GridPositions,
        "relative": RelativePositions,
        "rope": RotaryPositions,
    }
    if config.positions == "none":
        return []
    own = config.positions_at == "every" or (
        config.positions == "relative" and config.positions_at == "stem"
    )
    kind = kinds[config.positions]
    return [kind(config) for _ in range(config.depth if own else 1)]


def add_places(tokens: Tensor, table: Tensor, head: int, registers: int) -> Tensor:
    """Add a table (1, head + patches, D) to the tokens that have a place."""
    last = head + registers + table.shape[1] - head
    if registers == 0 and tokens.shape[1] == last:
        return tokens + table
    spread = F.pad(table[:, head:], (0, 0, registers, tokens.shape[1] - last))
    return tokens + torch.cat([table[:, :head], spread], dim=1)


def resize(
    table: Tensor, old: tuple[int, int], new: tuple[int, int], how: Resampling = "bilinear"
) -> Tensor:
    """Position embeddings for another grid: (1, prefix + N, D) -> (1, prefix + M, D).

    The prefix stays as it is. `bilinear` aligns corners, as Google's code does for fine-tuning at a
    higher resolution (ViT paper, section 3.2); `bicubic` does not, as DeiT's and timm's; `area` is
    bilinear with antialiasing, for shrinking.
    """
    if old == new:
        return table
    prefix = table.shape[1] - old[0] * old[1]
    grid = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2).float()  # (1, D, rows, columns)
    match how:
        case "bilinear":
            grid = F.interpolate(grid, new, mode="bilinear", align_corners=True)
        case "bicubic":
            grid = F.interpolate(grid, new, mode="bicubic", align_corners=False)
        case "area":
            grid = F.interpolate(grid, new, mode="bilinear", align_corners=False, antialias=True)
    resized = grid.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([table[:, :prefix], resized], dim=1)


def resize_positions(
    tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig, how: Resampling = "bilinear"
) -> dict[str, Tensor]:
    """A model's tensors for another image size: every position table resized, the rest as it is.

    Raises:
        ValueError: relative positions, whose 1-D offsets mean other places on another grid.
    """
    if old.positions == "relative" and old.grid != new.grid:
        raise UserError("relative positions cannot be resized: their offsets are of one grid")
    result = dict(tensors)
    for name, tensor in tensors.items():
        match name.split("."):
            case ["positions", _, "table"]:
                result[name] = resize(tensor, old.grid, new.grid, how)
            case ["positions", _, "rows"]:
                line = resize(tensor[None], (old.grid[0], 1), (new.grid[0], 1), how)
                result[name] = line[0]
            case ["positions", _, "columns"]:
                line = resize(tensor[None], (old.grid[1], 1), (new.grid[1], 1), how)
                result[name] = line[0]
    return result
