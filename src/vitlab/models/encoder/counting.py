"""What the blocks of a model have and cost."""

from collections.abc import Sequence

from torch import nn

from vitlab.models.encoder.block import Block
from vitlab.models.layers import NORMS, params_of
from vitlab.models.model import Part


def block_parts(
    blocks: Sequence[Block], outer: Sequence[nn.Module], tokens: int, within: int
) -> list[Part]:
    """Count attention, MLP and norms.

    Multiply-adds are those of matrix products, and one per element for each norm.

    Args:
        blocks: of the encoder
        outer: norms before and after them, or identities
        tokens: of an image
        within: multiply-adds of the positions within attention
    """
    attention = [branch for block in blocks for branch in block.attention]
    mlp = [branch for block in blocks for branch in block.mlp]
    attending = params_of(*(branch.body for branch in attention))
    mixing = params_of(*(branch.body for branch in mlp))
    norms = [*outer, *(norm for block in blocks for norm in block.norms())]
    normed = sum(each.normalized_shape[0] for each in norms if isinstance(each, NORMS))
    beside = params_of(*attention, *mlp, *outer) - attending - mixing  # with LayerScale
    return [
        Part("attention", attending, sum(b.body.macs(tokens) for b in attention) + within),
        Part("MLP", mixing, sum(branch.body.macs(tokens) for branch in mlp)),
        Part("norms", beside, tokens * normed),
    ]
