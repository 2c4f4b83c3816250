"""Pictures of a report: the worst mistakes, examples with attention maps, and doubtful labels."""

import contextlib
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.augment import normalize
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import fitted_image
from vitlab.data.sources.source import Source
from vitlab.errors import ImageError
from vitlab.evaluation.infer import Predictions
from vitlab.evaluation.label_errors import LabelErrors
from vitlab.inspect.attention import late_attention
from vitlab.models.model import Model
from vitlab.report.facts import Doubt, Doubts, Judged, Picture

MISTAKES = 60  # pictures of mistakes, at most
TOGETHER = 6  # of one confusion
EXAMPLES = 6  # attention maps
LISTED = 200  # mistakes that are listed by name
DOUBTED = 24  # doubtful labels with pictures


def mistakes(model: Model, source: Source, predictions: Predictions) -> list[Judged]:
    """Return the most confident mistakes of each confusion, then a second one of each, and so on.

    None where images have several labels.
    """
    before: Counter[tuple[int, int] | None] = Counter()
    ranked = []
    for order, one in enumerate(every_mistake(source, predictions)):
        ranked.append((before[one[1].pair], order, *one))
        before[one[1].pair] += 1
    chosen = sorted(each for each in ranked if each[0] < TOGETHER)[:MISTAKES]
    return [judged(model, source, predictions, place) for _, _, place, _ in chosen]


def listed(source: Source, predictions: Predictions) -> list[Judged]:
    """Return the most confident mistakes, most confident first, without their pictures."""
    return [each for _, each in every_mistake(source, predictions)[:LISTED]]


def every_mistake(source: Source, predictions: Predictions) -> list[tuple[int, Judged]]:
    """Return the places of mistakes and what is known of them, most confident first."""
    if predictions.labels.several:
        return []
    wrong = np.flatnonzero(predictions.probabilities.argmax(1) != predictions.labels.values)
    order = np.argsort(-predictions.probabilities[wrong].max(1), kind="stable")
    return [(place, named(source, predictions, place)) for place in wrong[order].tolist()]


def examples(model: Model, source: Source, predictions: Predictions) -> list[Judged]:
    """Return the first image of each of a few classes, with its attention map."""
    if not model.config.blocks or math.prod(model.config.grid) == 1:
        return []
    _, firsts = np.unique(predictions.labels.values, return_index=True, axis=0)
    chosen = firsts[np.linspace(0, len(firsts) - 1, num=min(EXAMPLES, len(firsts)), dtype=int)]
    return [judged(model, source, predictions, int(place), attention=True) for place in chosen]


def doubts(model: Model, source: Source, predictions: Predictions, found: LabelErrors) -> Doubts:
    """Return the labels that are likely wrong, with pictures of the likeliest errors."""
    shown = []
    for each in found.suspects[:DOUBTED]:
        index, one = int(predictions.indices[each.place]), None
        with contextlib.suppress(ImageError):
            one = picture(source, index, model)
        single = not predictions.labels.several
        other = float(predictions.probabilities[each.place, each.better[0]]) if single else None
        given, better = (_names(source, classes) for classes in (each.given, each.better))
        shown.append(Doubt(one, source.name(index), given, better, each.own, other))
    return Doubts(shown, len(found.suspects), found.estimated, found.images)


def picture(source: Source, index: int, model: Model) -> Picture:
    """Return an image as the model sees it, in colors that can be shown."""
    return in_colors(fitted_image(source.image(index), model.config), source.name(index))


def in_colors(pixels: NDArray[np.uint8], name: str) -> Picture:
    """Return what a model sees, (rows, columns, channels), in gray or RGB."""
    shown = pixels[..., 0] if pixels.shape[-1] in (1, 2) else pixels[..., :3]
    return Picture(np.ascontiguousarray(shown), name)


def judged(
    model: Model, source: Source, predictions: Predictions, place: int, *, attention: bool = False
) -> Judged:
    """Return an image of predictions by its place, with its picture and, if asked, its map."""
    index = int(predictions.indices[place])
    shown, seen = picture(source, index, model), None
    if attention:
        device = next(model.parameters()).device
        pixels = fitted_image(source.image(index), model.config)  # each may have its own size
        image = normalize(torch.from_numpy(pixels)[None].to(device), model.config)
        seen = late_attention(model, image)[0].cpu().numpy()
    return named(source, predictions, place, np.array(model.thresholds), shown, seen)


def named(
    source: Source,
    predictions: Predictions,
    place: int,
    above: NDArray[np.float64] | float = 0.5,
    shown: Picture | None = None,
    attention: NDArray[np.float32] | None = None,
) -> Judged:
    """Return an image of predictions by its place, with what it was taken for."""
    chances, labels = predictions.probabilities[place], predictions.labels
    best, single = int(chances.argmax()), isinstance(labels, SingleLabels)
    truth = int(labels.values[place]) if single else -1
    guesses = [best] if single else np.flatnonzero(chances > above).tolist()
    return Judged(
        shown,
        source.name(int(predictions.indices[place])),
        _names(source, labels.classes_of(place)),
        _names(source, guesses),
        float(chances[best]),
        float(chances[truth]) if single else None,
        (truth, best) if single else None,
        attention,
        bool((predictions.distances[place : place + 1] > 1).any()),
    )


def _names(source: Source, classes: Sequence[int]) -> str:
    return ", ".join(source.classes[label] for label in classes) or "none"
