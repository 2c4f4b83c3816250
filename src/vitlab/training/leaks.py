"""Test images among the training images: found before the first step, reported or left out.

The figures of a run mean little if the model has learned from the images it is tested on. The same
files in both splits are found always, and so are equal bytes. Near-duplicates are, where there are
few enough images, or if the user asks for them; of more images, a sample says how many there may be
(`leak_scope.py`). What is learned of the images plays no part: classes, numbers, boxes and masks
have the same check.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from vitlab.data.duplicates.finding import find
from vitlab.data.duplicates.signatures import Signatures, signatures
from vitlab.data.hashes import digest
from vitlab.data.holdout import apply_moves, copies_together, learned
from vitlab.data.identities import NUMBERS, identities
from vitlab.data.images import Images
from vitlab.data.splits import Splits
from vitlab.data.target import Integers
from vitlab.errors import DataError, ImageError
from vitlab.machine.cores import cores
from vitlab.models.seen import Seen
from vitlab.progress import Meter, named_if_slow
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training.leak_record import Leaks, describe_leaks, describe_seen
from vitlab.training.leak_scope import (
    counts_searched,
    draw_sample,
    has_spares,
    is_left_out,
    scope_of,
)

SEEN = ("seen_test", "seen_validation", "learned_from", "seen_without_labels")
Pairs = tuple[list[int], list[int], int]
"""Training images, images of another split that they show, and how many of those are exact."""
Shared = tuple[Integers, Integers]
"""Training images, and images of another split, that may have the same bytes."""


@named_if_slow("looking for test images among the training images")
def find_leaks(recipe: Recipe, host: Host, splits: Splits, seen: Seen) -> dict[str, Any] | None:
    """Compare test and validation images with the training images, as far as their number allows.

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
    if is_left_out(recipe, host):
        return asdict(learnt) if learnt != Leaks("files") else None
    train, rest = splits.train, [splits.test, splits.validation]
    spares = has_spares(recipe, splits)
    shared = [_find_shared(train, each) for each in rest]
    pairs = zip(rest, shared, strict=True)
    found = _of("files", [_same(_files, train, other, among) for other, among in pairs])
    _refuse(found, splits, drop)
    scope = scope_of(recipe, splits)
    searched = counts_searched(recipe, host, splits, scope)
    workers = cores() if host.workers is None else host.workers
    workers *= scope.takes_long(sum(searched))
    if searched == scope.counts:
        move = not drop and not recipe.data.train_images
        most = len(train) / 2 if spares else np.inf
        found = _compared(splits, workers, move, most)
        if spares and len(found.train) > len(train) / 2:
            found = _copies("alike", splits, shared, scope.most_images)
    else:
        found = _copies("bytes", splits, shared, scope.most_images)
        if searched:
            found = _with_sample(found, splits, draw_sample(scope.counts, searched), workers)
    _refuse(found, splits, drop)
    is_whole = found.kind in ("near", "alike") or scope.is_tiny or bool(recipe.data.dev_share)
    dropped = drop or (bool(found.train) and splits.whole is not None and not spares)
    left_out = 0.0 if is_whole else scope.all_seconds
    doubtful = _doubtful(train, scope.most_images)
    found = replace(found, dropped=dropped, seconds=left_out, doubtful=doubtful)
    record = asdict(found) | {key: getattr(learnt, key) for key in SEEN}
    if not found.sample:
        del record["sample"]
    return record


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
    notes = [*splits.notes, *describe_seen(leaks, count), *describe_leaks(splits, leaks)]
    return apply_moves(replace(splits, train=train, notes=notes), leaks.moved)


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


def _find_shared(train: Images, other: Images | None) -> Shared:
    """Return the images of two splits that have an identity in common."""
    if other is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    marks = identities(train)
    asked = identities(other)
    return np.flatnonzero(np.isin(marks, asked)), np.flatnonzero(np.isin(asked, marks))


def _same(
    key: Callable[[Images, int], object], train: Images, other: Images | None, among: Shared
) -> Pairs:
    """Return the images, among some of two splits, whose keys are equal; None equals nothing."""
    if other is None:
        return [], [], 0
    mine, theirs = among
    asked: dict[object, list[int]] = {}
    for index in theirs.tolist():
        asked.setdefault(key(other, index), []).append(index)
    asked.pop(None, None)
    pairs = [(i, asked[same]) for i in mine.tolist() if (same := key(train, i)) in asked]
    test = {j for _, copies in pairs for j in copies}
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


