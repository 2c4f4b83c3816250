"""Look inside a model with images: maps of each one, and figures of all of them together."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab import inspect
from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.loading.crops import fitted_image
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation.compute import borrowed
from vitlab.inspect.evidence import Gradients
from vitlab.inspect.look import Look, attention_bytes
from vitlab.inspect.tokens import colors_of
from vitlab.inspect.weights import first_kernel
from vitlab.models.model import Model
from vitlab.report.thumbnails import Floats, in_colors
from vitlab.units import si

SHOWN, GLANCED = 12, 4  # images with pictures of their own, and of a glance
FILTERS = 28  # as in the ViT paper
MOST = 2**32  # bytes of an image's attention maps
WATCHING = ("relevance", "gradcam")  # maps that are for a class
NAMES = {  # of the maps that are called otherwise than their functions
    "norm_map": "token norms",
    "similar_patches": "similar patches",
    "gradcam": "Grad-CAM",
    "late_attention": "attention of the last layers",
}
MEASURED: dict[str, tuple[str, Callable[[Look], Tensor]]] = {  # of each pass, with its name
    "attention_distance": (
        "attention distance", lambda seen: inspect.attention_distance(roomy(seen))
    ),
    "attention_distance_among_patches": (
        "attention distance",
        lambda seen: inspect.attention_distance(roomy(seen), among_patches=True),
    ),
    "attention_elsewhere": (
        "attention distance", lambda seen: inspect.attention_elsewhere(roomy(seen))
    ),
    "attention_entropy": ("attention entropy", lambda seen: inspect.attention_entropy(roomy(seen))),
    "token_norms": ("token norms", lambda seen: _patch_norms(seen).mean((0, 2))),
    "longest_tokens": ("token norms", lambda seen: _patch_norms(seen).amax((0, 2))),
    "token_similarity": ("token similarity", lambda seen: inspect.token_similarity(seen).mean(0)),
}  # fmt: skip


@dataclass(frozen=True)
class SeenImage:
    """What a model makes of one image; what has no meaning for the model is missing.

    Attributes:
        name: where it comes from
        pixels: the part of it that the model sees, uint8 (H, W) or (H, W, 3)
        label: its class, or its classes, if they are known
        top: the likeliest classes with their probabilities, best first
        watched: the class that `relevance` and `gradcam` are for
        maps: by the name of the function that made them, (rows, columns): late_attention,
            rollout, relevance, gradcam, similar_patches, norm_map
        patch: row and column of the patch that `similar_patches` compares the others with
        heads: attention of each head of the class token, or of the pool, (heads, rows, columns)
        colors: principal components of its patch features, (rows, columns, 3), 0 to 1
    """

    name: str
    pixels: NDArray[np.uint8]
    label: str = ""
    top: tuple[tuple[str, float], ...] = ()
    watched: str = ""
    maps: dict[str, Floats] = field(default_factory=dict)
    patch: tuple[int, int] | None = None
    heads: Floats | None = None
    colors: Floats | None = None


@dataclass
class Looked:
    """What was found; what has no meaning for the model is missing, and a note says why.

    Attributes:
        model: its name
        images: the first ones, each by itself
        count: of the images behind what is measured
        layer: whose heads, colors, norms and similar patches are shown; 0 for the last one
        arrays: means over all images, by their keys in `MEASURED`: (layers, heads) of attention,
            (layers + 1,) of tokens; `embedding_filters`, (count, rows, columns, channels);
            `position_similarity`, (rows, columns, rows, columns)
        missing: what has no meaning here, by the reason
        notes: further remarks, such as images that cannot be read
    """

    model: str
    images: list[SeenImage] = field(default_factory=list)
    count: int = 0
    layer: int = 0
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def lacks(self, name: str, reason: str) -> None:
        """Note that something has no meaning for the model."""
        names = self.missing.setdefault(reason, [])
        if name not in names:
            names.append(name)

    @property
    def remarks(self) -> list[str]:
        """The notes, and a line for each reason why something is missing."""
        reasons = (f"{', '.join(names)}: {reason}" for reason, names in self.missing.items())
        return [*self.notes, *reasons]


def look(
    model: Model,
    source: Images,
    device: torch.device,
    *,
    watch: str = "",
    layer: int = 0,
    glance: bool = False,
    progress: Callable[[int], None] = lambda images: None,
) -> Looked:
    """Look at everything that has a meaning for a model, with one image in memory at a time.

    Args:
        model: any; its device and mode are the same afterwards
        source: images; their labels do not matter
        device: where to compute
        watch: name of the class to explain; empty for each image's likeliest
        layer: whose heads, colors, norms and similar patches are shown; 0 for the last one
        glance: where the last layers look, heads, norms and colors of a few images alone
        progress: called with the number of images done

    Raises:
        OptionError: a class or a layer that the model does not have.
        DataError: no image can be read.
    """
    classes, last = model.config.class_names, model.last_layer
    if watch and watch not in classes:
        raise OptionError(f"{watch!r} is not a class of the model: {', '.join(classes[:10])}")
    if not 0 <= layer <= last:
        raise OptionError(f"layer must be from 1 to {last}, not {layer}")
    found, measured = Looked(model.config.name, layer=layer), defaultdict[str, list[Floats]](list)
    features = list[Tensor]()
    with borrowed(model, device):
        _look_at_weights(model, found)
        for number in range(len(source)):
            try:
                pixels = fitted_image(source.image(number), model.config)
            except ImageError as error:
                found.notes.append(f"skipped: {error}")
            else:
                image = torch.from_numpy(pixels)[None].to(device)
                seen = inspect.look(model, normalize(image, model.config))
                found.count += 1
                for key, (name, make) in MEASURED.items():
                    if (values := _tried(found, name, partial(make, seen))) is not None:
                        measured[key].append(values)
                if found.count <= (GLANCED if glance else SHOWN):
                    one = SeenImage(source.name(number), in_colors(pixels))
                    found.images.append(_see(found, one, seen, watch, glance=glance))
                    features.append(seen.dense(layer or None).map)
            progress(number + 1)
        if not found.count:
            raise DataError(found.notes[0].removeprefix("skipped: "))
        _finish(found, measured, features)
    return found


def _tried(found: Looked, name: str, make: Callable[[], Tensor]) -> Floats | None:
    """Return an array, or None and a note of why it has no meaning here."""
    try:
        result: Floats = make().float().cpu().numpy()
    except OptionError as error:
        found.lacks(name, str(error))
        return None
    return result


# All images together


def _look_at_weights(model: Model, found: Looked) -> None:
    """Look at what needs no image: filters and positions."""
    kernel = first_kernel(model)
    count = min(FILTERS, len(kernel), kernel[0].numel())
    for key, name, make in (
        ("embedding_filters", "filters", partial(inspect.embedding_filters, model, count)),
        ("position_similarity", "positions", partial(inspect.position_similarity, model)),
    ):
        if (values := _tried(found, name, make)) is not None:
            found.arrays[key] = values


def _finish(found: Looked, measured: dict[str, list[Floats]], features: Sequence[Tensor]) -> None:
    """Take the means, and turn features (1, D, rows, columns) into colors on one basis."""
    for key, rows in measured.items():
        if len(rows) == found.count:  # else they would be no mean of all images
            mean: Floats = np.asarray(np.mean(rows, 0, np.float64), np.float32)
            found.arrays[key] = np.max(rows, 0) if key == "longest_tokens" else mean
    if not np.isfinite(found.arrays.get("token_similarity", np.zeros(1))).any():
        del found.arrays["token_similarity"]  # a single patch has none to be alike to
    try:
        colors = colors_of(features)
    except OptionError as error:
        found.lacks("feature colors", str(error))
        return
    found.images = [
        replace(image, colors=each[0].cpu().numpy())
        for image, each in zip(found.images, colors, strict=True)
    ]


def roomy(seen: Look) -> Look:
    """Return a pass with its attention kept, which fits into memory one image at a time.

    Raises:
        OptionError: it does not, and it says how large it is; or there is none.
    """
    size = attention_bytes(seen.model, seen.images.shape[-2:])
    if size > MOST:
        tokens = seen.layers[-1].shape[1]
        raise OptionError(
            f"the attention maps of {tokens:,} tokens take {si(size)}B of memory per image, more "
            f"than {si(MOST)}B: pass a smaller --image-size"
        )
    return seen.kept()


def _patch_norms(seen: Look) -> Tensor:
    """Return the lengths of patches' tokens, (1, layers + 1, patches)."""
    return inspect.token_norms(seen)[:, :, seen.prefix :]


