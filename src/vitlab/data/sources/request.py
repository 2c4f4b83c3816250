"""The arguments of an opener, `Request`, and its result, `Found`: images by split, with labels.

An opener is a function of `data.open.OPENERS`. It answers None for what is not of its kind, and
knows nothing of holding out, of other data, or of a model's classes.
"""

import re
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.paths import some
from vitlab.data.split_words import SPLIT_WORDS
from vitlab.data.target import Classes
from vitlab.models.heads.mask_classes import Ignored, MaskClasses

NO_LABELS = "no labels: "  # begins `Part.lacks` of data that could have some


def split_of(words: str) -> str:
    """Return the split that a file's name mentions; else `train`."""
    return _named_split(words) or "train"


def _named_split(words: str) -> str:
    """Return the split that a file's name mentions; empty if it mentions none."""
    parts = set(re.split(r"[^a-z]+", words.lower()))
    return next((split for split, names in SPLIT_WORDS.items() if parts & set(names)), "")


def by_split(files: Sequence[str]) -> dict[str, list[str]]:
    """Group files by the split that their names mention; if these name none, their folders' names.

    A single split, whatever its name, is all there is.
    """
    places = list(map(PurePosixPath, files))
    for words in ([each.stem for each in places], [each.parent.name for each in places]):
        groups: dict[str, list[str]] = {}
        for word, file in zip(words, files, strict=True):
            groups.setdefault(split_of(word), []).append(file)
        if groups.keys() > {"train"}:
            return groups
    return {"train": [*files]}


def split_file_lines(files: Sequence[str], title: str) -> list[str]:
    """Return a line about files that train although the names of others say that they do not.

    Args:
        files: the files of training, as `by_split` groups them
        title: what to call the data
    """
    named = {file: _named_split(PurePosixPath(file).stem) for file in files}
    splits = sorted({*named.values()} - {""})
    odd = [PurePosixPath(file).name for file, split in named.items() if not split]
    if splits == ["train"] and odd:
        return [f"training images of {title} are also in {some(odd)}, which names no split"]
    if len(splits) > 1 and "train" not in splits:
        return [
            f"{title} has {' and '.join(splits)}, but no train: all its files are taken together"
        ]
    return []


TargetKind = Literal["label", "optional", "none", "numbers", "boxes", "mask"]
"""What is wanted of each image.

Its label or labels, without which images are left out; these where there are some (`optional`);
nothing (`none`); the numbers of each `label_column`; the boxes of objects; or a mask.
"""

Given = str | Path | Sized | Images
"""DATA by its name, or images in memory, labeled or not.

In memory these are images, paths, (image, label) pairs, a data set of PyTorch that gives either,
rows of a table (a DataFrame or a list of dictionaries), a `datasets.Dataset`, an array of images,
or two arrays of all images and all labels. A dictionary holds one of them for each split, and may
name the classes that numbers index: `{"train": …, "test": …, "classes": ["cat", "dog"]}`.
"""


@dataclass(frozen=True)
class MaskReading:
    """How masks are read.

    Attributes:
        class_names: a file with a class per line, or `number name` in each line
        ignore: the number that does not count; None for none, -1 for that of the layout
        workers: processes that look for the numbers in the masks; None to choose
        like: classes and numbers to read the masks by, of a model; None for the data's own
    """

    class_names: str = ""
    ignore: Ignored = -1
    workers: int | None = None
    like: MaskClasses | None = None


@dataclass(frozen=True)
class Request:
    """One DATA, and what is wanted of it.

    Attributes:
        data: what to call it in a message: the name that the user wrote
        given: that name again, or the object in memory
        target: what is wanted of each image
        classes: those that labels must be among, if the caller knows them; numbers without names
            are refused where these have names
        columns: the columns of a list or a table
        masks: how masks are read
    """

    data: str
    given: Any = None
    target: TargetKind = "label"
    classes: Classes = ()
    columns: Columns = Columns()
    masks: MaskReading = MaskReading()

    @property
    def path(self) -> Path:
        """The data as a path, whether or not it exists."""
        return Path(self.data).expanduser()


@dataclass(frozen=True)
class Part:
    """The images of one split.

    Attributes:
        source: its labels index its own classes; blank, and without classes, where it has none
        split: as the data calls it; empty where the data comes unsplit
        lacks: why there are no labels, for the user who needs some; empty where there are
    """

    source: Images
    split: str = ""
    lacks: str = ""


@dataclass(frozen=True)
class Found:
    """The result of an opener: parts in the data's own order, and remarks for the user."""

    parts: Sequence[Part]
    notes: list[str] = field(default_factory=list)


def blank(count: int) -> SingleLabels:
    """Return the labels of images that have none: zeros that take no memory."""
    return SingleLabels.blank(count, 0)


def title_of(data: object) -> str:
    """Return the name of data in a message."""
    return str(data) if isinstance(data, str | Path) else "the given data"
