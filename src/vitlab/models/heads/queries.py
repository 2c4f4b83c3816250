"""Learned queries: further tokens, which join those of an image in a ViT's last blocks.

EoMT's way (Kerssies et al., Your ViT is secretly an image segmentation model, 2025), for boxes
(detect.py) and for masks (segment.py). Queries have no positions.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.layers import reset_xavier
from vitlab.models.model import Model
from vitlab.models.positions.positions import check_extra
from vitlab.models.vit import VisionTransformer
from vitlab.values import shown

MOST = 100_000  # queries


def leaving(
    model: Model, images: Tensor, queries: Tensor, blocks: int, under: Tensor | None = None
) -> Iterator[Tensor]:
    """Yield the tokens that leave each of the last blocks, after the final norm.

    Args:
        model: as `check_queries` has it
        images: normalized, (B, channels, H, W)
        queries: learned, (Q, width)
        blocks: the last ones, which queries pass
        under: numbers of tokens, (Q,), which are added to the queries as they join

    Yields:
        (B, prefix + patches + Q, width), the queries last.
    """
    assert isinstance(model, VisionTransformer)
    tokens, positions = model.begin(images)
    first = len(model.blocks) - blocks
    for number, (block, own) in enumerate(zip(model.blocks, positions, strict=True)):
        if number == first:
            each = queries.expand(tokens.shape[0], -1, -1)  # `len` would fix it in a graph
            begun = each if under is None else tokens[:, under] + each
            tokens = torch.cat([tokens, begun.to(tokens.dtype)], 1)
        tokens = block(own.place(tokens), own)
        if number >= first:
            yield model.head.norm(model.norm(tokens))


def three_layers(width: int, outputs: int) -> nn.Sequential:
    """Return the perceptron that reads a box or a mask from a query."""
    layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs))


def reset_queries(
    head: nn.Module, queries: Tensor, generator: torch.Generator | None = None
) -> None:
    """Draw the queries of a head and its linear layers."""
    nn.init.normal_(queries, std=0.05, generator=generator)
    layers = [each for each in head.modules() if isinstance(each, nn.Linear)]
    reset_xavier([(each, 1) for each in layers], generator)


def check_query_counts(queries: int, blocks: int) -> None:
    """Refuse counts that no head has.

    Raises:
        OptionError: none or very many queries, or no blocks.
    """
    if not 1 <= queries <= MOST:
        raise OptionError(f"queries={shown(queries)}, but a head has 1 to {MOST:,}")
    if blocks < 1:
        raise OptionError(f"queries pass {shown(blocks)} blocks, but at least 1 is needed")


def check_queries(config: ModelConfig, queries: int, blocks: int, what: str) -> None:
    """Refuse a model whose blocks queries cannot pass.

    Raises:
        OptionError: the message says what would work.
    """
    if not isinstance(config, ViTConfig):
        raise OptionError(f"{what} needs a Vision Transformer, such as ViT-S/16, not {config.name}")
    if blocks > config.depth:
        raise OptionError(
            f"query_blocks={shown(blocks)}, but {config.name} has {config.depth}: choose fewer"
        )
    with torch.device("meta"):
        positions = VisionTransformer(config).positions[0]
        check_extra(torch.empty(1, queries, config.width), config, positions)
