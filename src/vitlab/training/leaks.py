"""Test images among the training images: found before the first step, reported or left out.

The figures of a run mean little if the model has learned from the images it is tested on. The same
files in both splits are found always, equal bytes if all images can be read within a minute, and
near-duplicates if all can be decoded and compared within a minute, or if the user asks for them.
What is learned of the images plays no part: classes, numbers, boxes and masks have the same check.
"""

import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from vitlab.data.boxes import SCENES
from vitlab.data.duplicates.finding import SMALL, find
from vitlab.data.duplicates.signatures import Signatures, signatures
from vitlab.data.hashes import digest
from vitlab.data.holdout import copies_together, learned, moved
from vitlab.data.images import Images
from vitlab.data.splits import Splits
from vitlab.errors import DataError, ImageError
from vitlab.machine.cores import cores
from vitlab.models.seen import Seen
from vitlab.progress import Meter, named_if_slow
from vitlab.recipes.recipe import Host, Recipe
from vitlab.units import duration, seconds

LIMIT = 60.0  # seconds that a check may take unless it is asked for
SHARE = 0.05  # of a time budget
_SEARCH = 5e-4  # seconds per image that comparing takes (docs/duplicates.md)
_SAMPLE = 16  # images of each split that the time is estimated from
_QUICK = 10.0  # seconds of reading within which the training images are compared among themselves
_FEW = 5.0  # seconds of decoding below which no worker processes are started


@dataclass(frozen=True)
class Leaks:
    """What was found, by the numbers of the images in their splits.

    Attributes:
        kind: `near`, `bytes` or `files`: by what images were compared; `alike`: by bytes, since
            most are near-duplicates
        train: training images that show a test or validation image
        test: the test images among those
        validation: the validation images among those
        exact: how many of the test images have the same bytes, or are the same file
        dropped: whether the training images are left out
        seconds: that the full check would have taken; 0 if it was not left out
        doubtful: training images whose bytes are there again with other labels, in pairs
        seen_test: test images left out, since the models that the run begins with learned from them
        seen_validation: validation images likewise
        learned_from: how many of the test images they learned from, where those are all there are
        seen_without_labels: how many test images they saw without labels
        damaged: messages about images that could not be compared
        moved: images that were put beside their near-duplicates: numbers in the whole, by split
    """

    kind: str
    train: tuple[int, ...] = ()
    test: tuple[int, ...] = ()
    validation: tuple[int, ...] = ()
    exact: int = 0
    dropped: bool = False
    seconds: float = 0.0
    doubtful: tuple[tuple[int, int], ...] = ()
    seen_test: tuple[int, ...] = ()
    seen_validation: tuple[int, ...] = ()
    learned_from: int = 0
    seen_without_labels: int = 0
    damaged: tuple[str, ...] = ()
    moved: dict[str, list[int]] = field(default_factory=dict)


SEEN = ("seen_test", "seen_validation", "learned_from", "seen_without_labels")
Pairs = tuple[list[int], list[int], int]
"""Training images, images of another split that they show, and how many of those are exact."""


