"""Data to learn from, with labels or without, split; opened once for several runs: `OpenedData`."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitlab.data.holdout import chosen, in_splits
from vitlab.data.identities import identified
from vitlab.data.labels import check_classes
from vitlab.data.loading.cache import PixelCache, cached
from vitlab.data.open import Opened, open_images, stripped
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.request import ALL, Given, Splits
from vitlab.data.sources.source import Joined, Source, Subset, origin, present, without
from vitlab.data.split_words import SPLIT_WORDS
from vitlab.data.splits import split_opened
from vitlab.errors import DataError

SHARE, MOST = 0.1, 1000  # of images without labels: how many measure the loss
USUAL = Data().test_fraction  # another one is the user's own choice
LOOKED_AT = 8  # images, before training


def open_to_learn(
    data: Given,
    test_fraction: float = USUAL,
    *,
    columns: Columns | None = None,
    unlabeled: bool = False,
) -> Splits:
    """Open data to learn from, and to be tested on.

    Args:
        data: as a user names it, or in memory
        test_fraction: share of each class to hold out where the data comes unsplit
        columns: the columns of a list or a table; None to find them
        unlabeled: learn without labels, from all images of the training split

    Raises:
        DataError: the data cannot be used: fewer than two classes, or too few images.
    """
    opened = open_images(data, "optional" if unlabeled else "required", columns=columns)
    splits = (
        _without_labels(opened, test_fraction) if unlabeled else split_opened(opened, test_fraction)
    )
    if not unlabeled:
        _check_classes(splits, opened.title)
    short = not len(splits.train) or not len(splits.test)
    if unlabeled or short:
        _check_readable(splits, opened.title)
    if short:
        raise DataError(
            f"{opened.title} has too few images to hold some out (copies stay together)"
            + "".join(f"; {note}" for note in opened.notes if note.startswith("left out"))
        )
    return splits


def _check_classes(splits: Splits, title: str) -> None:
    """Refuse fewer classes than two, and those of other splits that training does not have."""
    if len(splits.classes) < 2:
        left_out = "".join(f"; {note}" for note in splits.notes if note.startswith("left out"))
        name = splits.classes[0][:80]
        raise DataError(f"{title} has only one class ({name!r}); at least 2 are needed{left_out}")
    if splits.whole is None:
        learned = present(splits.train)
        for part, source in splits.parts.items():
            check_classes(present(source), learned, f"{title} {part}")


def splits_of(options: Data, unlabeled: bool = False, data: Given | None = None) -> Splits:
    """Open what the options of a recipe name, or images in memory in its place, to learn from."""
    given = options.data if data is None else data
    splits = open_to_learn(given, options.test_fraction, columns=options, unlabeled=unlabeled)
    if splits.whole is None and splits.train.in_memory:  # files are read when it is decided how
        return replace(splits, train=identified(splits.train))
    return splits


def _without_labels(opened: Opened, share: float) -> Splits:
    """Return images to learn from without labels, and those that measure the loss.

    The held-out images of labeled data are those that training with labels holds out, so that
    weights can be fine-tuned on the same data and tested on images that they have never seen. Of
    images without labels (and of data with one class), a tenth, at most 1,000, is held out, or
    `test_fraction` if it is not the usual one.
    """
    if opened.unsplit is None or {*opened.unlabeled} - {"train", ALL}:
        return _of_splits(opened, share)
    splits = None if opened.lacks else split_opened(opened, share)
    if splits is None or len(splits.classes) < 2 or not len(splits.test):
        return _tenth(stripped(opened.every()), opened.notes, share)
    whole, train, test = map(stripped, (opened.unsplit, splits.train, splits.test))
    line = (
        f"{len(test):,} of {len(whole):,} images held out to measure the loss: those that training "
        "with labels holds out of this data"
    )
    notes = [*opened.notes, line]
    if opened.loose is not None:
        train = Joined((train, opened.loose))
        beside = len(opened.loose)
        notes.append(f"learning from {beside:,} images beside the class folders, too")
    return Splits(train, test, whole=whole, notes=notes)


def _of_splits(opened: Opened, share: float) -> Splits:
    """Return the training split to learn from, and the first other one to measure the loss."""
    parts = {name: stripped(part) for name, part in opened.parts.items()}
    if ALL in parts:  # the only split with labels
        parts = {"train": parts[ALL]}
    for name, source in opened.unlabeled.items():
        split = "train" if name == ALL else name
        parts[split] = Joined((parts[split], source)) if split in parts else source
    notes = [*opened.notes]
    if others := [name for name in parts if name not in SPLIT_WORDS]:
        notes.append(f"ignored what is not a split of {opened.title}: {', '.join(others)}")
    if len(parts) == 1 + len(others):
        return _tenth(parts["train"], notes, share)
    splits = in_splits(parts, share, [])
    line = (
        f"learning from the {len(splits.train):,} training images of {opened.title}; the "
        f"{len(splits.validation or splits.test):,} of its validation or test split only measure "
        "the loss"
    )
    return replace(splits, notes=[*notes, line])


def _tenth(whole: Source, notes: Sequence[str], share: float) -> Splits:
    """Hold images out whatever they show, always the same ones."""
    wanted = min(MOST, round(SHARE * len(whole))) if share == USUAL else round(share * len(whole))
    count = min(max(1, wanted), len(whole) - 1)
    whole = identified(whole)
    test = chosen(whole, count / max(1, len(whole)), "test")
    line = (
        f"{len(test):,} of {len(whole):,} images held out at random to measure the loss (always "
        "the same)"
    )
    return Splits(without(whole, test), Subset(whole, test), whole=whole, notes=[*notes, line])


def _check_readable(splits: Splits, title: str) -> None:
    """Refuse data with too few images, or of which none of a few can be read."""
    images = len(splits.train) + (len(splits.test) if splits.whole is not None else 0)
    if images < 2 or not len(splits.train):
        count = "only one image" if images else "no images"
        raise DataError(f"{title} has {count} to learn from: give at least 2")
    places = np.unique(np.linspace(0, len(splits.train) - 1, num=LOOKED_AT, dtype=int)).tolist()
    complaint = ""
    for number in places:
        try:
            splits.train.image(number).shape()
            return
        except DataError as error:
            complaint = complaint or str(error)
    raise DataError(
        f"none of {len(places)} images of {title} that were looked at can be read, such as "
        f"{complaint}: is this a folder of images?"
    )


class OpenedData:
    """Data opened once for several runs: `vitlab.train(..., opened=opened)`.

    A run has the same images, fingerprint and bits as without it. What changes on the disk after it
    was opened goes unnoticed; memory is held for as long as this object is.
    """

    def __init__(self) -> None:
        self._splits: dict[tuple[bool, Data], Splits] = {}
        self._decoded: dict[tuple[int, int], PixelCache] = {}

    def splits(self, options: Data, unlabeled: bool) -> Splits:
        """Return all images of the data that the options name, opened now or before.

        Args:
            options: which data, and how to read it; which part of it a run uses plays no part
            unlabeled: whether to learn without labels

        Raises:
            DataError: the data cannot be used.
        """
        key = (
            unlabeled,
            replace(options, dev_share=0.0, fold="", train_images=0, drop_duplicates=False),
        )
        if key not in self._splits:
            self._splits[key] = splits_of(options, unlabeled)
        return self._splits[key]

    def cached(self, source: Source, channels: int) -> Source:
        """Cache images as `loading.cache.cached`, without decoding any a second time.

        Args:
            source: images of `splits`, or a part of them
            channels: that the model has
        """
        if source.in_memory:
            return source
        whole, numbers = origin(source)
        decoded = self._decoded.setdefault((id(whole), channels), PixelCache(whole, channels))
        return decoded.part(source, numbers) or cached(source, channels)
