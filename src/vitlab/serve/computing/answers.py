"""What a batch of images is answered: one pass for all of one trunk, whatever their models."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import joined_pixels
from vitlab.device import exact
from vitlab.errors import UserError
from vitlab.models.packed import Packed
from vitlab.serve.computing.roster import Served
from vitlab.serve.decoding.decoders import Decoded
from vitlab.serve.seen import Seen, What

NOT_A_NUMBER = "the model gives a probability that is not a number: its weights are damaged"


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