# One image


def _see(found: Looked, one: SeenImage, seen: Look, watch: str, *, glance: bool) -> SeenImage:
    """Return an image with its maps, and with what explains the model's prediction."""
    maps: dict[str, Floats] = {}

    def add(kind: str, make: Callable[[], Tensor]) -> None:
        if (values := _tried(found, NAMES.get(kind, kind), make)) is not None:
            maps[kind] = values[0]

    model, layer, classes = seen.model, found.layer or None, seen.model.config.class_names
    chances = seen.chances[0].cpu().numpy()
    order = np.argsort(-chances, kind="stable")[:5].tolist()
    target = classes.index(watch) if watch else (order or [0])[0]
    label = torch.tensor([target])
    gradients = lru_cache(1)(lambda: Gradients(model, seen.images, label))  # relevance and Grad-CAM
    add("late_attention", lambda: inspect.late_attention(roomy(seen)))
    if not glance:
        add("rollout", lambda: inspect.rollout(roomy(seen)))
        add("relevance", lambda: (roomy(seen), gradients())[1].relevance())
        add("gradcam", lambda: gradients().gradcam())
    add("norm_map", lambda: inspect.norm_map(seen, layer=layer))
    add("heads", lambda: inspect.class_attention(roomy(seen), layer=layer))
    heads, patch = maps.pop("heads", None), None
    if not glance:
        rows, columns = maps["norm_map"].shape
        patch = _peak(maps, (rows, columns))
        token = seen.prefix + patch[0] * columns + patch[1]
        add("similar_patches", lambda: inspect.similar_patches(seen, token=token, layer=layer))
    return replace(
        one,
        top=tuple((classes[number], float(chances[number])) for number in order),
        watched=classes[target] if order else "",
        maps=maps,
        patch=patch,
        heads=heads,
    )


def _peak(maps: dict[str, Floats], grid: tuple[int, ...]) -> tuple[int, int]:
    """Return the patch that speaks most for the class; the middle one if nothing tells."""
    for kind in ("relevance", "late_attention", "gradcam"):
        if kind in maps and maps[kind].shape == grid and maps[kind].any():
            return divmod(int(maps[kind].argmax()), grid[1])
    return grid[0] // 2, grid[1] // 2