@named_if_slow("looking for test images among the training images")
def find_leaks(recipe: Recipe, host: Host, splits: Splits, seen: Seen) -> dict[str, Any] | None:
    """Compare test and validation images with the training images, as far as time allows.

    Those that the models have learned from which the run begins with are found first.

    Args:
        recipe: with `drop_duplicates` all images are compared, however long it takes
        host: `check_duplicates`, and how many processes decode
        splits: as the run uses them
        seen: by those models

    Returns:
        `Leaks` as a dictionary; None if the user wants no check, and of digit scenes.

    Raises:
        DataError: test images are training files, or all are copies of training images, and are
            not to be left out; or nothing is left to learn from.
    """
    learnt = _learned(splits, seen)
    splits = _unseen(splits, learnt)
    drop = recipe.data.drop_duplicates
    always = drop or host.check_duplicates == "yes"
    # no test scene has a digit of a training scene, but some look alike
    if not always and (host.check_duplicates == "no" or recipe.data.data == SCENES):
        return asdict(learnt) if learnt != Leaks("files") else None
    train, rest = splits.train, [splits.test, splits.validation]
    # plain pictures with one thing in them look alike, and differ in where it is
    spares = recipe.pretext.annotated and splits.whole is not None and not drop
    found = _of("files", [_same(_files, train, each) for each in rest])
    _refuse(found, splits, drop)
    decoding, reading, tiny = _estimated([train, *filter(None, rest)])
    workers = (cores() if host.workers is None else host.workers) * (decoding > _FEW)
    needed = decoding / max(workers, 1) + _SEARCH * (len(train) + sum(map(len, filter(None, rest))))
    limit = time_limit(recipe)
    if not tiny and (always or (needed < limit and not recipe.data.dev_share)):
        move = not drop and not recipe.data.train_images
        found = _compared(splits, workers, move, most=len(train) / 2 if spares else np.inf)
        if spares and len(found.train) > len(train) / 2:
            found = _of("alike", [_same(_bytes, train, each) for each in rest])
    elif always or reading < limit:
        found = _of("bytes", [_same(_bytes, train, each) for each in rest])
    _refuse(found, splits, drop)
    left_out = 0.0 if found.kind in ("near", "alike") or tiny or recipe.data.dev_share else needed
    doubtful = _doubtful(train) if reading < min(_QUICK, limit) else ()
    dropped = drop or (bool(found.train) and splits.whole is not None and not spares)
    found = replace(found, dropped=dropped, seconds=left_out, doubtful=doubtful)
    return asdict(found) | {key: getattr(learnt, key) for key in SEEN}


def _learned(splits: Splits, seen: Seen) -> Leaks:
    """Return which test and validation images were learned from by what the run begins with."""
    test = tuple(learned(splits.test, seen).tolist())
    validation: tuple[int, ...] = ()
    if splits.validation is not None and not splits.own_validation:
        found = learned(splits.validation, seen)
        validation = tuple(found.tolist()) if len(found) < len(splits.validation) else ()
    every = len(test) * (len(test) == len(splits.test))
    left_out = () if every else test
    unlabeled = len(learned(splits.test.without(left_out), seen, labeled=False))
    return Leaks(
        "files",
        seen_test=left_out,
        seen_validation=validation,
        learned_from=every,
        seen_without_labels=unlabeled,
    )


def _unseen(splits: Splits, leaks: Leaks) -> Splits:
    """Return splits without the test and validation images that were learned from."""
    validation = splits.validation and splits.validation.without(leaks.seen_validation)
    return replace(splits, test=splits.test.without(leaks.seen_test), validation=validation)


def time_limit(recipe: Recipe) -> float:
    """Return the seconds that a check without being asked for may take."""
    return min(LIMIT, max(1, SHARE * seconds(recipe.budget))) if recipe.budget else LIMIT


def applied(splits: Splits, found: dict[str, Any] | None) -> Splits:
    """Return splits without the training images to leave out, and with what was found as notes.

    Args:
        splits: as they were compared
        found: what `find_leaks` returned, now or when the run was started
    """
    if found is None:
        return splits
    leaks, count = Leaks(**found), len(splits.test)
    splits = _unseen(splits, leaks)
    train = splits.train.without(leaks.train if leaks.dropped else ())
    notes = [*splits.notes, *_seen_remarks(leaks, count), *_remarks(splits, leaks)]
    return moved(replace(splits, train=train, notes=notes), leaks.moved)


def leak_figures(found: dict[str, Any] | None) -> dict[str, int]:
    """Return how many test images were learned from, before the run or in it, where there are any.

    Args:
        found: what `find_leaks` returned
    """
    leaks = Leaks(**found) if found else Leaks("files")
    trained_on = 0 if leaks.dropped else len(leaks.test)
    counts = {"learned_from": leaks.learned_from, "trained_on": trained_on}
    return {key: count for key, count in counts.items() if count}


