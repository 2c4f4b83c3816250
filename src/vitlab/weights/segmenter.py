"""The segmenter: a model, a linear classifier of its patches, and the file of that classifier.

As DINOv2's linear protocol (dinov2/eval/segmentation): the patch tokens of one layer, or of the
last few one after the other, each after the final norm; one linear layer; class scores resized
bilinearly to the pixels of the input. A run keeps the model as any other does, in `model/`, and the
classifier in `segment.safetensors`, with the checksums of both.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.masks import MaskClasses
from vitlab.errors import DataError
from vitlab.files import SEGMENT
from vitlab.images import ImageSpec
from vitlab.models.model import Model
from vitlab.weights.beside import load_beside, read_beside, save_beside

COMMAND = "vitlab probe DATA --task segment"


@dataclass(frozen=True)
class DenseClasses(MaskClasses):
    """What a segmenter's outputs are, and how images are brought to it.

    Attributes:
        classes: names, in the order of the outputs
        values: the number of each class in a mask
        ignored: the number of pixels that do not count; None for none
        layers: whose patch tokens are seen, as `Model.intermediates` counts them
        scale: the shorter side of a resized image, in sides of the input; windows slide over it
    """

    layers: tuple[int, ...] = ()
    scale: float = 1.0


class Segmenter(nn.Module):
    """Class scores of every pixel: normalized (B, channels, H, W) -> (B, classes, H, W).

    Attributes:
        model: whose patch tokens are classified
        about: its classes and layers
        weight: of the linear layer, (classes, features); bias: (classes,)
    """

    def __init__(self, model: Model, about: DenseClasses, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.model, self.about = model, about
        self.weight = nn.Parameter(weight.float().contiguous())
        self.bias = nn.Parameter(bias.float())
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores of every pixel."""
        scores = self.coarse(images)
        return F.interpolate(scores, images.shape[2:], mode="bilinear", align_corners=False)

    def coarse(self, images: Tensor) -> Tensor:
        """Compute class scores of every patch: (B, classes, rows, columns)."""
        return patch_scores(self.model, images, self.about, self.weight, self.bias)

    def save(self, run: Path) -> None:
        """Write the classifier into a run, whose model is saved.

        Raises:
            DiskError: it cannot be written.
        """
        tensors = {name: getattr(self, name) for name in ("weight", "bias")}
        save_beside(run / SEGMENT, self.model, asdict(self.about), tensors)


def patch_scores(
    model: Model, images: Tensor, about: DenseClasses, weight: Tensor, bias: Tensor
) -> Tensor:
    """Compute class scores of every patch by a linear layer: (B, classes, rows, columns)."""
    features = patch_features(model, images, about.layers)
    return F.conv2d(features, weight[:, :, None, None], bias)


def patch_features(model: Model, images: Tensor, layers: tuple[int, ...]) -> Tensor:
    """Compute the patch tokens of layers, one after the other: (B, features, rows, columns)."""
    found = model.intermediates(images, layers, norm=True, maps=True)
    return torch.cat([each.map for each in found], 1)


def load_segmenter(run: str | Path) -> Segmenter:
    """Load the segmenter of a run of `--task segment`.

    Raises:
        WeightsError: none is there, or it is damaged or of another model.
    """
    model, known, tensors = load_beside(run, SEGMENT, DenseClasses, COMMAND)
    return Segmenter(model, known, **tensors)


def check_spec(spec: ImageSpec) -> None:
    """Refuse models whose images keep their own size.

    Raises:
        DataError: it is such a model.
    """
    if spec.fit == "native":
        raise DataError("segmentation slides windows of one size: not with fit=native")


def read_layer(run: str | Path) -> tuple[DenseClasses, dict[str, Tensor]]:
    """Return what the segmenter of a run is, and its linear layer: weight and bias.

    Raises:
        WeightsError: none is there, or it is damaged.
    """
    return read_beside(run, SEGMENT, DenseClasses, COMMAND)[:2]
