"""Everything that can be looked at inside a model, given some images."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab import inspect
from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import center, load_image
from vitlab.data.sources.protocol import Source
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation.borrowing import borrowed
from vitlab.inspect.passes import transformer
from vitlab.models.model import Model
from vitlab.report.album import in_colors
from vitlab.report.facts import Picture

Floats = NDArray[np.float32]
SHOWN = 12  # images with pictures of their own


@dataclass(frozen=True)
class SeenImage:
    """What a model makes of one image.

    Attributes:
        picture: the part of it that the model sees
        top: the likeliest classes with their probabilities, best first
        watched: the class that `relevance` and `gradcam` are for
        maps: by name (rollout, relevance, gradcam), (rows, columns), not negative
        heads: attention of each head of the class token, or of the pool, (heads, rows, columns)
        colors: principal components of its patch features, (rows, columns, 3), 0 to 1
    """

    picture: Picture
    top: tuple[tuple[str, float], ...]
    watched: str
    maps: dict[str, Floats]
    heads: Floats | None
    colors: Floats | None


@dataclass
class Looked:
    """What was found; None where it has no meaning for the model, and a note says why.

    Attributes:
        model: its name
        images: the first ones, each by itself
        count: of the images behind what follows
        distance: of each head's attention, pixels, (layers, heads)
        entropy: of each head's attention, bits, (layers, heads)
        norms: of the patches' tokens, mean over patches and images, (layers + 1,)
        alike: mean cosine of two patches' tokens, (layers + 1,)
        filters: principal components of the first layer's, (count, rows, columns, channels)
        positions: similarity, (rows, columns, rows, columns)
        notes: what has no meaning here, and images that cannot be read
    """

    model: str
    images: list[SeenImage] = field(default_factory=list)
    count: int = 0
    distance: Floats | None = None
    entropy: Floats | None = None
    norms: Floats | None = None
    alike: Floats | None = None
    filters: Floats | None = None
    positions: Floats | None = None
    notes: list[str] = field(default_factory=list)


def look(
    model: Model,
    source: Source,
    device: torch.device,
    *,
    watch: str = "",
    progress: Callable[[int], None] = lambda images: None,
) -> Looked:
    """Look at everything that has a meaning for a model.

    Args:
        model: any; its device and mode are the same afterwards
        source: images; their labels do not matter
        device: where to compute
        watch: name of the class to explain; empty for each image's likeliest
        progress: called with the number of images seen

    Raises:
        OptionError: `watch` is not a class of the model.
        DataError: no image can be read.
    """
    config = model.config
    if watch and watch not in source.classes:
        raise OptionError(
            f"{watch!r} is not a class of the model: {', '.join(source.classes[:10])}"
        )
    found, shown = Looked(config.name), list[tuple[Picture, Tensor]]()

    def one_by_one() -> Iterator[Tensor]:
        for number in range(len(source)):
            try:
                pixels = load_image(source, number, config, center(config))
            except ImageError as error:
                found.notes.append(f"skipped: {error}")
                continue
            batch = normalize(torch.from_numpy(pixels)[None].to(device), config.mean, config.std)
            if len(shown) < SHOWN:
                shown.append((in_colors(pixels, source.name(number)), batch))
            found.count += 1
            progress(found.count)
            yield batch

    with borrowed(model, device):
        _figures(model, found, one_by_one())
        if not found.count:
            raise DataError(found.notes[0].removeprefix("skipped: "))
        found.images = _each(model, found, source.classes, shown, watch)
    return found


def _figures(model: Model, found: Looked, images: Iterator[Tensor]) -> None:
    """Look at the weights, and at all images, one at a time and in one pass."""
    found.filters = _tried(found, "filters", lambda: _filters(model))
    found.positions = _tried(found, "positions", lambda: inspect.position_similarity(model))
    totals: dict[str, Tensor] = {}
    for image in images:
        if not model.config.blocks:
            continue
        parts = {
            "distance": inspect.attention_distance(model, image),
            "entropy": inspect.attention_entropy(model, image),
            "norms": inspect.token_norms(model, image)[
                0, :, transformer(model).config.prefix :
            ].mean(1),
        }
        if model.config.grid != (1, 1):
            parts["alike"] = inspect.token_similarity(model, image)[0]
        for name, part in parts.items():
            totals[name] = part.double().cpu() + totals.get(name, 0)
    for name, total in totals.items():
        setattr(found, name, (total / found.count).float().numpy())


def _each(
    model: Model,
    found: Looked,
    classes: Sequence[str],
    shown: Sequence[tuple[Picture, Tensor]],
    watch: str,
) -> list[SeenImage]:
    """Look at the first images, each by itself but for the colors, which they share."""
    images = [image for _, image in shown]
    alike = len({image.shape for image in images}) == 1
    together = torch.cat(images) if alike else images[0]
    colors = _tried(found, "feature colors", lambda: inspect.feature_colors(model, together))
    if colors is not None and not alike:
        found.notes.append("feature colors: only of the first image, since sizes differ")
    rows = []
    for number, (picture, image) in enumerate(shown):
        chances = _chances(model, image)
        order = np.argsort(-chances, kind="stable")
        target = list(classes).index(watch) if watch else int(order[0]) if len(order) else 0
        label = torch.tensor([target], device=image.device)
        maps = {
            "rollout": _tried(found, "rollout", partial(inspect.rollout, model, image)),
            "relevance": _tried(
                found, "relevance", partial(inspect.relevance, model, image, label)
            ),
            "gradcam": _tried(found, "Grad-CAM", partial(inspect.gradcam, model, image, label)),
        }
        heads = _tried(found, "heads", partial(inspect.class_attention, model, image))
        rows.append(
            SeenImage(
                picture,
                tuple((classes[n], float(chances[n])) for n in order[:5]),
                classes[target] if len(order) else "",
                {name: each[0] for name, each in maps.items() if each is not None},
                None if heads is None else heads[0],
                colors[number] if colors is not None and number < len(colors) else None,
            )
        )
    return rows


def _chances(model: Model, image: Tensor) -> NDArray[np.float64]:
    """Return the probabilities of an image's classes, (classes,); none without a classifier."""
    if not model.config.classes:
        return np.empty(0)
    with torch.inference_mode():
        scores = model(image)[0].double() / model.temperature
    several = model.provenance.get("multi_label", False)
    return (scores.sigmoid() if several else scores.softmax(-1)).cpu().numpy()


def _tried(found: Looked, name: str, what: Callable[[], Tensor]) -> Floats | None:
    """Return what was found as an array, or None and a note why it has no meaning here."""
    try:
        result: Floats = what().float().cpu().numpy()
    except OptionError as error:
        note = f"{name}: {error}"
        if note not in found.notes:
            found.notes.append(note)
        return None
    return result


def _filters(model: Model) -> Tensor:
    """Return the ViT paper's 28 filters, or as many as there are."""
    kernel = next(weight for weight in model.parameters() if weight.ndim == 4)
    return inspect.embedding_filters(model, min(28, len(kernel), kernel[0].numel()))
