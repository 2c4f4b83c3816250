"""Held-out images: chosen by a hash of each image's bytes, so that they stay the same ones.

An image is in the test split, in a fold or among the validation images by a number between 0 and 1
that its bytes and the split's seed give it: adding, removing, renaming or moving other images
changes nothing. Copies are on one side; so are near-duplicates, where a run has looked for them
(`copies_together`). Images of one group (`--group-column`) share a number.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.hashes import number_of
from vitlab.data.identifier import Identities
from vitlab.data.identities import NUMBERS, identities, with_content
from vitlab.data.images import Images, concat, places_in
from vitlab.data.settings import Data, part_of
from vitlab.data.split_words import SPLIT_WORDS
from vitlab.data.splits import ALL, Splits
from vitlab.data.target import Integers
from vitlab.errors import DataError, OptionError
from vitlab.models.seen import Seen, known, marked

SPLIT_SEED = 0  # the split belongs to the data: every run and every evaluation uses the same one
VALIDATION_SHARE = 0.1  # of each class


def hash_uniform(source: Images, purpose: str) -> NDArray[np.float64]:
    """Return the number between 0 and 1 that decides on each image for one purpose, (n,)."""
    found = source.group
    numbers = identities(source) if found is None else found
    mixed = numbers ^ np.uint64(number_of(f"{purpose} {SPLIT_SEED}".encode()))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) / 2.0**64


def stratified_holdout(source: Images, fraction: float, purpose: str) -> Integers:
    """Return the images that are held out: about `fraction` of each class, sorted.

    Where chance would take none of a class though `fraction` of it is at least half an image, or
    all of it, one is taken, or left: the one nearest to the threshold, with its copies or its
    group. Images with several labels, and groups, are taken as if all were of one class.
    """
    chance = hash_uniform(source, purpose)
    taken = chance < fraction
    values = source.target.strata * (source.group is None)
    by_class = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[by_class])) + 1
    classes = np.split(by_class, starts) if len(values) else []
    by_chance = np.argsort(chance)
    ordered = chance[by_chance]

    def alike(number: float) -> Integers:
        """The images with this chance."""
        first, end = (np.searchsorted(ordered, number, side) for side in ("left", "right"))
        return by_chance[first:end]

    for own in classes:
        if not taken[own].any() and round(fraction * len(own)):
            taken[alike(chance[own].min())] = True
    for own in classes:  # last: something must be left to learn from
        if taken[own].all():
            taken[alike(chance[own].max())] = False
    return np.flatnonzero(taken)


def hold_out(
    source: Images, fraction: float, notes: Sequence[str] = (), purpose: str = "test"
) -> Splits:
    """Hold out a share of every class for testing, always the same images.

    At least one image of each class stays in the training split.
    """
    source = with_content(source)
    if source.target.tests_some:
        return split_off(source, hold_out_some(source, fraction, purpose), fraction, notes)
    return split_off(source, stratified_holdout(source, fraction, purpose), fraction, notes)


def hold_out_some(source: Images, fraction: float, purpose: str) -> Integers:
    """Return the images that a share of all holds out: at least one, and at least one is left.

    Raises:
        DataError: there is one image only, or one group, and copies of it.
    """
    if len(source) < 2:
        raise DataError(f"{source.name(0)} is the only image with a mask: give at least 2")
    held_out = stratified_holdout(source, max(fraction, 1 / len(source)), purpose)
    if not len(held_out):
        alike = "copies" if source.group is None else "of one group"
        raise DataError(f"{source.name(0)} and all other images are {alike}: give others")
    return held_out


def in_splits(parts: Mapping[str, Images], fraction: float, notes: list[str]) -> Splits:
    """Return training and test images: those of the data, or a share that is held out.

    Args:
        parts: `all` alone, of data that comes unsplit, or `train` and others, first to last
        fraction: of each class, held out for testing where there is no other part
        notes: remarks for the user
    """
    train, *rest = (parts[name] for name in (ALL, *SPLIT_WORDS) if name in parts)
    if not rest:
        return hold_out(train, fraction, notes)
    return Splits(train, rest[-1], rest[0] if len(rest) > 1 else None, notes=notes)


def split_off(source: Images, test: Integers, fraction: float, notes: Sequence[str] = ()) -> Splits:
    """Return splits whose test images are those with the given numbers, `fraction` of all."""
    remarks = [
        *notes,
        f"{fraction:.0%} of {source.target.shared} held out for testing (always the same): "
        f"{len(test):,} of {len(source):,} images",
        *(f"class {name!r} has only one image" for name, n in source.counts().items() if n == 1),
    ]
    return Splits(source.without(test), source.take(test), whole=source, notes=remarks)


def with_validation(splits: Splits, decides: str = "when to stop") -> Splits:
    """Return the same splits with a validation split, taken from the training images if needed.

    Choosing the best weights by the test images would make their figures too good.

    Args:
        splits: with at least training and test images
        decides: on what the validation images decide, for the user

    Raises:
        DataError: too few images to take any.
    """
    if splits.validation is not None:
        return splits
    inner = hold_out(splits.train, VALIDATION_SHARE, purpose="validation")
    if not len(inner.test):
        raise DataError(
            f"{len(splits.train):,} training images are too few to hold some out to decide "
            f"{decides}: add a validation split, or leave that out (patience=0)"
        )
    note = (
        f"{VALIDATION_SHARE:.0%} of {inner.train.target.shared} held out of the training images to "
        f"decide {decides} (always the same): {len(inner.test):,} images"
    )
    return replace(
        splits,
        train=inner.train,
        validation=inner.test,
        notes=[*splits.notes, note],
        own_validation=True,
    )


def with_train_images(splits: Splits, amount: float) -> Splits:
    """Return the same splits with fewer training images, the same share of each class.

    The choice belongs to the data: it is the same in every run, and contains that of any smaller
    amount. It contains an image of each class; of images with several labels, the rest are drawn
    whatever their labels. Validation and test images stay as they are.

    Args:
        splits: all there is
        amount: number of images, or a share below 1; 0 for all

    Raises:
        OptionError: more images than there are, or fewer than show every class.
    """
    if not amount:
        return splits
    source = splits.train
    whole = len(splits.train)
    count = round(amount * whole) if amount < 1 else int(amount)
    if count > whole:
        raise OptionError(
            f"there are only {whole:,} training images: choose a --train-images of at most "
            f"{whole}, not {count}"
        )
    order, least = source.target.shuffle_evenly(np.random.default_rng(SPLIT_SEED))
    if count < least:
        raise OptionError(
            f"train_images comes to {count:,}, too few to show every class: choose a "
            f"--train-images of at least {least}"
        )
    note = f"trained on {count:,} of {whole:,} training images (always the same)"
    return replace(splits, train=source.take(np.sort(order[:count])), notes=[*splits.notes, note])


def take_partition(splits: Splits, options: Data) -> Splits:
    """Return splits whose test images are the part of the training images that the options name.

    The part belongs to the data: it is the same for every recipe and seed. A validation split stays
    as it is. The test images play no part, except that `fold` of unsplit data counts all images.

    Raises:
        DataError: too few images for that.
        OptionError: more training images than there are, or too few.
    """
    if options.fold:
        return fold_of(splits, options.fold)
    if not options.dev_share:
        return splits
    splits = with_train_images(splits, options.train_images)  # what is held out is among them
    inner = hold_out(splits.train, options.dev_share, purpose="dev")
    if not len(inner.test):
        raise DataError(
            f"{options.data}: {options.dev_share:.1%} of each class is less than one image: "
            "choose a larger share"
        )
    note = (
        f"{options.dev_share:.0%} of {inner.train.target.shared} of the training images held out "
        f"to test on (always the same): {len(inner.test):,} images; the test images play no part"
    )
    return replace(splits, train=inner.train, test=inner.test, notes=[*splits.notes, note])


def fold_of(splits: Splits, fold: str) -> Splits:
    """Return one part of the images as the test split, and all others as the training split.

    Raises:
        DataError: fewer images than parts, or a fold without an image.
    """
    part, parts = part_of(fold)
    source = splits.train if splits.whole is None else splits.whole
    if len(source) < parts:
        raise DataError(f"{len(source):,} images cannot be dealt out to {parts} folds")
    source = with_content(source)
    dealt = (hash_uniform(source, "folds") * parts).astype(np.int64)
    test = np.flatnonzero(dealt == part - 1)
    if not 0 < len(test) < len(source):
        raise DataError(f"fold {fold} has {len(test)} of {len(source)} images: use fewer folds")
    kept = source.without(test)
    note = (
        f"fold {part} of {parts}: tested on {len(test):,} of {len(source):,} images, trained on "
        "the others"
    )
    left = {*kept.present()}
    lost = [name for name in source.present() if name not in left]
    notes = [note, *(f"class {name!r}: its only images are in the test fold" for name in lost)]
    if splits.whole is None:
        notes = [*splits.notes, *notes]
    return replace(splits, train=kept, test=source.take(test), notes=notes)


SIDES = ("train", "test", "validation")


def copies_together(splits: Splits, copies: Sequence[tuple[int, int]]) -> dict[str, list[int]]:
    """Return which images change sides so that near-duplicates of one another are on one side.

    All copies of a picture go where the one with the smallest identity is, by its own hash: the
    shares of the splits stay what they are, and a picture is tested in one fold alone.

    Args:
        splits: of data that comes unsplit
        copies: near-duplicates, by their numbers among training, test and validation images

    Returns:
        By split, the numbers of the images in the whole that it gets; empty where a class would
        have no image left to learn from, or nothing would be left to test on.
    """
    parts = [splits.parts[name] for name in SIDES if name in splits.parts]
    source = concat(parts)
    sides = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    picture = _joined_by(len(source), copies, source.group)
    order = np.lexsort((identities(source), picture))
    first = order[np.unique(picture[order], return_index=True)[1]]  # of each picture
    wanted = sides[first][picture]
    before = np.array(splits.train.target.counts(len(splits.classes)))
    after = np.array(source.target.take(np.flatnonzero(wanted == 0)).counts(len(splits.classes)))
    if not (wanted == 1).any() or (before > 0)[after == 0].any():
        return {}
    assert splits.whole is not None
    numbers = places_in(source, splits.whole)
    changed = {
        name: np.sort(numbers[(wanted == side) & (sides != side) & (numbers >= 0)]).tolist()
        for side, name in enumerate(SIDES)
    }
    return {name: own for name, own in changed.items() if own}


def _joined_by(
    count: int, copies: Sequence[tuple[int, int]], groups: Identities | None
) -> Integers:
    """Number images so that near-duplicates, and images of one group, have one number, (count,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = np.array(copies, np.int64).reshape(-1, 2)
    if groups is not None:
        _, first, group = np.unique(groups, return_index=True, return_inverse=True)
        pairs = np.concatenate([pairs, np.stack([np.arange(count), first[group]], 1)])
    links = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    return np.asarray(connected_components(links, directed=False)[1], np.int64)


def apply_moves(splits: Splits, changed: Mapping[str, Sequence[int]]) -> Splits:
    """Return splits after images have changed sides, as `copies_together` says."""
    if not changed or splits.whole is None:
        return splits
    whole = splits.whole
    every = [number for own in changed.values() for number in own]

    def after(part: Images, name: str) -> Images:
        places = places_in(part, whole)
        own = np.setdiff1d(places[places >= 0], every)
        found = whole.take(np.union1d(own, np.array(changed.get(name, ()), np.int64)))
        beside = np.flatnonzero(places < 0)  # images without labels, of data with some
        return concat([found, part.take(beside)]) if len(beside) else found

    parts: dict[str, Any] = {name: after(part, name) for name, part in splits.parts.items()}
    return replace(splits, **parts)


def training_hashes(splits: Splits, *, labeled: bool) -> Seen:
    """Return the images that a run on these splits learns from, or decides by: `Model.seen`.

    Validation images that were held out of the training images count.
    """
    used = [splits.train]
    if splits.validation is not None and splits.own_validation:
        used.append(splits.validation)
    found = np.concatenate(list(map(identities, used)))
    return marked(found[found >= NUMBERS], labeled=labeled)


def learned(source: Images, seen: Seen, *, labeled: bool = True) -> Integers:
    """Return the images that a model has learned from, with labels or without, sorted."""
    if not len(seen):
        return np.empty(0, np.int64)
    found = identities(source)
    return np.flatnonzero(known(found, seen, labeled=labeled) & (found >= NUMBERS))


def fingerprint(source: Images) -> str:
    """Return a checksum of the labels, the classes and the images, wherever the data lies.

    It lets an evaluation recognize the data that a model was trained on, and use only the part
    that was held out.
    """
    digest = hashlib.sha256(repr(source.classes).encode())
    digest.update(source.target.content())
    for index in np.linspace(0, len(source) - 1, num=8, dtype=int):  # some have only numbers
        with suppress(DataError):  # an unreadable image is reported when it is decoded
            digest.update(source.image(int(index)).content())
    digest.update(identities(source).tobytes())
    return digest.hexdigest()
