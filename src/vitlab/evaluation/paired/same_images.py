"""The test images that several models have in common, and their answers side by side."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitlab.evaluation.answers import Answers, Integers, SingleAnswers
from vitlab.evaluation.paired.examined import Examined


@dataclass(frozen=True, eq=False)
class SameImages:
    """The answers of several models to the same images, in the same order.

    Attributes:
        runs: numbers of the models that have images in common, at least two, rising
        classes: names of all classes that these models know
        answers: of each of them, (n,), classes numbered as in `classes`
        indices: of each of them, the numbers of the images among its own test images, int64 (n,)
        relabeled: images left out because their labels are not the same for all
        apart: numbers of the models that were tested on other images
    """

    runs: tuple[int, ...]
    classes: tuple[str, ...]
    answers: list[Answers]
    indices: list[Integers]
    relabeled: int
    apart: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.indices[0])

    @property
    def several(self) -> bool:
        """Whether an image has any number of labels."""
        return not isinstance(self.answers[0], SingleAnswers)


def same_images(examined: Sequence[Examined | None]) -> SameImages | None:
    """Find the images that models were tested on in common, and match their classes by name.

    It begins with the test images that most models share; a model without any of them stays apart.

    Args:
        examined: the answers of each model; None where they are not known

    Returns:
        None if no two models have an image in common.
    """
    known = {number: each for number, each in enumerate(examined) if each is not None}
    if not known:
        return None
    sets = Counter(_test_set(each) for each in known.values())
    usual = sets.most_common(1)[0][0]
    first = next(number for number, each in known.items() if _test_set(each) == usual)
    runs, common = [first], np.unique(known[first].keys)
    for number, each in known.items():
        shared = np.intersect1d(common, each.keys)
        if number != first and len(shared) and _kind(each) is _kind(known[first]):
            runs.append(number)
            common = shared
    if len(runs) < 2:
        return None
    runs.sort()
    chosen = [known[number] for number in runs]
    order = common[np.argsort(_places(chosen[0], common), kind="stable")]  # as the first has them
    places = [_places(each, order) for each in chosen]
    classes = _union([each.classes for each in chosen])
    answers: list[Answers] = [
        each.answers.take(own).renumbered(_numbers(each.classes, classes), len(classes))
        for each, own in zip(chosen, places, strict=True)
    ]
    alike = _same_truth(answers)
    if not alike.any():
        return None
    return SameImages(
        tuple(runs),
        tuple(name for name, _ in classes),
        [each.take(np.flatnonzero(alike)) for each in answers],
        [each.indices[own][alike] for each, own in zip(chosen, places, strict=True)],
        int((~alike).sum()),
        tuple(sorted(known.keys() - set(runs))),
    )


def _kind(examined: Examined) -> type[Answers]:
    return type(examined.answers)


def _test_set(examined: Examined) -> tuple[str, bytes]:
    return _kind(examined).__name__, np.sort(examined.keys).tobytes()


def _places(examined: Examined, keys: Integers) -> Integers:
    """Return where each of these images stands among those of a model."""
    order = np.argsort(examined.keys, kind="stable")
    return order[np.searchsorted(examined.keys, keys, sorter=order)]


def _union(names: Sequence[tuple[str, ...]]) -> list[tuple[str, int]]:
    """Return all classes: those of the first model, then what others add; namesakes counted."""
    return list(dict.fromkeys(each for own in names for each in _counted(own)))


def _counted(names: Sequence[str]) -> list[tuple[str, int]]:
    """Return names, each with how often it stood before: two classes may share one."""
    before: Counter[str] = Counter()
    found = []
    for name in names:
        found.append((name, before[name]))
        before[name] += 1
    return found


def _numbers(names: tuple[str, ...], classes: Sequence[tuple[str, int]]) -> Integers:
    place = {each: number for number, each in enumerate(classes)}
    return np.array([place[each] for each in _counted(names)], np.int64)


def _same_truth(answers: Sequence[Answers]) -> NDArray[np.bool_]:
    """Return of which images all models were told the same labels: (n,)."""
    truths = [each.truth if isinstance(each, SingleAnswers) else each.table for each in answers]
    tables = [each.reshape(len(each), -1) for each in truths]
    return np.all([(each == tables[0]).all(1) for each in tables], axis=0)
