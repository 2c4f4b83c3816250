"""A model on the page: the first pass of an image, its views, and how the model says them."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.pixels import Box
from vitlab.data.labels import kind_of
from vitlab.errors import OptionError, WeightsError
from vitlab.evaluation.infer import probabilities
from vitlab.evaluation.segmentation import DEEP, voc_palette
from vitlab.inspect.attention import LATE, pool_attention, rollouts
from vitlab.inspect.evidence import Gradients
from vitlab.inspect.look import Look, attention_bytes, look
from vitlab.inspect.tokens import likeness, norm_map
from vitlab.models.config import ViTConfig
from vitlab.models.heads.segment import Segmenter
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer
from vitlab.on_device import exact
from vitlab.units import storage

Octets = tuple[NDArray[np.uint8], NDArray[np.float32]]  # (heads, tokens, N), (heads, tokens)
Square = tuple[int, int, int, int]  # of an image: its first row and column, and those after it
LEVELS = 255  # of a byte
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
class FirstPass:
    """One image as a model sees it; N counts class token, registers and patches.

    Attributes:
        look: the pass, with what leaves its layers on the CPU
        box: left, top, right and bottom of what the model sees, as fractions of the upright image
        probabilities: float64 (classes,); none without a classifier
        attention: of every head of every layer; none where there is none, or too much
        rollouts: with `attention`, the share of each patch that reaches the classifier, through the
            first layers up to each: (rows, columns)
        late: with `attention`, the same through the last three layers: what shows the object
        pool: the attention that the pool's queries pay, as of one layer; none without a pool
    """

    look: Look
    box: Box
    probabilities: NDArray[np.float64]
    attention: tuple[Octets, ...] = ()
    rollouts: tuple[Tensor, ...] = ()
    late: Tensor | None = None
    pool: tuple[Octets, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        seen = (part.nbytes for each in (*self.attention, *self.pool) for part in each)
        kept = (self.look.images, *self.look.outputs, self.look.last)
        return sum(seen) + sum(each.nbytes for each in kept)


@torch.inference_mode()
def first_pass(
    model: Model, image: Tensor, box: Box = (0, 0, 1, 1), *, attention: bool = True
) -> FirstPass:
    """Run a model once, and keep what its layers did.

    Args:
        model: any, in evaluation mode
        image: normalized, (1, channels, H, W)
        box: of the image that it is
        attention: whether to keep that, where there is any
    """
    seen = look(model, image)
    chances = seen.chances[0] if has_classes(model) else torch.empty(0)
    common = seen.on_cpu(), box, chances.cpu().numpy()
    if not isinstance(model, VisionTransformer):
        return FirstPass(*common)
    pool = pool_attention(seen)
    queries = () if pool is None else (in_octets(pool.flatten(1, 2)[:, :, None]),)
    if not attention:
        return FirstPass(*common, pool=queries)
    kept = list[Octets]()
    last = deque[Tensor](maxlen=LATE)

    def keep(weights: Tensor) -> Tensor:
        kept.append(in_octets(weights))
        last.append(weights)
        return weights

    through = tuple(each[0].cpu() for each in rollouts(seen, maps=map(keep, seen.attention())))
    *_, late = rollouts(seen, maps=last)
    return FirstPass(*common, tuple(kept), through, late[0].cpu(), queries)


def has_classes(model: Model) -> bool:
    """Return whether a model scores the classes once per image."""
    return model.config.classes > 0 and model.config.answers == 1


def in_octets(weights: Tensor) -> Octets:
    """Return the attention of a layer, (1, heads, tokens that attend, N), a number in a byte.

    A number is `largest * byte / 255`, where `largest` is that of its head for the token that
    attends: half a percent of it is lost at most, however small it is.
    """
    weights = weights[0].float()
    largest = weights.amax(-1)
    levels = weights * (LEVELS / largest.clamp(min=torch.finfo(torch.float32).tiny))[..., None]
    return levels.round().byte().cpu().numpy(), largest.cpu().numpy()


def attended(layers: Sequence[Octets], token: int) -> bytes:
    """Return what one token attends to; a layer with fewer heads has heads of zeros at the end.

    Returns:
        float32, little-endian, (layers, heads): the largest number; then uint8, (layers, heads, N).
    """
    shape = len(layers), max(len(largest) for _, largest in layers)
    most = np.zeros(shape, "<f4")
    found = np.zeros((*shape, layers[0][0].shape[-1]), np.uint8)
    for number, (levels, largest) in enumerate(layers):
        most[number, : len(largest)] = largest[:, token]
        found[number, : len(largest)] = levels[:, token]
    return most.tobytes() + found.tobytes()


def layer_names(config: ViTConfig) -> list[str]:
    """Return what each layer of `model.attention_maps` is called."""
    if config.attention == "axial":
        return [f"{n} {lines}" for n in range(1, config.depth + 1) for lines in ("rows", "columns")]
    return [str(number) for number in range(1, config.depth + 1)]


def prefix_names(config: ViTConfig) -> list[str]:
    """Return what each token before the patches is called."""
    registers = [f"register {number}" for number in range(1, config.registers + 1)]
    return [*(["class token"] if config.has_token else []), *registers]


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

    def described(self) -> dict[str, Any]:
        """Return what the page is told."""
        config = self.model.config
        several = kind_of(self.model.provenance).several
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
        config = self.model.config
        attention = seen.attention
        grid = seen.look.grid
        vit = config if isinstance(config, ViTConfig) else None
        found = {
            "top": self.top(seen.probabilities),
            "box": list(seen.box),
            "grid": list(grid),
            "prefix": prefix_names(vit) if vit else [],
            "layers": layer_names(vit) if vit and attention else [],
            "heads": len(attention[0][1]) if attention else 0,
            "tokens": seen.look.prefix + grid[0] * grid[1],
            "depth": self.model.last_layer,
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
    config = model.config
    found = dict.fromkeys(VIEWS, "")
    if not isinstance(config, ViTConfig):
        found |= dict.fromkeys(
            ("attention", "late", "rollout", "relevance"), f"{config.name} has no attention"
        )
    elif (size := attention_bytes(model) // 4) > MOST_ATTENTION:  # a number in a byte
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
    kept = seen.look
    layer = kept.model.last_layer if layer is None else layer
    if kind == "norms":
        return norm_map(kept, layer=layer)[0]
    found, prefix, (rows, columns) = kept.dense(layer), kept.prefix, kept.grid
    if not 0 <= token < prefix + rows * columns:
        raise OptionError(f"token {token} of {prefix + rows * columns}: they are counted from 0")
    if token >= prefix:
        row, column = divmod(token - prefix, columns)
        high, wide = found.map.shape[-2:]
        down = (2 * row + 1) * high // (2 * rows)
        across = (2 * column + 1) * wide // (2 * columns)
        token = prefix + down * wide + across
    return likeness(found, token)[0]


@torch.inference_mode()
def mask_of(segmenter: Segmenter, seen: FirstPass) -> dict[str, Any]:
    """Return the class of each pixel that a model sees, (rows, columns), names and colors.

    The colors are those of the report: VOC's, none of them black.

    Raises:
        WeightsError: the scores are not numbers.
    """
    scores = segmenter(seen.look.images)[0]
    names = segmenter.about.classes
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


def explained(model: Model, seen: FirstPass, label: int, kind: str) -> Tensor:
    """Return relevance or Grad-CAM, by one pass more: (rows, columns)."""
    found = Gradients(model, seen.look.images, torch.tensor([label]))
    return (found.relevance() if kind == "relevance" else found.gradcam())[0]


def pixels_of(seen: FirstPass, patches: Sequence[int]) -> list[Square]:
    """Return the pixels of some patches, which are counted in raster order from 0.

    Raises:
        OptionError: there is no such patch.
    """
    (rows, columns), (high, wide), found = seen.look.grid, seen.look.images.shape[-2:], []
    for patch in patches:
        if not 0 <= patch < rows * columns:
            raise OptionError(f"patch {patch} of {rows * columns}: they are counted from 0")
        row, column = divmod(patch, columns)
        corner = row * high // rows, column * wide // columns
        found.append((*corner, (row + 1) * high // rows, (column + 1) * wide // columns))
    return found


@torch.inference_mode()
def without(model: Model, image: Tensor, squares: Sequence[Square]) -> Tensor:
    """Compute the probabilities of an image's classes, (classes,), without some of its squares.

    Args:
        model: any with a classifier, in evaluation mode
        image: normalized, (1, channels, H, W)
        squares: that are covered together, by the image's mean color
    """
    covered = image.clone()
    mean = image.mean((-2, -1), keepdim=True)
    for top, left, bottom, right in squares:
        covered[..., top:bottom, left:right] = mean
    return probabilities(exact(model(covered)), model)[0]
