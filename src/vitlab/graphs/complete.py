"""The complete model for export: all that stands between raw pixels and probabilities."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.evaluation.infer import probabilities
from vitlab.graphs.raw_pixels import Pixels
from vitlab.models.fuse import fuse
from vitlab.models.model import Model

BATCH = 2  # of the images that a graph is traced with; other numbers follow


@dataclass(frozen=True)
class Traceable:
    """A module, what it is traced with, and what may differ later.

    Attributes:
        module: in evaluation mode
        example: its one input
        free: names of the axes of the input that may have any size, by their numbers
        input: name of the input
        outputs: names of the outputs
        inner: names of what the module has besides in its `answers`, which is compared too
    """

    module: nn.Module
    example: Tensor
    free: dict[int, str]
    input: str
    outputs: tuple[str, ...]
    inner: tuple[str, ...] = ()


class NamedAnswers(nn.Module):
    """Some of the answers of a module, by their names, in one pass."""

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.names = module, names
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute them."""
        found = self.module.answers(images)  # type: ignore[operator]
        return tuple(found[name] for name in self.names)


class Complete(nn.Module):
    """Raw images to probabilities: uint8 (B, rows, columns, channels) -> (B, classes).

    Pixels are prepared as `vitlab.preprocess` does it; then come features, and logits, which are
    divided by the temperature, and become probabilities that sum to one, or one for each class by
    itself where images have several labels. A model that knows how far images are from its training
    images gives that too, (B,); one without a classifier gives its features.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.pixels = fuse(model), Pixels(model.config.images)

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Classify images of one size, or compute their features."""
        found = self.answers(image)
        if "probabilities" not in found:
            return found["features"]
        if "distance" not in found:
            return found["probabilities"]
        return found["probabilities"], found["distance"]

    def answers(self, image: Tensor) -> dict[str, Tensor]:
        """Compute features, and of a classifier logits, probabilities and perhaps distances."""
        features, inner = self.model.judge(self.pixels(image))
        found = {"features": features}
        if not self.model.config.classes:
            return found
        found["logits"] = self.model.scores(features)
        found["probabilities"] = probabilities(found["logits"], self.model)
        if self.model.unlike is not None and inner is not None:
            found["distance"] = self.model.unlike.distances(inner)
        return found


class Bare(nn.Module):
    """Normalized images to logits, (B, channels, H, W) -> (B, classes), or to features."""

    def __init__(self, model: Model, *, trunk: bool = False) -> None:
        super().__init__()
        self.model, self.scored = fuse(model), bool(model.config.classes) and not trunk

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Compute class scores, or features and what says how far images are, if they do."""
        if self.scored:
            return self.model(images)
        features, inner = self.model.judge(images)
        return features if inner is None else (features, inner)

    def answers(self, images: Tensor) -> dict[str, Tensor]:
        """Compute features, and of a classifier class scores."""
        features = self.model.features(images)
        return {"features": features} | (
            {"logits": self.model.scores(features)} if self.scored else {}
        )


def traceable(model: Model, bare: bool = False, *, batch: int = 0) -> Traceable:
    """Return what is exported of a model.

    Args:
        model: not fused
        bare: without preprocessing and probabilities: normalized images to logits
        batch: images in every batch; 0 for any number

    Raises:
        OptionError: preprocessing or answers that cannot be part of a graph.
    """
    config = model.config
    rows, columns = config.size
    free, count = ({}, batch) if batch else ({0: "batch"}, BATCH)
    scores = "logits" if bare else "probabilities"
    outputs: tuple[str, ...] = (scores if config.classes else "features",)
    if bare:
        example = torch.zeros(count, config.channels, rows, columns)
        inner: tuple[str, ...] = ("features",) if config.classes else ()
        return Traceable(Bare(model).eval(), example, free, "images", outputs, inner)
    if config.classes and config.answers > 1:
        raise OptionError(
            f"{config.name} has {config.answers} answers for each image (queries), and "
            "probabilities are of one: pass --bare (bare=True) for the logits of all"
        )
    example = torch.zeros(count, rows + 8, columns + 24, config.channels, dtype=torch.uint8)
    if model.unlike is not None and config.classes:
        outputs = *outputs, "distance"
    free |= {1: "rows", 2: "columns"}
    inner = ("features", "logits") if config.classes else ()
    return Traceable(Complete(model).eval(), example, free, "image", outputs, inner)


def dynamic_shapes(free: dict[int, str]) -> tuple[dict[int, Any]]:
    """Return the free axes as `torch.export.export` takes them."""
    return ({axis: torch.export.Dim(name) for axis, name in free.items()},)
