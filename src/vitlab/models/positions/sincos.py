"""Positions as fixed sines and cosines."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.grid import Grid
from vitlab.models.positions.positions import Added

BASE = 10_000  # the longest period, as a power base (Vaswani et al., 2017, section 3.5)


class SinCos(Added):
    """Fixed sines and cosines of a patch's column and row; nothing is learned (MAE, MoCo v3).

    They are computed for every grid, so that another image size has exact positions too. The class
    token has none of its own.
    """

    name = "sincos"
    table: Tensor

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        shape = (1, config.placed, config.width)
        self.register_buffer("table", torch.empty(shape), persistent=False)

    @staticmethod
    def tables(config: ViTConfig) -> int:
        """Return the number of tables: one, for all of them would be the same."""
        return 1

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse a width without quarters: sine and cosine, of columns and of rows."""
        if config.width % 4:
            raise OptionError(
                f"positions=sincos needs a width that is a multiple of 4, not {config.width}"
            )

    def refresh(self) -> None:
        """Compute the table."""
        self.table.copy_(self.on(self.config.grid)["table"])

    def on(self, grid: Grid) -> dict[str, Tensor]:
        """Return the buffer by its name, for a grid of patches."""
        waves = sines(grid, self.config.width, self.table.device)
        return {"table": F.pad(waves, (0, 0, int(self.config.has_token), 0))[None]}

    def table_of(self) -> Tensor:
        """Return what is added: (1, class token + patches, D), zero for the class token."""
        return self.table


def sines(
    grid: Grid, width: int, device: torch.device | str = "cpu", whole: bool = False
) -> Tensor:
    """Compute sines and cosines of columns in the first half of the channels, of rows in the other.

    Frequency i of n = width / 4 is 10,000^(-i / n); or 10,000^(-i / (n - 1)), down to the whole
    10,000, as in big_vision's code. Sines come before cosines in each half. So it
    is in MAE's code (facebookresearch/mae, util/pos_embed.py). Angles are computed on the CPU in
    float64, so that every device has the same numbers.

    Args:
        grid: rows and columns of patches
        width: channels, a multiple of 4
        device: where the result is to be
        whole: whether the lowest frequency is that of the whole base

    Returns:
        float32 (rows * columns, width), in raster order.
    """
    rows, columns = grid
    quarter = width // 4
    steps = torch.arange(quarter, dtype=torch.float64, device="cpu") / (quarter - whole)
    frequencies = BASE**-steps
    y = torch.arange(rows, dtype=torch.float64, device="cpu")[:, None, None] * frequencies
    x = torch.arange(columns, dtype=torch.float64, device="cpu")[None, :, None] * frequencies
    parts = [part.expand(rows, columns, -1) for part in (x.sin(), x.cos(), y.sin(), y.cos())]
    return torch.cat(parts, dim=-1).flatten(0, 1).float().to(device)
