"""Models in a graph whose images may have any size: positions that follow the grid at hand."""

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from vitlab.data.decode.filters import kernel
from vitlab.graphs.raw_pixels import number
from vitlab.models.config import ViTConfig
from vitlab.models.configs.vit_config import Resampling
from vitlab.models.model import Model
from vitlab.models.positions.both import Both
from vitlab.models.positions.grid import Grid
from vitlab.models.positions.learned import Learned
from vitlab.models.positions.positions import NoPositions, Positions
from vitlab.models.positions.resampling import OFFSET
from vitlab.models.positions.rotary import Rotary
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer

Sides = tuple[int, int]  # of a grid; SymInt while a graph is traced
FOLLOWING = (NoPositions, Learned, Grid, Rotary)


def fixed(model: Model) -> str:
    """Return what limits a model's graph to one image size, such as `positions=relative`; or ""."""
    config = model.config
    if isinstance(model, ResNet):
        return "attention=axial" if model.config.attention == "axial" else ""
    assert isinstance(config, ViTConfig)
    assert isinstance(model, VisionTransformer)
    scheme = model.positions[0]
    within = scheme.inner if isinstance(scheme, Both) else scheme
    if not isinstance(within, FOLLOWING):
        return f"positions={config.positions}"
    if isinstance(within, Rotary) and config.rope_kind == "free":
        return "rope_kind=free"
    if config.stem_stride:
        return f"stem_stride={config.stem_stride}"
    return f"stem={config.stem}" if config.stem in ("resnet", "tubelet") else ""


def follow_size(model: Model) -> None:
    """Make a model take images of any size in a graph, in place.

    Args:
        model: fused, of which `fixed` says nothing
    """
    model.check_images = lambda images: None  # type: ignore[method-assign]
    if isinstance(model, VisionTransformer):
        following = [Following(scheme) for scheme in model.positions]
        model.positions = cast(list[Positions], nn.ModuleList(following))


class Following(nn.Module):
    """Positions whose tables are computed in the graph, from the grid of the images at hand."""

    def __init__(self, scheme: Positions) -> None:
        super().__init__()
        self.scheme = scheme
        kept = {id(each): each for each in (*scheme.parameters(), *scheme.buffers())}
        blank = copy.deepcopy(scheme, kept)  # for each trace: it gets the tables of its grid
        for module in blank.modules():
            for name, tensor in (module._parameters | module._buffers).items():
                if tensor is not None:
                    delattr(module, name)
        self.blank: Callable[[], Positions] = lambda: blank

    def at(self, grid: Sides) -> Positions:
        """Return the scheme with tables for a grid."""
        made = self.blank()
        made.grid = grid
        _fill(made, self.scheme, grid)
        return made


def _fill(made: nn.Module, scheme: nn.Module, grid: Sides) -> None:
    """Give a scheme without tensors those of another one, for a grid."""
    for name, part in scheme.named_children():
        _fill(made.get_submodule(name), part, grid)
    tensors: dict[str, Tensor] = dict(scheme.named_parameters(recurse=False))
    if isinstance(scheme, Rotary):
        tensors |= scheme.on(grid)
    elif isinstance(scheme, Learned):
        tensors = {"table": _resampled(scheme.table, scheme.config, grid)}
    elif isinstance(scheme, Grid):
        tensors = _resampled_lines(scheme, grid)
    for name, tensor in tensors.items():
        setattr(made, name, tensor)


def _resampled(table: Tensor, config: ViTConfig, grid: Sides) -> Tensor:
    """Return positions for a grid, as `resample` does: (1, prefix + N, D) -> (1, prefix + M, D)."""
    rows, columns = matrices(config.grid, grid, config.resampling)
    prefix = table.shape[1] - config.grid[0] * config.grid[1]
    square = table[:, prefix:].unflatten(1, config.grid)  # (1, rows, columns, D)
    square = torch.einsum("ri,cj,bijd->brcd", rows, columns, square)
    return torch.cat([table[:, :prefix], square.flatten(1, 2)], 1)


def _resampled_lines(scheme: Grid, grid: Sides) -> dict[str, Tensor]:
    """Return the positions of rows and columns for a grid, each by themselves."""
    config, found = scheme.config, {}
    for name, old, new in zip(("rows", "columns"), config.grid, grid, strict=True):
        matrix, _ = matrices((old, 1), (new, 1), config.resampling)
        found[name] = matrix @ getattr(scheme, name)
    return found


def matrices(old: Sides, new: Sides, resampling: Resampling) -> tuple[Tensor, Tensor]:
    """Return what resamples rows and columns of a grid: (new rows, rows), (new columns, columns).

    They are the weights of PyTorch's `interpolate` as `resample` calls it, computed from numbers
    that may be known only when the graph runs.
    """
    high, wide = (number(side) for side in new)
    same = (high == old[0]) & (wide == old[1])
    found = []
    for size, length, side in ((old[0], high, new[0]), (old[1], wide, new[1])):
        place = torch.arange(side, dtype=torch.float64)
        if resampling == "bilinear":
            center = place * ((size - 1) / (length - 1).clamp(min=1))
        elif resampling == "nearest":
            center = (place * size / length).floor()
        else:
            reach = length + OFFSET * (resampling == "scaled")
            center = (place + 0.5) * (size / reach) - 0.5
        if resampling.endswith("antialiased"):
            weights = _antialiased(center, size, size / length, cubic=resampling == "antialiased")
        else:
            weights = _between(center, size, cubic=resampling in ("bicubic", "scaled"))
        identity = (place[:, None] == torch.arange(size)).double()
        found.append(torch.where(same, identity, weights).float())
    return found[0], found[1]


def _between(center: Tensor, size: int, *, cubic: bool) -> Tensor:
    """Weights of the neighbors of each place, those beyond the edge being the edge's."""
    if not cubic:
        center = center.clamp(0, size - 1)
    first, lines = center.floor(), torch.arange(size, dtype=torch.float64)
    weights = torch.zeros_like(center)[:, None] * lines
    for step in (-1, 0, 1, 2) if cubic else (0, 1):
        near = (first + step).clamp(0, size - 1)[:, None] == lines
        share = kernel((center - first - step)[:, None], cubic=cubic, sharpness=-0.75)
        weights = weights + near * share
    return weights


def _antialiased(center: Tensor, size: int, scale: Tensor, *, cubic: bool) -> Tensor:
    """Weights of all places around each one, over an area that grows with the reduction."""
    wide = scale.clamp(min=1)
    distance = (torch.arange(size, dtype=torch.float64) - center[:, None]) / wide
    weights = kernel(distance, cubic=cubic)
    return weights / weights.sum(1, keepdim=True)
