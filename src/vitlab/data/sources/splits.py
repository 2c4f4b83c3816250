"""Training, validation and test images: found by their names, or held out."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vitlab.data.sources.protocol import Source, Subset, counts
from vitlab.errors import DataError, OptionError

NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation"),
    "test": ("test", "testing"),
}
"""What data calls its splits, in lower case."""

SPLIT_SEED = 0  # the split belongs to the data: every run and every evaluation uses the same one
VALIDATION_SHARE = 0.1  # of each class


@dataclass(frozen=True)
class Splits:
    """Training and test images under one class index.

    Attributes:
        train: to learn from
        test: the test split if there is one, else the validation split, else what was held out
        validation: the validation split, if there is a test split beside it
        whole: all images, of data that came unsplit
        notes: remarks for the user on how the splits were found
    """

    train: Source
    test: Source
    validation: Source | None = None
    whole: Source | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order that the labels index."""
        return self.train.classes

    @property
    def parts(self) -> dict[str, Source]:
        """The splits that there are, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in named.items() if source is not None}


def split_of(words: str, otherwise: str = "train") -> str:
    """Return the split that a file's name mentions."""
    parts = set(re.split(r"[^a-z]+", words.lower()))
    return next((split for split, names in NAMES.items() if parts & set(names)), otherwise)


def by_split(files: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Group files by split, each given with the words that may name its split."""
    groups: dict[str, list[str]] = {}
    for words, file in files:
        groups.setdefault(split_of(words), []).append(file)
    if "train" not in groups:  # a single split, whatever its name, is all there is
        groups = {"train": [file for files in groups.values() for file in files]}
    return groups


def hold_out(source: Source, fraction: float, notes: Sequence[str] = ()) -> Splits:
    """Hold out a share of every class for testing, always the same images.

    At least one image of each class stays in the training split.
    """
    labels = source.labels
    test = labels.held_out(fraction, np.random.default_rng(SPLIT_SEED))
    train = np.setdiff1d(np.arange(len(source)), test)
    remarks = [
        *notes,
        f"{labels.share(fraction)} held out for testing (always the same): "
        f"{len(test):,} of {len(source):,} images",
        *(f"class {name!r} has only one image" for name, n in counts(source).items() if n == 1),
    ]
    return Splits(Subset(source, train), Subset(source, test), whole=source, notes=remarks)


def with_validation(splits: Splits) -> Splits:
    """Return the same splits with a validation split, taken from the training images if needed.

    Choosing the best weights by the test images would make their figures too good.
    """
    if splits.validation is not None:
        return splits
    inner = hold_out(splits.train, VALIDATION_SHARE)
    note = (
        f"{splits.train.labels.share(VALIDATION_SHARE)} held out of the training images to decide "
        f"when to stop (always the same): {len(inner.test):,} images"
    )
    return replace(splits, train=inner.train, validation=inner.test, notes=[*splits.notes, note])


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
    source, whole = splits.train, len(splits.train)
    count = round(amount * whole) if amount < 1 else int(amount)
    if count > whole:
        raise OptionError(
            f"there are only {whole:,} training images: choose a --train-images of at most "
            f"{whole}, not {count}"
        )
    order, least = source.labels.nested(np.random.default_rng(SPLIT_SEED))
    if count < least:
        raise OptionError(
            f"train_images comes to {count:,}, too few to show every class: choose a "
            f"--train-images of at least {least}"
        )
    note = f"trained on {count:,} of {whole:,} training images (always the same)"
    train = Subset(source, np.sort(order[:count]))
    return replace(splits, train=train, notes=[*splits.notes, note])


def fingerprint(source: Source) -> str:
    """Return a checksum of the labels, the classes and a few images, wherever the data lies.

    It lets an evaluation recognize the data that a model was trained on, and use only the part
    that was held out.
    """
    digest = hashlib.sha256(repr(source.classes).encode())
    digest.update(source.labels.values.tobytes())
    for index in np.linspace(0, len(source) - 1, num=8, dtype=int):
        try:
            digest.update(source.image(int(index)).content())
        except DataError:  # an unreadable image is reported when it is decoded
            continue
    return digest.hexdigest()
