"""Unlike the training images: how far what a model sees of an image is from theirs.

The Mahalanobis distance to the nearest class (Lee et al., A Simple Unified Framework for Detecting
Out-of-Distribution Samples, 2018), of the features of a layer halfway up.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

SHARE = 0.5  # of the depth: the layer that is looked at (docs/features.md)
FOUND = (  # in docs/features.md
    "in measured pairs the threshold found 72% to 100% of images of other kinds, 5% to 36% of "
    "other classes of one kind, and 0% to 47% with 25 training images"
)
PREFIX = "unlike."  # of the names of tensors in a file


@dataclass(frozen=True, eq=False)
class Unlike:
    """What a classifier keeps of its training images, all float32 but the layer.

    Inner features, (B, inner), are the class token, or else the mean over the places, of a layer.

    Attributes:
        layer: its number, as `Model.intermediates` counts them
        middle: (inner,), the mean of all images
        axes: (inner, k), orthonormal: those along which images of a class differ most
        scales: (k + 1,), what images are multiplied by along these, and along all others, so that
            those of a class have the variance 1
        centers: (classes, inner), the mean of each class, less the middle, scaled so
        limit: (1,), a distance that few images of the same kind exceed
    """

    layer: int
    middle: Tensor
    axes: Tensor
    scales: Tensor
    centers: Tensor
    limit: Tensor

    def distances(self, inner: Tensor) -> Tensor:
        """Return how far images are from the training images, (B, inner) -> (B,).

        Above 1 an image is unlike them.
        """
        return self.raw(inner) / self.limit.to(inner)

    def raw(self, inner: Tensor) -> Tensor:
        """Return the Mahalanobis distances to the nearest class: (B, inner) -> (B,)."""
        middle, axes, scales, centers, _ = (each.to(inner) for each in self.numbers())
        places = inner - middle
        places = places * scales[-1] + ((places @ axes) * (scales[:-1] - scales[-1])) @ axes.T
        squares = places.square().sum(1, keepdim=True) + centers.square().sum(1)
        return (squares - 2 * places @ centers.T).amin(1).clamp(min=0).sqrt()

    def numbers(self) -> list[Tensor]:
        """Return all but the layer, in their order."""
        return [getattr(self, each.name) for each in fields(self)[1:]]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by their names in a file."""
        whole = [torch.tensor([self.layer]), *self.numbers()]
        return dict(zip(NAMES, whole, strict=True))


NAMES = tuple(PREFIX + each.name for each in fields(Unlike))  # tensors in a file
OLD = "unlike.level"  # of the distance that models had before, which is left out


def layer_of(last: int) -> int:
    """Return the layer that is looked at, of a model with so many."""
    return max(1, round(SHARE * last))