def _seen_remarks(leaks: Leaks, count: int) -> list[str]:
    """Return lines on test images that were learned from before the run."""
    lines, left = [], count - len(leaks.seen_test)
    if leaks.learned_from:
        lines.append(
            f"the weights or the teacher of this run have learned from {leaks.learned_from:,} of "
            f"{count:,} test images, and there are no others: figures on them are too good"
        )
    if leaks.seen_test:
        lines.append(
            f"{len(leaks.seen_test):,} of {count:,} test images are left out: the weights or the "
            "teacher of this run have learned from them"
        )
    if leaks.seen_without_labels:
        lines.append(
            f"{leaks.seen_without_labels:,} of {left:,} test images were in the training without "
            "labels of the weights or the teacher of this run"
        )
    return lines


def _remarks(splits: Splits, leaks: Leaks) -> list[str]:
    """Return what the user should know, a line each."""
    kind = {"near": "near-duplicates", "files": "the same files"}.get(leaks.kind, "exact copies")
    lines = []
    if leaks.doubtful:
        one, other = (splits.train.name(index) for index in leaks.doubtful[0])
        lines.append(
            f"{len(leaks.doubtful):,} training images occur again {splits.train.target.again}, "
            f"such as {one} and {other}"
        )
    named = (("test", splits.test, leaks.test), ("validation", splits.validation, leaks.validation))
    for name, source, indices in named:
        if source is not None and indices:
            lines.append(
                f"{len(indices):,} of the {len(source):,} {name} images are among the training "
                f"images, as {kind}"
            )
    if leaks.moved:
        count = sum(map(len, leaks.moved.values()))
        lines.append(
            f"{count:,} images were moved to the split of their near-duplicates, so that copies of "
            "a picture are either all trained on or all tested on"
        )
    if leaks.dropped:
        lines.append(
            f"left out of training: {len(leaks.train):,} of {len(splits.train):,} training images, "
            "which show test or validation images"
        )
    elif leaks.test:
        lines[bool(leaks.doubtful)] += (
            ": figures on them are too good; vitlab duplicates shows them, --drop-duplicates "
            "leaves them out of training"
        )
    elif leaks.kind == "near":
        compared = f" ({len(leaks.damaged):,} damaged images could not be compared)"
        lines.append(
            "no test image is a near-duplicate of a training image" + compared * bool(leaks.damaged)
        )
    if leaks.kind == "alike":
        lines.append(
            "most images look so alike that near-duplicates mean nothing: only exact copies of "
            "test images were looked for among the training images"
        )
    if leaks.seconds:
        lines.append(
            "not checked for near-duplicates of test images among the training images, which would "
            f"take {duration(leaks.seconds)}: run vitlab duplicates, or pass --check-duplicates yes"
        )
    return lines


def _refuse(found: Leaks, splits: Splits, drop: bool) -> None:
    """Refuse a test split that is part of the training images, and an empty training split."""
    if len(found.train) == len(splits.train) and (drop or splits.whole is not None):
        raise DataError(
            "every training image is a copy of a test or validation image: nothing is left to "
            "learn from; without --drop-duplicates, --check-duplicates no trains all the same"
        )
    if not drop and found.test and (found.kind == "files" or found.exact == len(splits.test)):
        kind = "training files too" if found.kind == "files" else "copies of training images"
        raise DataError(
            f"{found.exact:,} of the {len(splits.test):,} test images are {kind}, such as "
            f"{splits.test.name(found.test[0])}: take them out of one split, or pass "
            "--drop-duplicates to leave them out of training, or --check-duplicates no to train "
            "all the same"
        )


def _of(kind: str, pairs: list[Pairs]) -> Leaks:
    """Return what pairs with the test images, and pairs with the validation images, amount to."""
    train = sorted({index for each in pairs for index in each[0]})
    test, validation = (tuple(sorted(set(each[1]))) for each in pairs)
    return Leaks(kind, tuple(train), test, validation, pairs[0][2])


