"""Single images inside a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab import inspect
from vitlab.data.labels import kind_of
from vitlab.errors import OptionError
from vitlab.inspect.evidence import Gradients
from vitlab.inspect.look import Look
from vitlab.inspect.tokens import colors_of
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
class Choices:
    """What `look` can be asked for.

    Attributes:
        watch: name of the class to explain; empty for each image's likeliest
        layer: whose heads, colors, norms and similar patches are shown; 0 for the last one
        covered: number of images that are explained by occlusion, up to 49 passes each
        beside: another model, whose layers are compared; None to compare the model's own
    """

    watch: str = ""
    layer: int = 0
    covered: int = 0
    beside: Model | None = None


def features_of(seen: Look, layer: int) -> Tensor:
    """Return the features that `color` shows, (B, D, rows, columns)."""
    return seen.dense(_block(seen, layer)).map


def color(found: Looked, features: Sequence[Tensor]) -> None:
    """Give the images colors of their features, (1, D, rows, columns) each, on one basis."""
    try:
        colors = colors_of(features)
    except OptionError as error:
        found.lacks("feature colors", str(error))
        return
    found.images = [
        replace(image, colors=each[0].cpu().numpy())
        for image, each in zip(found.images, colors, strict=True)
    ]


def glance(found: Looked, shown: Sequence[Shown], seen: Look) -> list[SeenImage]:
    """Show the heads and the token norms of the first images of a pass."""
    norms, heads = inspect.norm_map(seen).cpu().numpy(), _heads(found, seen, 0)
    return [
        SeenImage(
            one.name,
            one.pixels,
            maps={"norm_map": norms[place]},
            heads=None if heads is None else heads[place],
        )
        for place, one in enumerate(shown)
    ]


def see(found: Looked, one: Shown, seen: Look, choices: Choices, *, covered: bool) -> SeenImage:
    """Look at an image, and at what explains the model's prediction.

    Args:
        found: gets notes of what is missing
        one: the image
        seen: the pass of it
        choices: what to show
        covered: explain it by occlusion too
    """
    chances, classes = _chances(seen), seen.model.config.class_names
    order = np.argsort(-chances, kind="stable")[:5].tolist()
    target = classes.index(choices.watch) if choices.watch else (order or [0])[0]
    layer = _block(seen, choices.layer)
    wanted = _explaining(seen, target, covered=covered)
    wanted["norm_map"] = lambda: inspect.norm_map(seen, layer=layer)
    maps = {kind: values[0] for kind, values in _made(found, wanted).items()}
    patch = None
    if "norm_map" in maps:
        patch = _peak(maps, maps["norm_map"].shape)
        token = getattr(seen.model.config, "prefix", 0)
        token += patch[0] * maps["norm_map"].shape[1] + patch[1]
        similar = partial(inspect.similar_patches, seen, token=token, layer=layer)
        maps |= {kind: each[0] for kind, each in _made(found, {"similar_patches": similar}).items()}
    heads = _heads(found, seen, choices.layer)
    return SeenImage(
        one.name,
        one.pixels,
        tuple((classes[number], float(chances[number])) for number in order),
        classes[target] if order else "",
        maps,
        patch,
        None if heads is None else heads[0],
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


def _block(seen: Look, layer: int) -> int | None:
    """Return a layer as `model.intermediates` counts them; None for the last one."""
    return min(layer, seen.model.last_layer) or None


def _made(found: Looked, maps: dict[str, Callable[[], Tensor]]) -> dict[str, Floats]:
    """Return the maps that have a meaning, (B, rows, columns) each."""
    tries = {kind: tried(found, NAMES.get(kind, kind), make) for kind, make in maps.items()}
    return {kind: values for kind, values in tries.items() if values is not None}


def _explaining(seen: Look, target: int, *, covered: bool) -> dict[str, Callable[[], Tensor]]:
    """Return what explains a prediction, by the name of its function."""
    model, image = seen.model, seen.images
    label = torch.tensor([target], device=image.device)
    gradients = lru_cache(1)(lambda: Gradients(model, image, label))  # relevance and Grad-CAM
    found: dict[str, Callable[[], Tensor]] = {
        "late_attention": lambda: inspect.late_attention(roomy(seen)),
        "rollout": lambda: inspect.rollout(roomy(seen)),
        "relevance": lambda: (roomy(seen), gradients())[1].relevance(),
        "gradcam": lambda: gradients().gradcam(),
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


def _heads(found: Looked, seen: Look, layer: int) -> Floats | None:
    """Return where each head looks, (B, heads, rows, columns)."""
    make = partial(inspect.class_attention, layer=layer or None)
    return tried(found, "heads", lambda: make(roomy(seen)))


def _chances(seen: Look) -> NDArray[np.float64]:
    """Return the probabilities of an image's classes, (classes,); none without a classifier.

    Those of several queries of attention pooling are their mean.
    """
    model = seen.model
    if not model.config.classes:
        return np.empty(0)
    each = kind_of(model).probabilities(seen.logits[0].double() / model.temperature)
    return each.reshape(-1, model.config.classes).mean(0).cpu().numpy()
