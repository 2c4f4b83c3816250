"""Answers to a batch of images: one pass for all of one trunk, whatever their models.

Here is also how many images to compute at once, measured on that very pass. A batch takes what
waits when the device becomes free, so the number is reached only under load and costs a lone
request nothing. At 70% load, with batches of at least eight, 99 of 100 requests that arrive at
random take less than two of the largest batches, whatever the share of a batch's time that does
not depend on its size.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.decode.pixels import Box
from vitlab.data.loading.batches import joined_pixels
from vitlab.device import exact
from vitlab.errors import UserError
from vitlab.models.packed import Packed
from vitlab.serve.decoder import WHOLE
from vitlab.serve.decoders import Decoded
from vitlab.serve.registry import Served

What = Literal["classes", "features", "attention"]
NOT_A_NUMBER = "the model gives a probability that is not a number: its weights are damaged"
SIZES = (1, 2, 4, 8, 16, 32)
LEAST = 8
LATENCY = 1.0  # seconds that a batch may take, unless it is of one image
ENOUGH = 0.97  # of the best rate: the smallest batch that reaches it is chosen
REPEATS = 3
BUDGET = 5.0  # seconds for all of it


@dataclass(frozen=True)
class Seen:
    """The answer for one image.

    Attributes:
        probabilities: float64 (classes,), those of `vitlab.classify`; for classes and attention
        distance: from the training images, likewise; NaN if the model does not know
        features: float32 (features,), for features
        attention: float32 (rows, columns), where the last layers look, divided by its largest
            value; None where the model has no attention
        box: left, top, right and bottom of the part of the upright image that the model saw, as
            fractions
        error: why the image cannot be used, in one line; empty if it can
    """

    probabilities: NDArray[np.float64] | None = None
    distance: float = math.nan
    features: NDArray[np.float32] | None = None
    attention: NDArray[np.float32] | None = None
    box: Box = WHOLE
    error: str = ""


@dataclass(frozen=True, eq=False)
class Question:
    """One decoded image, and what is asked about it.

    Attributes:
        served: the model that it is for
        what: is asked
        image: decoded
    """

    served: Served
    what: What
    image: Decoded


@dataclass(frozen=True, eq=False)
class Ticket(Question):
    """A question that waits for its answer.

    Attributes:
        entered: when it was put, by `time.monotonic`
        due: when its request is given up, likewise
        future: of the answer
    """

    entered: float
    due: float
    future: asyncio.Future[Seen]


def answers(questions: Sequence[Question]) -> list[Seen]:
    """Answer questions about images of one trunk, in their order."""
    trunk, found = questions[0].served.trunk, dict[int, Seen]()
    with torch.inference_mode():
        images = _images(questions)
        pairs = trunk.scored(images, [question.served.task for question in questions])
        for served, places in _groups(questions).items():
            parts = zip(*(pairs[place] for place in places), strict=True)
            features, scores = (exact(torch.stack(part)) for part in parts)
            chances = served.labels.probabilities(scores / served.facts.temperature).cpu().numpy()
            far = [math.nan] * len(places)
            if (unlike := served.facts.unlike) is not None:
                far = unlike.distances(features).tolist()
            for place, row, own, distance in zip(places, features, chances, far, strict=True):
                question = questions[place]
                found[place] = Seen(own, distance, box=question.image.box)
                if question.what == "features":
                    found[place] = Seen(features=row.float().cpu().numpy(), box=question.image.box)
                elif np.isnan(own).any():
                    found[place] = Seen(box=question.image.box, error=NOT_A_NUMBER)
                elif _looks(question) and not isinstance(images, Packed):
                    shown = _attention(question, images[place])
                    found[place] = replace(found[place], attention=shown)
    return [found[place] for place in range(len(questions))]


def _images(questions: Sequence[Question]) -> Tensor | Packed | list[Tensor]:
    """Return images as their models want them: a batch, or a list if there are several models."""
    batch: Tensor | Packed
    prepared: dict[int, Tensor] = {}
    groups = _groups(questions)
    for served, places in groups.items():
        config = served.facts.config
        pixels = joined_pixels([questions[place].image.pixels for place in places], config)
        batch = normalize(pixels.to(served.trunk.device), config)
        if len(groups) == 1 or isinstance(batch, Packed):  # packed images have their own trunk
            return batch
        prepared |= dict(zip(places, batch, strict=True))
    return [prepared[place] for place in range(len(questions))]


def _groups(questions: Sequence[Question]) -> dict[Served, list[int]]:
    """Return the places of each model's questions."""
    groups: dict[Served, list[int]] = {}
    for place, question in enumerate(questions):
        groups.setdefault(question.served, []).append(place)
    return groups


def _looks(question: Question) -> bool:
    return question.what == "attention" and question.served.card.attention


def _attention(question: Question, image: Tensor) -> NDArray[np.float32] | None:
    """Return where the model looked, the largest value 1."""
    trunk = question.served.trunk
    try:
        flow = trunk.attention(image, question.served.task)
    except UserError:  # a kind of layer that has none
        return None
    top = flow.max().clamp(min=torch.finfo(torch.float32).tiny)
    return (flow / top).float().cpu().numpy()


def best_batch(served: Served, most: int) -> tuple[int, float]:
    """Return the smallest batch, from `LEAST` on, whose rate is as good as any; seconds an image.

    Args:
        served: a model
        most: images at once
    """
    rates: dict[int, float] = {}
    end = time.monotonic() + BUDGET
    for size in (each for each in SIZES if each <= most):
        seconds = _seconds(served, size, end)
        if rates and seconds > LATENCY:
            break
        rates[size] = size / seconds
        if 2 * seconds > LATENCY or time.monotonic() > end:
            break
    best = max(rates.values())
    good = [size for size, rate in rates.items() if rate >= ENOUGH * best]
    chosen = min((size for size in good if size >= LEAST), default=max(good))
    return chosen, 1 / rates[chosen]


def warm(served: Served, size: int) -> None:
    """Compute one batch, so that the first request finds everything ready."""
    _pass([_blank(served)] * size)


def _seconds(served: Served, size: int, end: float) -> float:
    """Return the least seconds of some passes with so many images."""
    batch, found = [_blank(served)] * size, list[float]()
    while not found or (len(found) < REPEATS and time.monotonic() < end):
        found.append(_pass(batch))
    return min(found)


def _blank(served: Served) -> Question:
    config = served.facts.config
    pixels = np.zeros((*config.size_for(*config.size), config.channels), np.uint8)
    return Question(served, "classes" if config.classes else "features", Decoded(pixels))


def _pass(batch: list[Question]) -> float:
    start = time.perf_counter()
    answers(batch)
    return time.perf_counter() - start