def _same(key: Callable[[Images, int], object], train: Images, other: Images | None) -> Pairs:
    """Return the images whose keys are equal; None equals nothing."""
    if other is None:
        return [], [], 0
    asked: dict[object, list[int]] = {}
    for index in range(len(other)):
        asked.setdefault(key(other, index), []).append(index)
    asked.pop(None, None)
    pairs = [(i, asked[found]) for i in range(len(train)) if (found := key(train, i)) in asked]
    test = {j for _, each in pairs for j in each}
    return [i for i, _ in pairs], sorted(test), len(test)


def _files(source: Images, index: int) -> str | None:
    """Return the name of an image that lies in a file."""
    return None if source.in_memory else os.path.normpath(source.name(index))


def _bytes(source: Images, index: int) -> bytes | None:
    """Return the checksum of an image; None if it cannot be read."""
    try:
        return digest(source.image(index).content())
    except ImageError:
        return None


def _doubtful(train: Images) -> tuple[tuple[int, int], ...]:
    """The images whose bytes an earlier image with other labels has, each with that one."""
    first: dict[bytes, int] = {}
    pairs = []
    for index in range(len(train)):
        key = _bytes(train, index)
        if key is None or first.setdefault(key, index) == index:
            continue
        if not train.target.are_equal(index, first[key]):
            pairs.append((first[key], index))
    return tuple(pairs)


def _compared(splits: Splits, workers: int, move: bool, most: float) -> Leaks:
    """Return the near-duplicates of test and validation images, or what `move` leaves of them.

    Of data that comes unsplit, copies of a picture can be put on one side instead, unless more
    training images than `most` are near-duplicates.
    """
    parts = [splits.train, splits.test, splits.validation]
    total = sum(len(each) for each in parts if each is not None)
    with Meter(total, title="looking for near-duplicates") as meter:

        def show(done: int) -> None:
            meter.show(done, "images")

        known = [
            None if p is None else signatures(p, workers=workers, progress=show) for p in parts
        ]
    there = [each for each in known if each is not None]
    pairs = [_pairs(there[0], each) for each in known[1:]]
    damaged = tuple(message for each in there for message in each.damaged)
    found = replace(_of("near", pairs), damaged=damaged)
    if not 0 < len(found.train) <= most or not move or splits.whole is None:
        return found
    copies = find(Signatures(np.concatenate([each.rows for each in there])))
    numbers = list(zip(copies.train.tolist(), copies.test.tolist(), strict=True))
    changed = copies_together(splits, numbers)
    return Leaks("near", damaged=damaged, moved=changed) if changed else found


def _pairs(train: Signatures, other: Signatures | None) -> Pairs:
    """Return the near-duplicates in another split, and copies however few details they have."""
    if other is None:
        return [], [], 0
    pairs, known, exact = find(train, other), train.among(other), other.among(train)
    return [*pairs.train.tolist(), *known], [*pairs.test.tolist(), *exact], len(exact)


def _estimated(sources: list[Images]) -> tuple[float, float, bool]:
    """Return the seconds that decoding and reading all images takes, and whether all are tiny."""
    decoding = reading = 0.0
    tiny = True
    for source in sources:
        chosen = np.linspace(0, len(source) - 1, num=min(_SAMPLE, len(source)), dtype=np.int64)
        start = time.perf_counter()
        for index in chosen.tolist():
            _bytes(source, index)
        middle = time.perf_counter()
        sample = signatures(source.take(chosen), workers=0)
        seconds = time.perf_counter() - middle
        share = len(source) / max(len(chosen), 1)
        reading, decoding = reading + share * (middle - start), decoding + share * seconds
        tiny &= bool((sample.rows["sides"] < SMALL).all())
    return decoding, reading, tiny
