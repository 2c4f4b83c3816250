"""How alike two layers represent the same images."""

from collections.abc import Iterable, Iterator
from itertools import zip_longest

import torch
from torch import Tensor

from vitlab.device import exact
from vitlab.errors import OptionError
from vitlab.inspect.passes import entering
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

FEWEST = 4  # images of a batch: the estimate divides by n - 3
CONSTANT = 1e-7  # of a layer's length: what varies less from image to image is rounding


@torch.inference_mode()
def cka(
    model: Model,
    images: Tensor | Iterable[Tensor],
    other: Model | None = None,
    *,
    other_images: Tensor | Iterable[Tensor] | None = None,
) -> Tensor:
    """Compare the layers of two models, or of one, by linear centered kernel alignment.

    What a layer makes of an image, all its tokens or its whole map, is one vector. The products of
    these vectors within a batch are compared by the unbiased estimator of HSIC, and summed over
    batches, so that images need not be in memory together. Sources: Kornblith et al., Similarity
    of Neural Network Representations Revisited, 2019; Nguyen et al., Do Wide and Deep Networks
    Learn the Same Things?, 2021, equations 2 and 3.

    Args:
        model: any; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W), or batches of them, of at least 4 images each
        other: the model to compare with; None for the same one
        other_images: the same images in the same order and batches, normalized for the other model;
            None if it takes the same tensors

    Returns:
        (layers, other layers): 1 for layers that differ by a rotation and a scale, about 0 for
        unrelated ones, NaN where a layer makes the same of all images, or more of them would be
        needed to tell. Layer 0 is what enters the first block or stage.

    Raises:
        OptionError: a batch of fewer than 4 images, different numbers of images, none, or images
            that do not fit.
    """
    second = model if other is None else other
    cross, own, others = torch.zeros(0), torch.zeros(0), torch.zeros(0)
    for one, two in _pairs(images, other_images):
        if len(one) < FEWEST or len(one) != len(two):
            raise OptionError(f"each batch must be at least {FEWEST} images, the same for both")
        left = _kernels(model, one)
        right = left if second is model and two is one else _kernels(second, two)
        parts = _hsic(left, right), _hsic_own(left), _hsic_own(right)
        before = (cross, own, others) if len(cross) else [torch.zeros_like(part) for part in parts]
        cross, own, others = (a + b for a, b in zip(before, parts, strict=True))
    if not len(cross):
        raise OptionError(f"no images: give batches of at least {FEWEST}")
    scale = (own.relu()[:, None] * others.relu()[None]).sqrt()
    return (cross / scale.where(scale > 0, torch.nan)).float()


def _pairs(
    images: Tensor | Iterable[Tensor], others: Tensor | Iterable[Tensor] | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each batch with the same images for the other model."""
    left = [images] if isinstance(images, Tensor) else images
    if others is None:
        yield from ((each, each) for each in left)
        return
    right = [others] if isinstance(others, Tensor) else others
    for one, two in zip_longest(left, right):
        if one is None or two is None:
            raise OptionError("images and other_images must be as many batches")
        yield one, two


def _kernels(model: Model, images: Tensor) -> Tensor:
    """Return the products of the images' representations, (layers, B, B), without a diagonal."""
    images = entering(model, images)
    with evaluating(model):
        found = model.intermediates(images, range(model.last_layer + 1))
    rows = []
    for each in found:
        flat = exact(each.flatten(1))
        apart = flat - flat.mean(0)  # the estimate is the same without a mean, but for rounding
        if apart.norm() <= CONSTANT * flat.norm():
            apart.zero_()
        rows.append((apart @ apart.T).fill_diagonal_(0))
    return torch.stack(rows).cpu()  # the other model may be on another device


def _hsic(left: Tensor, right: Tensor) -> Tensor:
    """Estimate HSIC of each two kernels without bias: (L, B, B), (M, B, B) -> (L, M)."""
    count = left.shape[1]
    sums, others = left.sum(-1), right.sum(-1)
    trace = torch.einsum("lij,mij->lm", left, right)
    whole = sums.sum(-1)[:, None] * others.sum(-1)[None] / ((count - 1) * (count - 2))
    rows = 2 * (sums @ others.T) / (count - 2)
    return (trace + whole - rows) / (count * (count - 3))


def _hsic_own(kernels: Tensor) -> Tensor:
    """Estimate HSIC of each kernel with itself: (L, B, B) -> (L,)."""
    return _hsic(kernels, kernels).diagonal()
