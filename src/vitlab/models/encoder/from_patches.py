"""All tokens from patch tokens: what a pretext task calls that changes some of them first."""

from torch import Tensor

from vitlab.models.packed import Grid
from vitlab.models.vit import VisionTransformer


def encode_patches(model: VisionTransformer, patches: Tensor, grid: Grid) -> Tensor:
    """Compute all tokens from patch tokens, as `model.encode` does after the stem.

    Args:
        model: the encoder
        patches: as its stem gives them, perhaps changed: (B, rows * columns, D)
        grid: rows and columns of patches

    Returns:
        (B, prefix + patches, D), after the final norm where it is on tokens.
    """
    tokens, steps = model.begin(patches, grid)
    for block, placed in steps:
        tokens = block(placed.place(tokens), placed.layout)
    return model.finish(tokens, grid)
