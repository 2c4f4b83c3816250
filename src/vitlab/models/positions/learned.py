"""Learned positions (ViT paper): of each patch, or by row and column; resampled for other sizes."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.configs.vit_config import Resampling, ViTConfig
from vitlab.models.positions.positions import Added

OFFSET = 0.1  # patches per side that DINOv2 adds before it divides


class Learned(Added):
    """A learned vector for each place in raster order, class token included (ViT paper, 3.1).

    As in the official code, also where it starts.
    """

    name = "1d"
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


class Grid(Added):
    """Half of a patch's position from its column, half from its row (ViT paper, D.4, 2-D).

    The class token has none of its own: where it matters, its learned initial value can absorb one.
    """

    name = "2d"
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


def resample(
    table: Tensor, old: tuple[int, int], new: tuple[int, int], resampling: Resampling = "bilinear"
) -> Tensor:
    """Return position embeddings for another grid: (1, prefix + N, D) -> (1, prefix + M, D).

    The prefix stays as it is. `bilinear` aligns corners, as Google's code does for fine-tuning at a
    higher resolution (ViT paper, section 3.2); `bicubic` does not, as DeiT's; `antialiased` is
    bicubic with antialiasing, as timm's. `scaled` is bicubic by the factor (new + 0.1) / old, as
    DINOv2's `interpolate_pos_encoding` has it (facebookresearch/dinov2,
    dinov2/models/vision_transformer.py; its models with registers have `antialiased`).
    `bilinear-antialiased` is SigLIP 2's with native aspect ratios;
    `bilinear-unaligned`, Perception Encoder's, neither aligns corners nor antialiases; `nearest`
    is that of Idefics2 and its kin.
    """
    if old == new:
        return table
    prefix = table.shape[1] - old[0] * old[1]
    grid = table[:, prefix:].unflatten(1, old).permute(0, 3, 1, 2).float()  # (1, D, rows, columns)
    antialias, aligned = resampling.endswith("antialiased"), resampling == "bilinear" or None
    if resampling == "scaled":
        factor = [(new[0] + OFFSET) / old[0], (new[1] + OFFSET) / old[1]]
        grid = F.interpolate(grid, scale_factor=factor, mode="bicubic")
    else:
        filters = ("nearest", "bilinear")
        mode = next((name for name in filters if resampling.startswith(name)), "bicubic")
        grid = F.interpolate(grid, new, mode=mode, align_corners=aligned, antialias=antialias)
    resized = grid.flatten(2).transpose(1, 2).to(table.dtype)
    return torch.cat([table[:, :prefix], resized], dim=1)
