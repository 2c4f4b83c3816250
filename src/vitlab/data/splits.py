"""Splits: training, validation and test images under one class index."""

from dataclasses import dataclass, field

from vitlab.data.images import Images
from vitlab.data.target import Classes

ALL = "all"
"""The part of data that comes unsplit."""


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

    train: Images
    test: Images
    validation: Images | None = None
    whole: Images | None = None
    notes: list[str] = field(default_factory=list)
    own_validation: bool = False

    @property
    def classes(self) -> Classes:
        """Names of the classes, in the order that the labels index."""
        return self.train.classes

    @property
    def parts(self) -> dict[str, Images]:
        """The splits that there are, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: source for name, source in named.items() if source is not None}
