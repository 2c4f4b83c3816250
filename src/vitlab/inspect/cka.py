"""How alike two layers represent the same images."""

from collections.abc import Iterable

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.inspect.passes import last_layer
from vitlab.models.layers import evaluating
from vitlab.models.model import Model

FEWEST = 4  # images of a batch: the estimate divides by n - 3


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
        unrelated ones. Layer 0 is what enters the first block or stage.

    Raises:
        OptionError: a batch of fewer than 4 images, different numbers of images, or none.
    """
    second = model if other is None else other
    pairs = zip(
        _batches(images), _batches(images if other_images is None else other_images), strict=True
    )
    cross, own, others = torch.zeros(0), torch.zeros(0), torch.zeros(0)
    for one, two in pairs:
        if len(one) < FEWEST or len(one) != len(two):
            raise OptionError(f"each batch must be at least {FEWEST} images, the same for both")
        left = _kernels(model, one)
        right = left if second is model and two is one else _kernels(second, two)
        parts = _hsic(left, right), _hsic_own(left), _hsic_own(right)
        before = (cross, own, others) if len(cross) else [torch.zeros_like(part) for part in parts]
        cross, own, others = (a + b for a, b in zip(before, parts, strict=True))
    if not len(cross):
        raise OptionError("no images: give batches of at least 4")
    return (cross / (own[:, None] * others[None]).clamp(min=1e-30).sqrt()).float()


def _batches(images: Tensor | Iterable[Tensor]) -> Iterable[Tensor]:
    return [images] if isinstance(images, Tensor) else images


def _kernels(model: Model, images: Tensor) -> Tensor:
    """Return the products of the images' representations, (layers, B, B), without a diagonal."""
    with evaluating(model):
        found = model.intermediates(images, range(last_layer(model) + 1))
    rows = []
    for each in found:
        flat = each.flatten(1).double()
        rows.append((flat @ flat.T).fill_diagonal_(0))
    return torch.stack(rows)


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
