"""How alike the position embeddings of two patches are."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.passes import transformer
from vitlab.models.model import Model


@torch.no_grad()
def position_similarity(model: Model, table: int = 0) -> Tensor:
    """Compute the cosine of every two patches' position embeddings (ViT paper, Figures 7 and 10).

    Args:
        model: a Vision Transformer with positions that are added to the tokens (1d, 2d, and those
            beside others within attention)
        table: of which block, where each has positions of its own (positions_at=every)

    Returns:
        (rows, columns, rows, columns): how alike the position of a patch is to that of every other,
        from -1 to 1. The class token's is left out; no mean is subtracted.

    Raises:
        OptionError: a model without such positions, or without this table.
    """
    config = transformer(model).config
    tables = transformer(model).positions
    if not 0 <= table < len(tables):
        raise OptionError(f"table must be from 0 to {len(tables) - 1}, not {table}")
    none = next(model.parameters()).new_zeros(1, config.length, config.width)
    grid = config.grid
    scheme = tables[table].at(grid)
    places = exact(scheme.place(scheme.start(none))[0, config.leading :])
    if not places.any():
        raise OptionError(
            f"{config.name} adds no positions to its tokens (positions={config.positions}): their "
            "similarity is that of 1d and 2d positions"
        )
    unit = F.normalize(places, dim=1)
    return (unit @ unit.T).unflatten(1, grid).unflatten(0, grid).float()
