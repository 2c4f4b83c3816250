"""Unlike the training images: how far what a classifier sees of an image is from theirs.

The relative Mahalanobis distance: to the nearest class, less that to all classes together (Ren et
al., A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, 2021).
"""

from dataclasses import dataclass

from torch import Tensor

NAMES = ("unlike.axes", "unlike.centers", "unlike.spread", "unlike.level")  # tensors in a file


@dataclass(frozen=True, eq=False)
class Unlike:
    """What a classifier keeps of the features of its training images, all float32.

    Attributes:
        axes: (features, k), along which images have the variance 1 within their class
        centers: (1 + classes, k), along these the mean of all images, then that of each class
        spread: (k,), the variances of all images
        level: (2,), the least distance of images of the same kind, and one that few of them exceed
    """

    axes: Tensor
    centers: Tensor
    spread: Tensor
    level: Tensor

    def distances(self, features: Tensor) -> Tensor:
        """Return how far images are from the training images, (B, features) -> (B,).

        The least distance of images of the same kind is 0; above 1 an image is unlike them.
        """
        level = self.level.to(features)
        return ((self.relative(features) - level[0]) / (level[1] - level[0])).clamp(min=0)

    def relative(self, features: Tensor) -> Tensor:
        """Return the relative Mahalanobis distances, squared: (B, features) -> (B,)."""
        axes, centers, spread, _ = (each.to(features) for each in self.tensors.values())
        places, own = features @ axes - centers[0], centers[1:] - centers[0]
        nearest = (own.square().sum(1) - 2 * places @ own.T).amin(1)
        return nearest + places.square() @ (1 - 1 / spread)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors, by their names in a file."""
        return dict(zip(NAMES, vars(self).values(), strict=True))
