"""Labeled images as a program holds them, before the labels become indices of classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from vitlab.data.labels import Label, Labels, index_labels
from vitlab.data.pictures.pictures import Picture, Pictures
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.folders import Files
from vitlab.data.sources.listed.lists import label_in
from vitlab.data.sources.protocol import Source
from vitlab.errors import DataError


@dataclass(frozen=True)
class Part:
    """Images and their labels, as the data spells them.

    Attributes:
        source: makes a source of the images, given their labels and the classes
        labels: of each image
        names: the classes that numbers among the labels index; empty if the data has no names
        splits: the split of each image, where the data says so
        notes: what was found that the data does not say outright
    """

    source: Callable[[Labels, tuple[str, ...]], Source]
    labels: Sequence[Label]
    names: tuple[str, ...] = ()
    splits: Sequence[str] = ()
    notes: Sequence[str] = ()

    def indexed(self, title: str, classes: Sequence[str] | None) -> Source:
        """Return a source whose labels index the classes given, or the data's own.

        Raises:
            DataError: a label that is none of the classes.
        """
        raw = list(self.labels)
        if any(not isinstance(label, str) for label in raw):  # then all may have several
            raw = [(label,) if isinstance(label, str) else label for label in raw]
        if classes and not self.names:
            check_named(raw, classes, title)
        return self.source(*index_labels(raw, title, classes, self.names or None))


def check_named(raw: Sequence[Label], classes: Sequence[str], title: str) -> None:
    """Refuse numbers without names where the classes have names: their order is not known.

    Raises:
        DataError: all labels are such numbers.
    """
    own = {each for label in raw for each in ((label,) if isinstance(label, str) else label)}
    if own and all(each.isdecimal() for each in own) and not own & set(classes):
        raise DataError(
            f"the labels of {title} are numbers, and the classes have names ({classes[0]}, …): "
            'say what the numbers index, {"test": data, "classes": ["cat", "dog"]}'
        )


def images_source(
    pictures: Sequence[Picture], title: str
) -> Callable[[Labels, tuple[str, ...]], Source]:
    """Return what makes a source of images: of files, if all are paths.

    Raises:
        DataError: files that do not exist.
    """
    paths = [str(Path(each).expanduser()) for each in pictures if isinstance(each, str | Path)]
    missing = [path for path in paths if not Path(path).is_file()]
    if missing:
        first = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files of {title} do not exist: {first}"
        )
    if len(paths) < len(pictures):
        return lambda labels, classes: Pictures(pictures, labels, classes)
    names = Names.of(paths)
    return lambda labels, classes: Files(Path(), names, labels, classes)


def spelled(label: object, where: str) -> Label:
    """Return the label or labels of an image as text.

    Args:
        label: a text or a whole number, also of NumPy or PyTorch; a list of them for several
        where: what to call the image in an error

    Raises:
        DataError: something else.
    """
    if isinstance(label, np.ndarray | np.generic | Tensor):
        if label.ndim:
            raise DataError(
                f"{where} has an array for a label: give its class, or a list of its classes"
            )
        label = label.item()
    several = list(label) if isinstance(label, tuple | list) else label
    if isinstance(several, list):
        several = [
            each.item() if isinstance(each, np.generic | Tensor) else each for each in several
        ]
    return label_in(several, "", where)
