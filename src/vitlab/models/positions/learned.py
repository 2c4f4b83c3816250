"""The ViT paper's own positions."""

import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import Added
from vitlab.models.positions.resampling import resample


class Learned(Added):
    """A learned vector for each place in raster order, class token included (ViT paper, 3.1).

    As in the official code, also where it starts.
    """

    name = "1d"
    uses = ("positions_at", "positions_size")
    undecayed = ("table",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config)
        self.table = nn.Parameter(torch.empty(1, config.placed, config.width))

    def table_of(self) -> Tensor:
        """Return what is added: (1, class token + patches, D)."""
        return self.table

    @staticmethod
    def resized(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
        """Resample the grid of patches; the class token's vector stays."""
        return {"table": resample(tensors["table"], old.grid, new.grid, old.resampling)}
