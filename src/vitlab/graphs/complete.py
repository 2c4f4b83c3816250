"""What is exported: a model with all that stands between raw pixels and probabilities."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.data.labels import kind_of
from vitlab.errors import OptionError
from vitlab.graphs.inside.any_size import fixed, follow_size
from vitlab.graphs.inside.raw_pixels import Pixels
from vitlab.models.fuse import fuse
from vitlab.models.model import Model

BATCH = 2  # of the images that a graph is traced with; other numbers follow


@dataclass(frozen=True)
class Traceable:
    """A module, what it is traced with, and what may differ later.

    Attributes:
        module: in evaluation mode
        example: its one input
        free: names of the axes of the input that may have any size, by their numbers; `16*rows`
            for one that is a multiple of 16
        input: name of the input
        outputs: names of the outputs
    """

    module: nn.Module
    example: Tensor
    free: dict[int, str]
    input: str
    outputs: tuple[str, ...]


class Complete(nn.Module):
    """Raw images to probabilities: uint8 (B, rows, columns, channels) -> (B, classes).

    Pixels are prepared as `vitlab.preprocess` does it, logits are divided by the temperature, and
    become probabilities that sum to one, or one for each class by itself where images have several
    labels. A model without a classifier gives its features. One that knows how far images are from
    its training images gives that too, (B,).
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.pixels, self.model = Pixels(model.config.images), fuse(model)
        self.several = kind_of(model).several
        self.classes, self.temperature = model.config.classes, model.temperature

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Classify images of one size, or compute their features."""
        features = self.model.features(self.pixels(image))
        if not self.classes:
            return features
        logits = self.model.scores(features) / self.temperature
        found = logits.sigmoid() if self.several else logits.softmax(-1)
        unlike = self.model.unlike
        return found if unlike is None else (found, unlike.distances(features))


class Bare(nn.Module):
    """Normalized images to logits: (B, channels, H, W) -> (B, classes), or to features."""

    def __init__(self, model: Model, any_size: bool = False) -> None:
        super().__init__()
        self.model, self.classes = fuse(model), model.config.classes
        if any_size:
            follow_size(self.model)

    def forward(self, images: Tensor) -> Tensor:
        """Compute class scores, or features of a model without a classifier."""
        return self.model(images) if self.classes else self.model.features(images)


def traceable(model: Model, bare: bool = False, any_size: bool = False) -> Traceable:
    """Return what is exported of a model.

    Args:
        model: not fused
        bare: without preprocessing and probabilities: normalized images to logits
        any_size: of a bare one: for images of any size, if `fixed` says nothing against it

    Raises:
        OptionError: preprocessing or answers that cannot be part of a graph.
    """
    config = model.config
    rows, columns = config.size
    answer = "logits" if bare else "probabilities"
    outputs: tuple[str, ...] = (answer if config.classes else "features",)
    if bare:
        free, step = {0: "batch"}, config.step
        if any_size and not fixed(model):
            rows, columns = rows + step, columns + 2 * step
            prefix = f"{step}*" if step > 1 else ""
            free |= {2: f"{prefix}rows", 3: f"{prefix}columns"}
        example = torch.zeros(BATCH, config.channels, rows, columns)
        form = Bare(model, any_size=len(free) > 1)
        return Traceable(form.eval(), example, free, "images", outputs)
    check_answers(model)
    example = torch.zeros(BATCH, rows + 8, columns + 24, config.channels, dtype=torch.uint8)
    if model.unlike is not None:
        outputs = *outputs, "distance"
    free = {0: "batch", 1: "rows", 2: "columns"}
    return Traceable(Complete(model).eval(), example, free, "image", outputs)


def check_answers(model: Model) -> None:
    """Refuse a model with several answers for each image.

    Raises:
        OptionError: it says how many.
    """
    if model.config.classes and model.config.answers > 1:
        raise OptionError(
            f"{model.config.name} has {model.config.answers} answers for each image (queries), and "
            "probabilities are of one: pass --bare (bare=True) for the logits of all"
        )


def dynamic_shapes(free: dict[int, str]) -> tuple[dict[int, Any]]:
    """Return the free axes as `torch.export.export` takes them."""
    shapes: dict[int, Any] = {}
    for axis, text in free.items():
        step, _, name = text.rpartition("*")
        size = torch.export.Dim(name)
        shapes[axis] = int(step) * size if step else size
    return (shapes,)
