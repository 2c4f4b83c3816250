"""One number for each patch of an image: how long its token is, and how alike to another one."""

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.passes import dense
from vitlab.models.model import Model


@torch.inference_mode()
def norm_map(model: Model, images: Tensor, *, layer: int | None = None) -> Tensor:
    """Compute the length of each patch's token, as a map.

    In large models without registers a few patches, most of them background, have by far the
    longest tokens (Darcet et al., Vision Transformers Need Registers, 2024, Figures 2 and 3).

    Args:
        model: any; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        layer: the block or stage whose output is taken, 0 for the input of the first one; None for
            the last one. In any case before the final norm, which makes most tokens equally long

    Returns:
        (B, rows, columns), in the units of the tokens; of a ResNet, on the grid of that stage.

    Raises:
        OptionError: images that do not fit, or a layer that the model does not have.
    """
    found = dense(model, images, model.last_layer if layer is None else layer)
    return found.map.float().norm(dim=1)


@torch.inference_mode()
def similar_patches(
    model: Model, images: Tensor, token: int, *, layer: int | None = None
) -> Tensor:
    """Compute how alike each patch is to one token: the cosine of their features.

    Args:
        model: any; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)
        token: its number from 0: class token and registers first, then patches in raster order
        layer: the block or stage whose output is taken, 0 for the input of the first one; None for
            the last one, after the final norm

    Returns:
        (B, rows, columns), from -1 to 1; of a ResNet, on the grid of that stage.

    Raises:
        OptionError: images that do not fit, or a layer or token that the model does not have.
    """
    places, prefix = dense(model, images, layer)
    patches = F.normalize(exact(places), dim=1)  # (B, D, rows, columns)
    tokens = torch.cat([F.normalize(exact(prefix), dim=2), patches.flatten(2).mT], 1)
    if not 0 <= token < tokens.shape[1]:
        raise OptionError(f"token must be from 0 to {tokens.shape[1] - 1}, not {token}")
    return torch.einsum("bdij,bd->bij", patches, tokens[:, token]).clamp(-1, 1).float()
