"""Positions by row and column."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import Added
from vitlab.models.positions.resampling import resample


class Grid(Added):
    """Half of a patch's position from its column, half from its row (ViT paper, D.4, 2-D).

    The class token has none of its own: where it matters, its learned initial value can absorb one.
    """

    name = "2d"
    uses = ("positions_at", "positions_size")
    undecayed = ("rows", "columns")

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        rows, columns = config.grid
        self.rows = nn.Parameter(torch.empty(rows, config.width // 2))
        self.columns = nn.Parameter(torch.empty(columns, config.width // 2))

    @staticmethod
    def check(config: ViTConfig) -> None:
        """Refuse an odd width, which has no halves."""
        if config.width % 2:
            raise OptionError(f"positions=2d needs an even width, not {config.width}")

    def table_of(self) -> Tensor:
        """Return what is added: (1, class token + patches, D), zero for the class token."""
        rows, columns = self.rows.shape[0], self.columns.shape[0]  # numbers of a graph, perhaps
        x = self.columns[None].expand(rows, -1, -1)
        y = self.rows[:, None].expand(-1, columns, -1)
        table = torch.cat([x, y], dim=-1).flatten(0, 1)[None]  # (1, patches, D)
        return F.pad(table, (0, 0, int(self.config.has_token), 0))

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Resample rows and columns each by themselves."""
        (rows, columns), sizes = old.grid, new.grid
        lines = {"rows": (rows, sizes[0]), "columns": (columns, sizes[1])}
        return {
            name: resample(tensors[name][None], (was, 1), (now, 1), old.resampling)[0]
            for name, (was, now) in lines.items()
        }
