"""Relative positions of two dimensions that a query meets row by row and column by column."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import Inner


class Decomposed(Inner):
    """A bias on the logits from a query, the offset in rows and that in columns (MViTv2).

    The query, not scaled, meets a learned vector for each of the two offsets; all heads share
    them. Every block has tables of its own, as long as its window or the grid asks for. Source:
    Kirillov et al., Segment Anything, 2023; Li et al., MViTv2, 2022, section 4.1.
    """

    name = "decomposed"
    uses = ("positions_size",)
    undecayed = ("rows", "columns")
    takes_extra = False

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        head = config.width // config.heads
        self.area = area_of(config)
        self.rows = nn.Parameter(torch.empty(2 * self.area[0] - 1, head))
        self.columns = nn.Parameter(torch.empty(2 * self.area[1] - 1, head))

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse tokens that are not of the grid."""
        Inner.check(config)
        if config.length > config.grid[0] * config.grid[1]:
            raise OptionError(
                f"positions={config.positions} has no offset for a class token or registers: set "
                "pool=mean, class_token=False and registers=0"
            )

    @staticmethod
    def tables(config: ViTConfig) -> int:
        """Return the number of tables: one per block."""
        return config.depth

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start at zero, as the official code does."""
        nn.init.zeros_(self.rows)
        nn.init.zeros_(self.columns)

    def relate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return queries and keys, (B, h, N, d), and the bias on their logits, (B, h, N, N)."""
        places = q.unflatten(2, self.area)  # (B, h, rows, columns, d)
        down = torch.einsum("bhrcd,rkd->bhrck", places, by_offset(self.rows).to(q.dtype))
        right = torch.einsum("bhrcd,ckd->bhrck", places, by_offset(self.columns).to(q.dtype))
        bias = down[..., :, None] + right[..., None, :]  # (B, h, rows, columns, rows, columns)
        return q, k, bias.flatten(4).flatten(2, 3)

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Stretch the tables to the new offsets, linearly, as the official code does."""
        lengths = zip(("rows", "columns"), area_of(new), strict=True)
        return {name: stretched(tensors[name], 2 * length - 1) for name, length in lengths}


def area_of(config: ViTConfig) -> tuple[int, int]:
    """Return rows and columns of patches that attend to each other: of a window, or of the grid."""
    return (config.window, config.window) if config.window else config.grid


def by_offset(table: Tensor) -> Tensor:
    """Look up the vector of each offset from a query to a key: (2 n - 1, d) -> (n, n, d)."""
    place = torch.arange((len(table) + 1) // 2, device=table.device)
    return table[place[:, None] - place[None, :] + len(place) - 1]


def stretched(table: Tensor, length: int) -> Tensor:
    """Read a table off linearly at another number of offsets: (old, d) -> (length, d)."""
    if len(table) == length:
        return table
    lines = table.float().T[None]  # (1, d, old)
    return F.interpolate(lines, length, mode="linear")[0].T.to(table.dtype)
