"""What becomes of the tokens from block to block: their norms, and how alike they grow."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.inspect.passes import transformer
from vitlab.models.layers import evaluating
from vitlab.models.model import Model


@torch.inference_mode()
def token_norms(model: Model, images: Tensor) -> Tensor:
    """Compute the length of every token after every block.

    Some patches of large models have tokens many times as long as the others', which registers
    cure (Darcet et al., Vision Transformers Need Registers, 2024, section 2.1).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)

    Returns:
        (B, layers + 1, prefix + patches): layer 0 is what enters the first block; before the final
        norm.

    Raises:
        OptionError: a ResNet, or images of another shape.
    """
    return torch.stack([tokens.norm(dim=-1) for tokens in _layers(model, images)], dim=1)


@torch.inference_mode()
def token_similarity(model: Model, images: Tensor) -> Tensor:
    """Compute how alike the patches' tokens of an image are after every block.

    The mean cosine of two different patches' tokens: it nears 1 where a model over-smooths (Zhou
    et al., DeepViT, 2021, section 3).

    Args:
        model: a Vision Transformer; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W), of at least two patches

    Returns:
        (B, layers + 1), from -1 to 1: layer 0 is what enters the first block.

    Raises:
        OptionError: a ResNet, or images of another shape.
    """
    prefix, rows = transformer(model).config.prefix, []
    for tokens in _layers(model, images):
        unit = F.normalize(tokens[:, prefix:].double(), dim=-1)
        count = unit.shape[1]
        same = unit.sum(1).square().sum(-1) - count  # the sum of all cosines but those with itself
        rows.append((same / (count * (count - 1))).float())
    return torch.stack(rows, dim=1)


def _layers(model: Model, images: Tensor) -> list[Tensor]:
    """Return the tokens that enter the first block and that leave each, (B, N, D)."""
    seer = transformer(model)
    with evaluating(model):
        return seer.intermediates(images, range(len(seer.blocks) + 1))
