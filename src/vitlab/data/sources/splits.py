"""Training, validation and test images: found by their names, or held out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from vitlab.data.sources.protocol import Source

NAMES = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation"),
    "test": ("test", "testing"),
}
"""What data calls its splits, in lower case."""


@dataclass(frozen=True)
class Splits:
    """Training and test images under one class index.

    Attributes:
        train: to learn from
        test: the test split if there is one, else the validation split, else what was held out
        validation: the validation split, if there is a test split beside it
        whole: all images, of data that came unsplit
        notes: remarks for the user on how the splits were found
        own_validation: whether the validation images were held out of the training images
    """

    train: Source
    test: Source
    validation: Source | None = None
    whole: Source | None = None
    notes: list[str] = field(default_factory=list)
    own_validation: bool = False

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