def _copies(kind: str, splits: Splits, shared: Sequence[Shared], most: int) -> Leaks:
    """Return the images of two splits with the same bytes.

    Args:
        kind: of what is found
        splits: all images
        shared: those with an identity in common with test, and with validation images
        most: images whose bytes are read once more; of more, identities alone decide
    """
    train = splits.train
    pairs = []
    for other, (mine, theirs) in zip((splits.test, splits.validation), shared, strict=True):
        if other is None or len(mine) + len(theirs) <= most:
            pairs.append(_same(_bytes, train, other, (mine, theirs)))
            continue
        trained = mine[identities(train)[mine] >= NUMBERS]  # what is below says nothing of bytes
        copied = theirs[identities(other)[theirs] >= NUMBERS]
        pairs.append((trained.tolist(), copied.tolist(), len(copied)))
    return _of(kind, pairs)


def _doubtful(train: Images, most: int) -> tuple[tuple[int, int], ...]:
    """The images whose bytes an earlier image with other labels has, each with that one.

    None are looked for where the bytes of more images than `most` would have to be compared.
    """
    marks = identities(train)
    _, group, counts = np.unique(marks, return_inverse=True, return_counts=True)
    several = np.flatnonzero((counts[group] > 1) | (marks < NUMBERS))
    if len(several) > most:
        return ()
    first: dict[bytes, int] = {}
    pairs = []
    for index in several.tolist():
        key = _bytes(train, index)
        if key is None or first.setdefault(key, index) == index:
            continue
        if not train.target.are_equal(index, first[key]):
            pairs.append((first[key], index))
    return tuple(pairs)


def _with_sample(exact: Leaks, splits: Splits, chosen: Sequence[Integers], workers: int) -> Leaks:
    """Return exact copies with the near-duplicates in a sample.

    Args:
        exact: the copies among all images
        splits: all images
        chosen: the numbers of the sampled ones among training, test and validation images
        workers: processes that decode
    """
    parts = [splits.train, splits.test, splits.validation]
    sampled = [part and part.take(rows) for part, rows in zip(parts, chosen, strict=True)]
    pairs, compared = _near(sampled, workers)
    near = _of("sample", pairs)

    def joined(copies: Sequence[int], rows: Integers, duplicates: Sequence[int]) -> tuple[int, ...]:
        """Return the exact copies of a split, and the near-duplicates by their numbers there."""
        return tuple(sorted({*copies, *rows[list(duplicates)].tolist()}))

    counts = {"train": len(chosen[0]), "other": sum(map(len, chosen[1:]))}
    return replace(
        exact,
        kind="sample",
        train=joined(exact.train, chosen[0], near.train),
        test=joined(exact.test, chosen[1], near.test),
        validation=joined(exact.validation, chosen[2], near.validation),
        damaged=_damage_of(compared),
        sample=counts | {"found": len(near.train)},
    )


def _damage_of(compared: Sequence[Signatures]) -> tuple[str, ...]:
    """Return the messages about the images that could not be compared."""
    return tuple(message for images in compared for message in images.damaged)


def _compared(splits: Splits, workers: int, move: bool, most: float) -> Leaks:
    """Return the near-duplicates of test and validation images, or what `move` leaves of them.

    Of data that comes unsplit, copies of a picture can be put on one side instead, unless more
    training images than `most` are near-duplicates.
    """
    pairs, compared = _near([splits.train, splits.test, splits.validation], workers)
    damaged = _damage_of(compared)
    found = replace(_of("near", pairs), damaged=damaged)
    if not 0 < len(found.train) <= most or not move or splits.whole is None:
        return found
    copies = find(Signatures(np.concatenate([images.rows for images in compared])))
    numbers = list(zip(copies.train.tolist(), copies.test.tolist(), strict=True))
    changed = copies_together(splits, numbers)
    return Leaks("near", damaged=damaged, moved=changed) if changed else found


def _near(parts: Sequence[Images | None], workers: int) -> tuple[list[Pairs], list[Signatures]]:
    """Return the near-duplicates of the second and third of some parts, and all signatures."""
    total = sum(len(part) for part in parts if part is not None)
    with Meter(total, title="looking for near-duplicates") as meter:

        def show(done: int) -> None:
            meter.show(done, "images")

        signed = [
            None if p is None else signatures(p, workers=workers, progress=show) for p in parts
        ]
    compared = [images for images in signed if images is not None]
    return [_pairs(compared[0], images) for images in signed[1:]], compared


def _pairs(train: Signatures, other: Signatures | None) -> Pairs:
    """Return the near-duplicates in another split, and copies however few details they have."""
    if other is None:
        return [], [], 0
    pairs, known, exact = find(train, other), train.among(other), other.among(train)
    return [*pairs.train.tolist(), *known], [*pairs.test.tolist(), *exact], len(exact)
