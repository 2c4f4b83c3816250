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

Resampling = Literal["bilinear", "bicubic", "antialiased", "area"]


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


class BiasPositions(nn.Module):
    """A learned number on the logits for each 2-D offset of query and key, a head each (BEiT).

    The last three rows of the table, (offsets, heads), are for a class token: as the query, as the
    key, and with itself.
    """

    places: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.grid, self.has_token = config.grid, config.has_token
        self.table = nn.Parameter(torch.empty(bias_offsets(config), config.heads))
        self.register_buffer(
            "places", torch.empty(config.tokens, config.tokens, dtype=torch.int64), persistent=False
        )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Zero at first, as in the official code."""
        nn.init.zeros_(self.table)
        self.compute()

    def compute(self) -> None:
        """Fill in which row of the table each pair of tokens takes, (N, N)."""
        (rows, columns), device = self.grid, self.places.device
        row = torch.arange(rows, device=device).repeat_interleave(columns)
        column = torch.arange(columns, device=device).repeat(rows)
        down = row[:, None] - row[None, :] + rows - 1
        right = column[:, None] - column[None, :] + columns - 1
        places = down * (2 * columns - 1) + right
        if self.has_token:
            places = F.pad(places, (1, 0, 1, 0))
            last = len(self.table)
            places[0, :], places[:, 0], places[0, 0] = last - 3, last - 2, last - 1
        self.places = places

    def bias(self, q: Tensor) -> Tensor:
        """What to add to the scaled logits: queries (B, h, N, d) -> (1, h, N, N).

        Heads of several branches side by side have the same biases, branch by branch.
        """
        bias = self.table[self.places].permute(2, 0, 1)[None].to(q.dtype)
        return bias.repeat(1, q.shape[1] // bias.shape[1], 1, 1)


def bias_offsets(config: ViTConfig) -> int:
    """Rows of a table of biases: every 2-D offset, and the class token's three."""
    rows, columns = config.grid
    return (2 * rows - 1) * (2 * columns - 1) + 3 * config.has_token


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
        """Nothing to draw: the angles are computed."""
        self.compute()

    def compute(self) -> None:
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
Inner = RelativePositions | BiasPositions | RotaryPositions


def build_positions(config: ViTConfig) -> list[Additive | Inner]:
    """The tables that the configuration names: none, one, or one for each block."""
    kinds: dict[str, type[Additive | Inner]] = {
        "1d": LearnedPositions,
        "2d": GridPositions,
        "relative": RelativePositions,
        "bias": BiasPositions,
        "rope": RotaryPositions,
    }
    if config.positions == "none":
        return []
    own = config.positions_at == "every" or (
        config.positions in ("relative", "bias") and config.positions_at == "stem"
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
    higher resolution (ViT paper, section 3.2); `bicubic` does not, as DeiT's; `antialiased` is
    bicubic with antialiasing, as timm's; `area` bilinear with antialiasing, for shrinking.
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
        case "antialiased":
            grid = F.interpolate(grid, new, mode="bicubic", align_corners=False, antialias=True)
        case "area":
            grid = F.interpolate(grid, new, mode="bilinear", align_corners=False, antialias=True)
    resized = grid.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([table[:, :prefix], resized], dim=1)


def resize_bias(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A table of biases for another grid: (offsets, heads) -> (new offsets, heads).

    Near offsets matter most, so the old ones are spread over the new range in a geometric
    progression, as BEiT's code does for fine-tuning at a higher resolution, and read off linearly.
    """
    if old == new:
        return table
    extra = len(table) - (2 * old[0] - 1) * (2 * old[1] - 1)
    square = table[: len(table) - extra].double().unflatten(0, (2 * old[0] - 1, 2 * old[1] - 1))
    down, right = (_spread(*sizes) for sizes in zip(old, new, strict=True))
    resized = torch.einsum("ai,bj,ijh->abh", down, right, square).flatten(0, 1)
    return torch.cat([resized.to(table.dtype), table[len(table) - extra :]])


def _spread(old: int, new: int) -> Tensor:
    """Weights of the old offsets in each new one: (2 new - 1, 2 old - 1)."""
    low, high = 1.01, 1.5  # the ratio with which the old offsets just reach the farthest new one
    ratio = low
    while high - low > 1e-6:
        ratio = (low + high) / 2
        reach = (1 - ratio ** (old - 1)) / (1 - ratio)
        low, high = (low, ratio) if reach > new - 1 else (ratio, high)
    steps = torch.tensor([ratio**k for k in range(old - 1)], dtype=torch.float64).cumsum(0)
    places = torch.cat([-steps.flip(0), torch.zeros(1, dtype=torch.float64), steps])
    want = torch.arange(1 - new, new, dtype=torch.float64).clamp(places[0], places[-1])
    above = torch.searchsorted(places.contiguous(), want.contiguous()).clamp(
        1, max(1, len(places) - 1)
    )
    weights = torch.zeros(len(want), len(places), dtype=torch.float64)
    if old == 1:
        return weights + 1
    share = (want - places[above - 1]) / (places[above] - places[above - 1])
    line = torch.arange(len(want))
    weights[line, above - 1], weights[line, above] = 1 - share, share
    return weights


def resize_positions(
    tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig, how: Resampling | None = None
) -> dict[str, Tensor]:
    """A model's tensors for another image size: every position table resized, the rest as it is.

    Args:
        tensors: a state dict
        old: the configuration they are for
        new: the one they shall be for
        how: None for the way of the model's family, `old.resampling`

    Raises:
        ValueError: relative positions, whose 1-D offsets mean other places on another grid.
    """
    if old.positions == "relative" and old.grid != new.grid:
        raise UserError("relative positions cannot be resized: their offsets are of one grid")
    how = how or old.resampling
    result = dict(tensors)
    for name, tensor in tensors.items():
        match name.split("."):
            case ["positions", _, "table"] if old.positions == "bias":
                result[name] = resize_bias(tensor, old.grid, new.grid)
            case ["positions", _, "table"]:
                result[name] = resize(tensor, old.grid, new.grid, how)
            case ["positions", _, "rows"]:
                line = resize(tensor[None], (old.grid[0], 1), (new.grid[0], 1), how)
                result[name] = line[0]
            case ["positions", _, "columns"]:
                line = resize(tensor[None], (old.grid[1], 1), (new.grid[1], 1), how)
                result[name] = line[0]
    return result
