"""Pairs of an image and a label: lists, data sets of PyTorch, and arrays of images and labels."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor
from torch.utils.data import Subset as TorchSubset

from vitlab.data.decode.stored import StoredImage
from vitlab.data.labels import Labels
from vitlab.data.pictures.pictures import stored
from vitlab.data.sources.arrays import Arrays
from vitlab.data.sources.memory.part import Part, images_source, spelled
from vitlab.errors import DataError, ImageError, UserError

WANTED = (
    "give (image, label) pairs, rows of a table, a datasets.Dataset, two arrays of images and "
    "labels, or a dictionary of splits"
)


@dataclass(frozen=True)
class Items:
    """The images of a data set of PyTorch, made anew each time that they are needed.

    Attributes:
        items: gives (image, label) for a number
        labels: of each
        classes: that the labels index
    """

    items: Any  # a torch.utils.data.Dataset with a length
    labels: Labels
    classes: tuple[str, ...]
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.labels)

    def image(self, index: int) -> StoredImage:
        """Return one image.

        Raises:
            ImageError: the data set failed to give it, or gives something else.
        """
        name = self.name(index)
        try:
            picture = self.items[index][0]
        except UserError:
            raise
        except Exception as error:  # whatever the user's code raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ImageError(f"{name}: {reason}") from error
        return stored(picture, name)

    def name(self, index: int) -> str:
        """Return the number."""
        return f"image {index}"


def read_pairs(data: Sequence[object], title: str, names: tuple[str, ...]) -> Part:
    """Return a sequence of (image, label) pairs as a part.

    Raises:
        DataError: something else in it, or files that do not exist.
    """
    for number, each in enumerate(data):
        if not isinstance(each, tuple | list) or len(each) != 2:
            raise DataError(f"item {number} of {title} is of type {type(each).__name__}: {WANTED}")
    pairs: list[Any] = list(data)
    labels = [spelled(label, f"image {number}") for number, (_, label) in enumerate(pairs)]
    return Part(images_source([image for image, _ in pairs], title), labels, names)


def read_arrays(images: Any, labels: Any, title: str, names: tuple[str, ...]) -> Part:
    """Return arrays of images and labels as a part.

    Args:
        images: uint8 (n, rows, columns) or (n, rows, columns, channels), of PyTorch (n, channels,
            rows, columns)
        labels: (n,)
        title: what to call the data in an error
        names: of the classes

    Raises:
        DataError: arrays of other shapes or types.
    """
    if isinstance(images, Tensor):
        images = (images.permute(0, 2, 3, 1) if images.ndim == 4 else images).cpu().numpy()
    pixels = images[..., None] if images.ndim == 3 else images
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or not pixels.size:
        raise DataError(
            f"the images of {title} have shape {images.shape} and numbers of type {images.dtype}: "
            "give (n, rows, columns, channels), of PyTorch (n, channels, rows, columns), as uint8"
        )
    if len(labels) != len(pixels):
        raise DataError(f"{title} has {len(pixels):,} images, but {len(labels):,} labels")
    raw = [spelled(label, f"image {number}") for number, label in enumerate(labels)]
    return Part(lambda own, classes: Arrays(pixels, own, classes), raw, names)


def read_items(items: Any, title: str, names: tuple[str, ...]) -> Part:
    """Return a data set of PyTorch as a part, or anything else with a length and items.

    Raises:
        DataError: its items are no pairs, or its images no pixels from 0 to 255.
    """
    if not len(items):
        raise DataError(f"{title} has no images")
    first = _item(items, 0, title)
    if isinstance(first[0], Tensor | np.ndarray):
        try:
            stored(first[0])
        except ImageError as error:
            raise DataError(
                f"{title}: {error} (leave out ToTensor and Normalize: images are prepared as the "
                "model needs them)"
            ) from None
    labels = [
        spelled(label, f"image {number}") for number, label in enumerate(_labels(items, title))
    ]
    own = names or _names(items)
    return Part(lambda given, classes: Items(items, given, classes), labels, own)


def _item(items: Any, number: int, title: str) -> tuple[Any, Any]:
    try:
        found = items[number]
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise DataError(f"item {number} of {title} cannot be read ({reason}): {WANTED}") from error
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise DataError(f"item {number} of {title} is of type {type(found).__name__}: {WANTED}")
    return found[0], found[1]


def _labels(items: Any, title: str) -> Sequence[object]:
    """The labels: from `targets`, as in torchvision, if these are what the items say."""
    if isinstance(items, TorchSubset):
        inner = _labels(items.dataset, title)
        return [inner[number] for number in items.indices]
    targets = getattr(items, "targets", None)
    if isinstance(targets, Sized) and len(targets) == len(items):
        found: Sequence[object] = list(targets)  # type: ignore[call-overload]
        ends = (0, len(items) - 1)
        if all(_same(_item(items, each, title)[1], found[each]) for each in ends):
            return found
    return [_item(items, number, title)[1] for number in range(len(items))]


def _same(one: object, other: object) -> bool:
    try:
        return spelled(one, "") == spelled(other, "")
    except DataError:
        return False


def _names(items: Any) -> tuple[str, ...]:
    """The names of the classes, as torchvision has them."""
    if isinstance(items, TorchSubset):
        return _names(items.dataset)
    classes = getattr(items, "classes", None)
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        return tuple(map(str, classes))
    return ()


def are_arrays(data: object) -> bool:
    """Return whether data is a pair of arrays: all images, and all labels."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    images, labels = data
    return (
        isinstance(images, Tensor | np.ndarray)
        and not isinstance(labels, str | Mapping)
        and (isinstance(labels, Sized) and images.ndim >= 3)
    )
