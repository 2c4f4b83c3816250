"""The test images that tell models apart: what only one gets right or wrong, and what all do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.data.sources.source import Source
from vitlab.evaluation.answers import Answers, SingleAnswers
from vitlab.evaluation.paired_tests import SameImages
from vitlab.report.drawings.thumbnails import of_source

PICTURES = 72  # at most, of all galleries together
FEWEST, MOST = 3, 16  # of one gallery


@dataclass(frozen=True)
class Answer:
    """What one run says of an image: its number, the class, its probability, whether it is so."""

    run: int
    guess: str
    chance: float
    right: bool


@dataclass(frozen=True)
class Shown:
    """An image on which runs are compared.

    Attributes:
        picture: a data URI; empty where the image cannot be read
        name: what its source calls it
        truth: its class, or classes
        answers: of each run
    """

    picture: str
    name: str
    truth: str
    answers: list[Answer]


@dataclass(frozen=True)
class Gallery:
    """Images of one kind, the most confident mistake first.

    Attributes:
        kind: `right` or `wrong` for what only one run gets so, `none` for what all get wrong
        run: number of that run
        count: how many there are
        shown: the first of them
    """

    kind: str
    run: int | None
    count: int
    shown: list[Shown]


def galleries(same: SameImages, source: Source | None, of: int = 0) -> list[Gallery]:
    """Return the images on which the runs disagree, then those that all get wrong.

    Of two runs, what only the one gets right is what only the other gets wrong, and comes once.

    Args:
        same: the answers of all runs to the same images
        source: the test images of one run; None if they are not at hand: nothing is shown
        of: the place of that run among `same.runs`
    """
    right: NDArray[np.bool_] = np.stack([each.right for each in same.answers])  # (runs, n)
    kinds: list[tuple[str, int | None, NDArray[np.bool_]]] = []
    alone = right.sum(0) == 1
    kinds += [("right", run, alone & right[place]) for place, run in enumerate(same.runs)]
    if len(same.runs) > 2:
        lost = (~right).sum(0) == 1
        kinds += [("wrong", run, lost & ~right[place]) for place, run in enumerate(same.runs)]
    kinds.append(("none", None, right.sum(0) == 0))
    most = min(MOST, max(FEWEST, PICTURES // len(kinds)))
    surest = _confidence_of_the_wrong(same.answers, right)
    found = []
    for kind, run, chosen in kinds:
        places = np.flatnonzero(chosen)
        first = places[np.argsort(-surest[places], kind="stable")][:most].tolist()
        shown = [] if source is None else [_shown(same, source, of, place) for place in first]
        found.append(Gallery(kind, run, len(places), shown))
    return found


def _confidence_of_the_wrong(
    answers: Sequence[Answers], right: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return how sure those are, on average, who get an image wrong: (n,), 0 if nobody does."""
    confidence = np.stack([each.confidence for each in answers])
    sums = np.where(right, 0, confidence).sum(0)
    mean: NDArray[np.float64] = sums / np.maximum((~right).sum(0), 1)
    return mean


def _shown(same: SameImages, source: Source, of: int, place: int) -> Shown:
    index = int(same.indices[of][place])
    return Shown(
        of_source(source, index),
        source.name(index),
        _truth(same, place),
        [
            Answer(
                run,
                _guess(answers, place, same.classes),
                float(answers.confidence[place]),
                bool(answers.right[place]),
            )
            for run, answers in zip(same.runs, same.answers, strict=True)
        ],
    )


def _truth(same: SameImages, place: int) -> str:
    answers = same.answers[0]
    if isinstance(answers, SingleAnswers):
        return same.classes[answers.truth[place]]
    return _named(answers.table[place], same.classes.__getitem__)


def _guess(answers: Answers, place: int, classes: tuple[str, ...]) -> str:
    if isinstance(answers, SingleAnswers):
        return classes[answers.guess[place]]
    return _named(answers.chosen[place], classes.__getitem__)


def _named(row: NDArray[np.generic], name: Callable[[int], str]) -> str:
    return ", ".join(map(name, np.flatnonzero(row).tolist())) or "none"
