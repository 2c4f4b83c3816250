"""Answers to a batch of images: one pass for all of one form, whatever their models.

A batch takes what waits when the device becomes free: its largest size, measured on a blank image,
is reached only under load and costs a lone request nothing.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.decode.pixels import Box
from vitlab.data.loading.batches import joined_pixels
from vitlab.errors import UserError
from vitlab.evaluation.infer import probabilities
from vitlab.models.heads.detect import Detector
from vitlab.models.heads.segment import Segmenter
from vitlab.models.packed import Packed
from vitlab.on_device import exact
from vitlab.serve import heads
from vitlab.serve.decoder import WHOLE
from vitlab.serve.decoders import Decoded
from vitlab.serve.registry import Served

What = Literal["classes", "features", "attention"]
MOST_CPU, MOST_GPU = 8, 32  # images of a batch: more of them are no faster
LATENCY = 1.0  # seconds that a batch may take, unless it is of one image


@dataclass(frozen=True)
class Seen:
    """The answer for one image.

    Attributes:
        probabilities: float64 (classes,), those of `vitlab.classify`
        found: what a head answers with instead, as `serve.heads` has it; None if it is not finite
        distance: from the training images, likewise; NaN if the model does not know
        features: float32 (features,)
        attention: float32 (rows, columns), where the last layers look, divided by its largest
            value; None if it is not asked for, or the model has none
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
    found: dict[str, Any] | None = None


@dataclass(frozen=True, eq=False)
class Question:
    """One decoded image, and what is asked about it.

    Attributes:
        served: the model that it is for
        what: is asked; classes stand for what the model answers with
        image: decoded
        due: when its request is given up, by `time.monotonic`
        future: of the answer, if anyone waits for it
    """

    served: Served
    what: What
    image: Decoded
    due: float = math.inf
    future: asyncio.Future[Seen] | None = None


def answers(questions: Sequence[Question]) -> list[Seen]:
    """Answer questions about images for one form, in their order."""
    trunk, found = questions[0].served.trunk, dict[int, Seen]()
    head, decoded = trunk.head, [each.image for each in questions]
    with torch.inference_mode():
        if isinstance(head, Segmenter):
            return [Seen(found=each) for each in heads.masks(head, decoded)]
        images = _images(questions)
        if isinstance(head, Detector):
            assert isinstance(images, Tensor)  # squashed
            return [Seen(found=each) for each in heads.boxes(head, images, decoded)]
        tasks = [question.served.task for question in questions]
        scored = trunk.scored(images, tasks, questions[0].served.form)
        for served, places in _groups(questions).items():
            own = [scored[place] for place in places]
            features = exact(torch.stack([each[0] for each in own]))
            scores = exact(torch.stack([each[1] for each in own]))
            chances = probabilities(scores, served.facts).cpu().numpy()
            far = [math.nan] * len(places)
            if (unlike := served.facts.unlike) is not None:
                inner = torch.stack([each[2] for each in own if each[2] is not None])
                far = unlike.distances(exact(inner)).tolist()
            rows = heads.numbers(head, features) if head else [None] * len(places)
            vectors = features.float().cpu().numpy()
            each = zip(places, chances, far, vectors, rows, strict=True)
            for place, sure, distance, vector, numbers in each:
                question = questions[place]
                looked, box = _attention(question, images, place), question.image.box
                found[place] = Seen(sure, distance, vector, looked, box, found=numbers)
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


def _attention(
    question: Question, images: Tensor | Packed | list[Tensor], place: int
) -> NDArray[np.float32] | None:
    """Return where the model looked, the largest value 1, if that is asked for."""
    served = question.served
    if question.what != "attention" or not served.card.attention:
        return None
    assert not isinstance(images, Packed)  # whose models have none
    try:
        flow = served.trunk.attention(images[place], served.task)
    except UserError:  # a kind of layer that has none
        return None
    top = flow.max().clamp(min=torch.finfo(torch.float32).tiny)
    return (flow / top).float().cpu().numpy()


def best_batch(served: Served) -> tuple[int, float]:
    """Return how many images a batch may have, and the seconds of one."""
    seconds = min(try_blank(served) for _ in range(2))
    most = MOST_CPU if served.trunk.device.type == "cpu" else MOST_GPU
    return max(1, min(most, int(LATENCY / seconds))), seconds


def try_blank(served: Served) -> float:
    """Compute a blank image, so that the next one finds everything ready; return the seconds."""
    config, start = served.facts.config, time.perf_counter()
    pixels = np.zeros((*config.size_for(*config.size), config.channels), np.uint8)
    what: What = "features" if served.card.answers == "features" else "classes"
    answers([Question(served, what, Decoded(pixels, size=pixels.shape[:2]))])
    return time.perf_counter() - start
