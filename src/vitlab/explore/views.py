"""A model on the page: its views of an image, one number per patch, and how it says them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.labels import kind_of
from vitlab.errors import OptionError, WeightsError
from vitlab.evaluation.segmentation import DEEP, voc_palette
from vitlab.explore.first_pass import (
    FirstPass,
    attention_bytes,
    has_classes,
    layer_names,
    prefix_names,
)
from vitlab.inspect.evidence import Gradients, Square
from vitlab.inspect.tokens import likeness
from vitlab.models.config import ViTConfig
from vitlab.models.model import DenseFeatures, Model
from vitlab.units import storage
from vitlab.weights.segmenter import Segmenter

MOST_ATTENTION = 2**30  # bytes of one image's
BY_GRADIENT = ("relevance", "gradcam")
UNITS = {
    "late": "share of what the last three layers bring to the classifier",
    "rollout": "share of what reaches the classifier",
    "relevance": "relevance to the class, no unit",
    "gradcam": "evidence for the class, no unit",
    "similarity": "cosine",
    "norms": "length of the token, no unit",
}
VIEWS = ("attention", "late", "rollout", "colors", *list(UNITS)[2:])
TOP = 5  # classes of a prediction


@dataclass(frozen=True, eq=False)
class Shown:
    """A model on the page.

    Attributes:
        name: as the page calls it
        model: in evaluation mode, on its device
        why_not: of each view, why the model does not have it; empty if it does
        segmenter: around the model, of a run that segments
    """

    name: str
    model: Model
    why_not: dict[str, str]
    segmenter: Segmenter | None = None

    @classmethod
    def of(
        cls, name: str, model: Model, device: torch.device, segmenter: Segmenter | None = None
    ) -> "Shown":
        """Take over a model, and the segmenter around it.

        Raises:
            WeightsError: the temperature or thresholds saved with it are damaged.
        """
        own = model.to(device).eval().requires_grad_(False)
        if segmenter is not None:
            segmenter.to(device).requires_grad_(False)
        masks = {} if segmenter is None else {"mask": ""}
        shown = cls(name, own, why_not(own) | masks, segmenter)
        shown.described()
        return shown

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        config = self.model.config
        return config.prefix if isinstance(config, ViTConfig) else 0

    def described(self) -> dict[str, Any]:
        """Return what the page is told."""
        config, several = self.model.config, kind_of(self.model).several
        return {
            "name": self.name,
            "notation": config.name,
            "classes": list(config.class_names),
            "image_size": list(config.size),
            "patch": config.patch if isinstance(config, ViTConfig) else None,
            "temperature": self.model.temperature,
            "several": several,
            "thresholds": list(self.model.thresholds) if several else [],
            "views": self.why_not,
        }

    def of_pass(self, seen: FirstPass) -> dict[str, Any]:
        """Return what the page is told about an image's first pass."""
        config, attention = self.model.config, seen.attention
        found = {
            "top": self.top(seen.probabilities),
            "box": list(seen.box),
            "grid": list(seen.grid),
            "prefix": prefix_names(config) if isinstance(config, ViTConfig) else [],
            "layers": layer_names(config) if attention and isinstance(config, ViTConfig) else [],
            "heads": len(attention[0][1]) if attention else 0,
            "tokens": self.prefix + seen.grid[0] * seen.grid[1],
            "depth": len(seen.layers) - 1,
        }
        return found | ({"pool": len(seen.pool[0][1])} if seen.pool else {})

    def top(self, probabilities: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Return the likeliest classes, best first; those that are not numbers are left out."""
        names = self.model.config.class_names
        best = [n for n in np.argsort(-probabilities, kind="stable") if probabilities[n] >= 0]
        return [
            {"class": int(n), "name": names[n], "probability": float(probabilities[n])}
            for n in best[:TOP]
        ]

    def label(self, seen: FirstPass, label: int | None) -> int:
        """Return the class that is asked about, the likeliest without one.

        Raises:
            OptionError: there is no such class.
        """
        if label is None:
            return int(np.argmax(seen.probabilities))
        if not 0 <= label < self.model.config.classes:
            raise OptionError(f"class {label}: choose from 0 to {self.model.config.classes - 1}")
        return label


def why_not(model: Model) -> dict[str, str]:
    """Return for each view why a model does not have it, in one line; empty where it does."""
    config, found = model.config, dict.fromkeys(VIEWS, "")
    if not isinstance(config, ViTConfig):
        found |= dict.fromkeys(
            ("attention", "late", "rollout", "relevance"), f"{config.name} has no attention"
        )
    elif (size := attention_bytes(config)) > MOST_ATTENTION:
        much = f"the attention of an image would take {storage(size)}: too much to keep"
        found |= dict.fromkeys(("attention", "late", "rollout"), much)
    reason = f"{config.name} has no classifier, and so no class to explain"
    if config.classes and config.answers > 1:
        reason = f"{config.name} scores the classes once per query, not once per image"
    if not has_classes(model):
        found |= dict.fromkeys(("relevance", "gradcam"), reason)
    return found


def of_pass(seen: FirstPass, kind: str, layer: int | None, token: int) -> Tensor:
    """Return a view that the first pass has all for, (rows, columns).

    Args:
        seen: an image
        kind: late, rollout, norms or similarity
        layer: of a rollout the last one that is followed, from 1; else as `model.intermediates`
            counts. None for the last one
        token: that others are compared with: prefix tokens first, then patches in raster order; of
            a ResNet, whose layers have different grids, a cell of the last one, which stands for
            that around its center

    Raises:
        OptionError: there is no such layer or token.
    """
    if kind == "late" and seen.late is not None:
        return seen.late
    if kind == "rollout":
        number = len(seen.rollouts) if layer is None else layer
        if not 1 <= number <= len(seen.rollouts):
            raise OptionError(f"layer {number}: choose from 1 to {len(seen.rollouts)}")
        return seen.rollouts[number - 1]
    found = of_layer(seen, len(seen.layers) - 1 if layer is None else layer)
    if kind == "norms":
        return found.map[0].norm(dim=0)
    prefix, (rows, columns) = found.prefix.shape[1], seen.grid
    if not 0 <= token < prefix + rows * columns:
        raise OptionError(f"token {token} of {prefix + rows * columns}: they are counted from 0")
    if token >= prefix:
        row, column = divmod(token - prefix, columns)
        high, wide = found.map.shape[-2:]
        down, across = (2 * row + 1) * high // (2 * rows), (2 * column + 1) * wide // (2 * columns)
        token = prefix + down * wide + across
    return likeness(found, token)[0]


@torch.inference_mode()
def mask_of(segmenter: Segmenter, seen: FirstPass) -> dict[str, Any]:
    """Return the class of each pixel that a model sees, (rows, columns), names and colors.

    The colors are those of the report: VOC's, none of them black.

    Raises:
        WeightsError: the scores are not numbers.
    """
    scores, names = segmenter(seen.image)[0], segmenter.about.classes
    check_finite(scores.cpu().numpy())
    colors = voc_palette()[(np.arange(len(names)) + 1) % DEEP].tolist()
    return {"labels": scores.argmax(0).tolist(), "names": list(names), "colors": colors}


def check_finite(values: NDArray[np.floating[Any]]) -> None:
    """Refuse what cannot be shown.

    Raises:
        WeightsError: some are not numbers.
    """
    if not np.isfinite(values).all():
        raise WeightsError(
            "the model gives values that are not finite numbers: its weights are damaged"
        )


def of_layer(seen: FirstPass, layer: int | None) -> DenseFeatures:
    """Return what leaves a layer; None for what leaves the model, after the final norm.

    Raises:
        OptionError: a layer that the model does not have.
    """
    if layer is None:
        return seen.last
    if not 0 <= layer < len(seen.layers):
        raise OptionError(f"layer {layer}: choose from 0 to {len(seen.layers) - 1}")
    return seen.layers[layer]


def explained(model: Model, seen: FirstPass, label: int, kinds: Sequence[str]) -> list[Tensor]:
    """Return relevance or Grad-CAM, or both by one pass more: (rows, columns) each."""
    found = Gradients(model, seen.image, torch.tensor([label], device=seen.image.device))
    return [(found.relevance() if kind == "relevance" else found.gradcam())[0] for kind in kinds]


def pixels_of(seen: FirstPass, patches: Sequence[int]) -> list[Square]:
    """Return the pixels of some patches, which are counted in raster order from 0.

    Raises:
        OptionError: there is no such patch.
    """
    (rows, columns), (high, wide), found = seen.grid, seen.image.shape[-2:], []
    for patch in patches:
        if not 0 <= patch < rows * columns:
            raise OptionError(f"patch {patch} of {rows * columns}: they are counted from 0")
        row, column = divmod(patch, columns)
        corner = row * high // rows, column * wide // columns
        found.append((*corner, (row + 1) * high // rows, (column + 1) * wide // columns))
    return found
