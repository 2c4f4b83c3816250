"""Masks of iBOT: in half of the large crops, a random share of the patches is hidden."""

import torch
from torch import Tensor

from vitlab.models.packed import Grid
from vitlab.objectives.masks import block_mask
from vitlab.objectives.per_sample_rng import Draws, EachImage, uniform

MASKED, RATIO = 0.5, (0.1, 0.5)  # share of the images with hidden patches, and of these patches


@torch.compiler.disable  # type: ignore[untyped-decorator]  # no generator in a graph
def hidden_by_chance(grid: Grid, images: int, draws: Draws) -> Tensor:
    """Draw the hidden patches of some crops, (images, P) bool."""
    patches, (least, most) = grid[0] * grid[1], RATIO
    counts = [
        round((least + (most - least) * share) * patches) if chance < MASKED else 0
        for chance, share in uniform(draws, images, 2).tolist()
    ]
    sources = draws.sources if isinstance(draws, EachImage) else [draws] * images
    pairs = zip(counts, sources, strict=True)
    return torch.stack([block_mask(*grid, count, source).flatten() for count, source in pairs])
