"""Which pictures a report shows: mistakes of every confusion, and what the model attends to."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.augment import normalize
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import fitted_image
from vitlab.data.sources.source import Source
from vitlab.evaluation.predictions import Predictions
from vitlab.inspect.attention import late_attention
from vitlab.models.model import Model
from vitlab.report.facts import Judged, Picture

MISTAKES = 72  # pictures of mistakes, at most
TOGETHER = 6  # of one confusion
EXAMPLES = 6  # attention maps
LISTED = 200  # mistakes that are listed by name


def mistakes(model: Model, source: Source, predictions: Predictions) -> list[Judged]:
    """Return mistakes, at least one of each confusion while there is room.

    The most frequent confusion comes first, and the most confident mistake of each.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for place in _wrong(predictions):
        groups.setdefault(_pair(predictions, place), []).append(int(place))
    most_frequent = sorted(groups.items(), key=lambda item: -len(item[1]))[:MISTAKES]
    shown = [1] * len(most_frequent)
    for depth in range(2, TOGETHER + 1):  # a second one of each, then a third, …
        for number, (_, places) in enumerate(most_frequent):
            if len(places) >= depth and sum(shown) < MISTAKES:
                shown[number] += 1
    return [
        _judged(model, source, predictions, place)
        for count, (_, places) in zip(shown, most_frequent, strict=True)
        for place in places[:count]
    ]


def listed(source: Source, predictions: Predictions) -> list[Judged]:
    """Return the most confident mistakes, most confident first, without their pictures."""
    return [named(source, predictions, int(place)) for place in _wrong(predictions)[:LISTED]]


def examples(model: Model, source: Source, predictions: Predictions) -> list[Judged]:
    """Return the first image of each of a few classes, with its attention map."""
    if not model.config.blocks or math.prod(model.config.grid) == 1:
        return []
    _, firsts = np.unique(predictions.labels.values, return_index=True, axis=0)
    chosen = firsts[np.linspace(0, len(firsts) - 1, num=min(EXAMPLES, len(firsts)), dtype=int)]
    return [
        _judged(model, source, predictions, int(place), _attention(model, source, index))
        for place, index in zip(chosen, predictions.indices[chosen].tolist(), strict=True)
    ]


def picture(source: Source, index: int, model: Model) -> Picture:
    """Return an image as the model sees it, in colors that can be shown."""
    pixels = fitted_image(source.image(index), model.config)
    return in_colors(pixels, source.name(index))


def in_colors(pixels: NDArray[np.uint8], name: str) -> Picture:
    """Return what a model sees, (rows, columns, channels), in gray or RGB."""
    shown = pixels[..., 0] if pixels.shape[-1] in (1, 2) else pixels[..., :3]
    return Picture(np.ascontiguousarray(shown), name)


def _attention(model: Model, source: Source, index: int) -> NDArray[np.float32]:
    config, device = model.config, next(model.parameters()).device
    image = fitted_image(source.image(index), config)  # each may have its own size
    pixels = normalize(torch.from_numpy(image)[None].to(device), config)
    found: NDArray[np.float32] = late_attention(model, pixels)[0].cpu().numpy()
    return found


def _wrong(predictions: Predictions) -> Sequence[int]:
    """Return the places of the mistakes, most confident first."""
    wrong = np.flatnonzero(predictions.probabilities.argmax(1) != predictions.labels.values)
    order = np.argsort(-predictions.probabilities[wrong].max(1), kind="stable")
    return [int(place) for place in wrong[order]]


def _pair(predictions: Predictions, place: int) -> tuple[int, int]:
    truth = int(predictions.labels.values[place])
    return truth, int(predictions.probabilities[place].argmax())


def _judged(
    model: Model,
    source: Source,
    predictions: Predictions,
    place: int,
    attention: NDArray[np.float32] | None = None,
) -> Judged:
    shown = picture(source, int(predictions.indices[place]), model)
    above = np.array(model.thresholds)
    return named(source, predictions, place, above, shown, attention)


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
    single, best = isinstance(labels, SingleLabels), int(chances.argmax())
    guesses = [best] if single else np.flatnonzero(chances > above).tolist()
    return Judged(
        shown,
        source.name(int(predictions.indices[place])),
        _names(source, labels.classes_of(place)),
        _names(source, guesses),
        float(chances[best]),
        float(chances[labels.values[place]]) if single else None,
        _pair(predictions, place) if single else None,
        attention,
        bool((predictions.distances[place : place + 1] > 1).any()),
    )


def _names(source: Source, classes: Sequence[int]) -> str:
    return ", ".join(source.classes[label] for label in classes) or "none"
