"""What a model makes of single images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab import inspect
from vitlab.data.labels import kind_of
from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.report.inside.looked import Floats, Looked, SeenImage
from vitlab.report.inside.measuring import roomy, tried

SQUARES = 49  # places of an image that are covered, each a pass of the model
NAMES = {  # of the maps that are called otherwise than their functions
    "norm_map": "token norms",
    "similar_patches": "similar patches",
    "gradcam": "Grad-CAM",
    "late_attention": "attention of the last layers",
}


@dataclass(frozen=True)
class Shown:
    """An image with pictures of its own: its name, what the model sees, and that normalized."""

    name: str
    pixels: NDArray[np.uint8]
    image: Tensor  # (1, channels, H, W)


@dataclass(frozen=True)
class Asked:
    """What to show of single images.

    Attributes:
        classes: names of the model's classes
        watch: the class to explain; empty for each image's likeliest
        layer: whose heads, colors, norms and similar patches are shown; 0 for the last one
        covered: number of images that are explained by occlusion too
    """

    classes: Sequence[str]
    watch: str = ""
    layer: int = 0
    covered: int = 0


def shared_colors(
    model: Model, found: Looked, shown: Sequence[Shown], layer: int
) -> list[Floats | None]:
    """Return the feature colors of each image, (rows, columns, 3), on one basis."""
    images = [one.image for one in shown]
    try:
        colors = inspect.feature_colors(model, images, layer=_block(model, layer))
    except OptionError as error:
        found.lacks("feature colors", str(error))
        return [None] * len(shown)
    return [each[0].cpu().numpy() for each in colors]


def glance(model: Model, found: Looked, one: Shown, colors: Floats | None) -> SeenImage:
    """Look at the heads and the tokens of an image alone, which costs two passes."""
    maps = _made(found, {"norm_map": partial(inspect.norm_map, model, one.image)})
    heads = _heads(model, found, one.image, 0)
    return SeenImage(one.name, one.pixels, maps=maps, heads=heads, colors=colors)


def see(
    model: Model, found: Looked, one: Shown, asked: Asked, colors: Floats | None, *, covered: bool
) -> SeenImage:
    """Look at an image, and at what explains the model's prediction.

    Args:
        model: any
        found: gets notes of what is missing
        one: the image
        asked: what to show
        colors: from `shared_colors`
        covered: explain it by occlusion too
    """
    chances = _chances(model, one.image)
    order = np.argsort(-chances, kind="stable")[:5].tolist()
    target = list(asked.classes).index(asked.watch) if asked.watch else (order or [0])[0]
    norms = partial(inspect.norm_map, model, one.image, layer=_block(model, asked.layer))
    explaining = _explaining(model, one.image, target, covered=covered)
    maps = _made(found, {**explaining, "norm_map": norms})
    patch = None
    if "norm_map" in maps:
        patch = _peak(maps, maps["norm_map"].shape)
        maps |= _made(found, {"similar_patches": _similar(model, one.image, patch, maps, asked)})
    return SeenImage(
        one.name,
        one.pixels,
        tuple((asked.classes[number], float(chances[number])) for number in order),
        asked.classes[target] if order else "",
        maps,
        patch,
        _heads(model, found, one.image, asked.layer),
        colors,
    )


def square(model: Model, size: tuple[int, int]) -> int:
    """Return the side of the squares of an image that are covered one by one, in pixels.

    The smallest that covers the whole image in at most `SQUARES` passes; whole patches if no such
    square fits exactly.
    """
    high, wide = size
    patch = model.config.patch if isinstance(model.config, ViTConfig) else 1
    sides = range(patch, max(patch, min(high, wide)) + 1)
    few = [side for side in sides if (high // side) * (wide // side) <= SQUARES]
    exact = (side for side in few if not high % side and not wide % side)
    return next(exact, next((side for side in few if not side % patch), patch))


def _block(model: Model, layer: int) -> int | None:
    """Return a layer as `model.intermediates` counts them; None for the last one."""
    return min(layer, model.last_layer) or None


def _made(found: Looked, maps: dict[str, Callable[[], Tensor]]) -> dict[str, Floats]:
    """Return the maps that have a meaning, (rows, columns) each."""
    tries = {kind: tried(found, NAMES.get(kind, kind), make) for kind, make in maps.items()}
    return {kind: values[0] for kind, values in tries.items() if values is not None}


def _explaining(
    model: Model, image: Tensor, target: int, *, covered: bool
) -> dict[str, Callable[[], Tensor]]:
    """Return what explains a prediction, by the name of its function."""
    label = torch.tensor([target], device=image.device)
    found: dict[str, Callable[[], Tensor]] = {
        "late_attention": lambda: inspect.late_attention(model, roomy(model, image)),
        "rollout": lambda: inspect.rollout(model, roomy(model, image)),
        "relevance": lambda: inspect.relevance(model, roomy(model, image), label),
        "gradcam": partial(inspect.gradcam, model, image, label),
    }
    if covered:
        size = square(model, (image.shape[2], image.shape[3]))
        found["occlusion"] = partial(inspect.occlusion, model, image, label, size=size)
    return found


def _peak(maps: dict[str, Floats], grid: tuple[int, ...]) -> tuple[int, int]:
    """Return the patch that speaks most for the class; the middle one if nothing tells."""
    for kind in ("relevance", "late_attention", "gradcam"):
        if kind in maps and maps[kind].shape == grid and maps[kind].any():
            place = int(maps[kind].argmax())
            return place // grid[1], place % grid[1]
    return grid[0] // 2, grid[1] // 2


def _similar(
    model: Model, image: Tensor, patch: tuple[int, int], maps: dict[str, Floats], asked: Asked
) -> Callable[[], Tensor]:
    prefix = model.config.prefix if isinstance(model.config, ViTConfig) else 0
    token = prefix + patch[0] * maps["norm_map"].shape[1] + patch[1]
    layer = _block(model, asked.layer)
    return partial(inspect.similar_patches, model, image, token, layer=layer)


def _heads(model: Model, found: Looked, image: Tensor, layer: int) -> Floats | None:
    """Return where each head looks, (heads, rows, columns)."""
    make = partial(inspect.class_attention, model, layer=layer or None)
    heads = tried(found, "heads", lambda: make(roomy(model, image)))
    return None if heads is None else heads[0]


def _chances(model: Model, image: Tensor) -> NDArray[np.float64]:
    """Return the probabilities of an image's classes, (classes,); none without a classifier.

    Those of several queries of attention pooling are their mean.
    """
    if not model.config.classes:
        return np.empty(0)
    with torch.inference_mode():
        scores = model(image)[0].double() / model.temperature
    each = kind_of(model).probabilities(scores)
    return each.reshape(-1, model.config.classes).mean(0).cpu().numpy()
