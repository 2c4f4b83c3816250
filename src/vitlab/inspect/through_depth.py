"""What becomes of the tokens from block to block: their norms, and how alike they grow."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.passes import entering
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.tokenizers.tokenizer import Tokenizer


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
        OptionError: a ResNet or a tokenizer, or images that do not fit.
    """
    if isinstance(model, ResNet | Tokenizer):
        raise OptionError(
            f"the maps of {model.config.name} differ in size from stage to stage: "
            "vitlab.inspect.norm_map shows one of them"
        )
    images, layers = entering(model, images), range(model.last_layer + 1)
    with evaluating(model):
        found = model.intermediates(images, layers)
    return torch.stack([tokens.norm(dim=-1) for tokens in found], dim=1)


@torch.inference_mode()
def token_similarity(model: Model, images: Tensor) -> Tensor:
    """Compute how alike the patches' tokens of an image are after every block.

    The mean cosine of two different patches' tokens: it nears 1 where a model over-smooths (Zhou
    et al., DeepViT, 2021, section 3). The places of a ResNet's map are its patches.

    Args:
        model: any; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)

    Returns:
        (B, layers + 1), from -1 to 1: layer 0 is what enters the first block or stage. NaN where a
        layer has one patch only.

    Raises:
        OptionError: images that do not fit.
    """
    images, layers = entering(model, images), range(model.last_layer + 1)
    with evaluating(model):
        found = model.intermediates(images, layers, maps=True)
    rows = []
    for each in found:
        unit = F.normalize(exact(each.map.flatten(2)), dim=1)  # (B, D, patches)
        count = unit.shape[2]
        same = unit.sum(2).square().sum(1) - unit.square().sum((1, 2))  # with themselves
        rows.append((same / (count * (count - 1) or torch.nan)).float())
    return torch.stack(rows, dim=1)
