"""The segmenter: a model, a linear classifier of its patches, and the file of that classifier.

As DINOv2's linear protocol (dinov2/eval/segmentation): the patch tokens of one layer, or of the
last few one after the other, each after the final norm; one linear layer; class scores resized
bilinearly to the pixels of the input. A run keeps the model as any other does, in `model/`, and the
classifier in `segment.safetensors`, with the checksums of both.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.data.masks import MaskClasses
from vitlab.errors import WeightsError
from vitlab.files import SEGMENT, staged_file
from vitlab.models.model import Model
from vitlab.weights.containers.open import open_source
from vitlab.weights.identity import checksum, checksums, fingerprint
from vitlab.weights.load import load
from vitlab.weights.sharded import Fields

NOTHING = "run vitlab probe DATA --task segment first"


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
        features = patch_features(self.model, images, self.about.layers)
        return F.conv2d(features, self.weight[:, :, None, None], self.bias)

    def save(self, run: Path) -> None:
        """Write the classifier into a run, whose model is saved.

        Raises:
            DiskError: it cannot be written.
        """
        tensors = {name: getattr(self, name).detach().cpu() for name in ("weight", "bias")}
        about = asdict(self.about) | {
            "model": fingerprint(self.model),
            "sha256": checksums(tensors),
        }
        with staged_file(run / SEGMENT) as draft:
            text = json.dumps(about | {"checksum": checksum(about)})
            save_file(tensors, draft, metadata={"about": text})  # several have no fixed order


def patch_features(model: Model, images: Tensor, layers: tuple[int, ...]) -> Tensor:
    """Compute the patch tokens of layers, one after the other: (B, features, rows, columns)."""
    found = model.intermediates(images, layers, norm=True, maps=True)
    return torch.cat([each.map for each in found], 1)


def load_segmenter(run: str | Path) -> Segmenter:
    """Load the segmenter of a run of `--task segment`.

    Raises:
        WeightsError: none is there, or it is damaged or of another model.
    """
    file = Path(run) / SEGMENT
    if not file.is_file():
        raise WeightsError(f"{run} has no {SEGMENT}: {NOTHING}")
    source, model = open_source(file), load(run)
    try:
        about = json.loads(source.metadata["about"])
        given = about.pop("checksum")
        whole = checksum(about) == given
        base, sums = about.pop("model"), about.pop("sha256")
        fields: Fields = {
            key: tuple(each) if isinstance(each, list) else each for key, each in about.items()
        }
        known = DenseClasses(**fields)
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{file} does not describe a segmenter: {error!r}") from None
    tensors: Fields = {name: source.read(name, exact=True) for name in ("weight", "bias")}
    if not whole or checksums(tensors) != sums:
        raise WeightsError(f"{file} does not match its checksum: copy it again")
    if fingerprint(model) != base:
        raise WeightsError(f"{file} is of another model than {run}/model: copy the run again")
    return Segmenter(model, known, **tensors)
