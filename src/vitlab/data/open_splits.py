"""Splits of opened data, to learn from and to be tested on.

Data has splits of its own, or a share of each class is held out for testing: always the same.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vitlab.data.holdout import in_splits, stratified_holdout
from vitlab.data.identities import with_content
from vitlab.data.images import Images, concat
from vitlab.data.labels import check_classes
from vitlab.data.open import Opened, open_images
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Given, MaskReading, TargetKind
from vitlab.data.split_words import SPLIT_WORDS
from vitlab.data.splits import ALL, Splits
from vitlab.errors import DataError, OptionError
from vitlab.values import check_names

SHARE, MOST = 0.1, 1000  # of images without labels: how many measure the loss
USUAL = Data().test_fraction  # another one is the user's own choice
LOOKED_AT = 8  # images, before training


def split_opened(opened: Opened, fraction: float = USUAL) -> Splits:
    """Return training and test images: those of the data, or a share that is held out.

    Args:
        opened: with targets
        fraction: of each class, held out for testing where the data comes unsplit
    """
    return in_splits(opened.parts, fraction, opened.notes)


def group_by_split(opened: Opened) -> dict[str, Images]:
    """Return images by split, none of them empty: what would be held out is `test`.

    Images without labels are in their own split, unless it has labeled ones; else in `all`.
    """
    splits = dict(opened.parts)
    if opened.unsplit is not None and not opened.lacks:
        splits = split_opened(opened).parts
    beside = [source for name, source in opened.unlabeled.items() if name in splits]
    splits |= {name: own for name, own in opened.unlabeled.items() if name not in splits}
    if beside:
        whole = [*beside, *([splits[ALL]] if ALL in opened.unlabeled else [])]
        splits[ALL] = concat(whole)
    return {name: source for name, source in splits.items() if len(source)}


def open_to_learn(
    data: Given,
    target: TargetKind = "label",
    options: Columns | None = None,
    masks: MaskReading | None = None,
) -> Splits:
    """Open data to learn from, and to be tested on.

    Args:
        data: as a user names it, or in memory
        target: what is learned of each image; `optional` learns without labels, from all images of
            the training split
        options: the columns of a list or a table, and, of `Data`, what is held out of unsplit data
        masks: how these are read

    Raises:
        OptionError: no columns of numbers are named.
        DataError: the data cannot be used: fewer than two classes, or too few images.
    """
    options = options or Columns()
    if target == "numbers" and not options.label_column:
        raise OptionError("task=regress learns columns of numbers: name them, targets=age,height")
    if target == "numbers":
        check_names(options.label_column, "target")
    opened = open_images(data, target, columns=options, masks=masks)
    if target == "numbers":
        opened = _leave_out_missing(opened, options.label_column)
    share = options.test_fraction if isinstance(options, Data) else USUAL
    split = _without_labels if target == "optional" else split_opened
    splits = split(opened, share)
    if target not in ("label", "optional"):
        return splits
    if target == "label":
        _check_classes(splits, opened.title)
    short = not len(splits.train) or not len(splits.test)
    if target == "optional" or short:
        _check_readable(splits, opened.title)
    if short:
        raise DataError(
            f"{opened.title} has too few images to hold some out (copies stay together)"
            + "".join(f"; {note}" for note in opened.notes if note.startswith("left out"))
        )
    return splits


def _leave_out_missing(opened: Opened, columns: Sequence[str]) -> Opened:
    """Return images that have a finite number in each column; others are counted and named.

    Raises:
        DataError: no image is left.
    """
    notes = [*opened.notes]
    parts = dict[str, Images]()
    for name, source in opened.parts.items():
        missing = source.target.missing()
        if len(missing):
            what = " or ".join(columns)
            line = f"of {len(source):,} images of {opened.title} whose {what} is not finite"
            listed = some([source.name(row) for row in missing.tolist()])
            notes.append(f"left out {len(missing):,} {line}: {listed}")
        if len(missing) == len(source):
            raise DataError(f"no image is left to learn from: {notes[-1]}")
        parts[name] = source.without(missing)
    return replace(opened, parts=parts, notes=notes)


def _check_classes(splits: Splits, title: str) -> None:
    """Refuse fewer classes than two, and those of other splits that training does not have."""
    if len(splits.classes) < 2:
        left_out = "".join(f"; {note}" for note in splits.notes if note.startswith("left out"))
        name = splits.classes[0][:80]
        raise DataError(f"{title} has only one class ({name!r}); at least 2 are needed{left_out}")
    if splits.whole is None:
        learned = splits.train.present()
        for part, source in splits.parts.items():
            check_classes(source.present(), learned, f"{title} {part}")


def with_identities(splits: Splits) -> Splits:
    """Return splits whose training images know their identities, where these cost nothing."""
    if splits.whole is None and splits.train.in_memory:  # files are read when it is decided how
        return replace(splits, train=with_content(splits.train))
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
        return _tenth(opened.every().without_labels(), opened.notes, share)
    assert splits.whole is not None
    whole = splits.whole.without_labels()
    train = splits.train.without_labels()
    test = splits.test.without_labels()
    line = (
        f"{len(test):,} of {len(whole):,} images held out to measure the loss: those that training "
        "with labels holds out of this data"
    )
    notes = [*opened.notes, line]
    if opened.loose is not None:
        train = concat((train, opened.loose))
        beside = len(opened.loose)
        notes.append(f"learning from {beside:,} images beside the class folders, too")
    return Splits(train, test, whole=whole, notes=notes)


def _of_splits(opened: Opened, share: float) -> Splits:
    """Return the training split to learn from, and the first other one to measure the loss."""
    parts = {name: part.without_labels() for name, part in opened.parts.items()}
    if ALL in parts:  # the only split with labels
        parts = {"train": parts[ALL]}
    for name, source in opened.unlabeled.items():
        split = "train" if name == ALL else name
        parts[split] = concat((parts[split], source)) if split in parts else source
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


def _tenth(whole: Images, notes: Sequence[str], share: float) -> Splits:
    """Hold images out whatever they show, always the same ones."""
    wanted = min(MOST, round(SHARE * len(whole))) if share == USUAL else round(share * len(whole))
    count = min(max(1, wanted), len(whole) - 1)
    whole = with_content(whole)
    test = stratified_holdout(whole, count / max(1, len(whole)), "test")
    line = (
        f"{len(test):,} of {len(whole):,} images held out at random to measure the loss (always "
        "the same)"
    )
    return Splits(whole.without(test), whole.take(test), whole=whole, notes=[*notes, line])


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
