"""The images that a user names for comparing: DATA, a source, or a list of files; labels or not."""

from collections.abc import Sequence, Sized
from pathlib import Path
from typing import cast

from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.pictures.pictures import Picture
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import Files, image_files
from vitlab.data.sources.memory.given import Given, unlabeled_images
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.splits import Splits
from vitlab.data.sources.unlabeled import image_paths
from vitlab.errors import DataError

Images = Given | Source | Sequence[Picture]
"""DATA as for training, a folder of images without classes, one file, a source, or any number of
files or images in memory, with labels as for `vitlab.evaluate` or without."""


def images_of(images: Images, split: str, columns: Columns | None = None) -> Source:
    """Return the images to compare, in the order that the indices of pairs count.

    Of data that comes in splits it is the one named, or its training images if that is missing; of
    any other data it is everything.

    Args:
        images: what the user named
        split: `train` or `test`
        columns: which columns of a list or a table hold what; None to find them

    Raises:
        DataError: no such data, or no images in it.
    """
    opened = opened_data(images, columns)
    if not isinstance(opened, Splits):
        return opened
    if opened.whole is not None:
        return opened.whole
    return opened.test if split == "test" else opened.train


def opened_data(images: Images, columns: Columns | None = None) -> Splits | Source:
    """Return the splits of labeled data, or the images of anything else.

    Raises:
        DataError: no such data, or no images in it.
    """
    if hasattr(images, "image"):
        return cast(Source, images)
    if not isinstance(images, str | Path):
        return _in_memory(images, columns)
    path = Path(images).expanduser()
    if path.is_file() and path.suffix.lower() in SUFFIXES:
        return files([path])
    try:
        return open_data(str(images), columns=columns, learning=False)
    except DataError:
        if not path.is_dir() or not (found := image_files(path)):
            raise
        return files(found)


def _in_memory(images: Sized, columns: Columns | None) -> Splits | Source:
    """Images that a program holds; a list of paths names files."""
    if isinstance(images, Sequence) and all(isinstance(each, str | Path) for each in images):
        return files(images)
    found = unlabeled_images(images)
    return open_data(images, columns=columns, learning=False) if found is None else found


def files(paths: Sequence[str | Path]) -> Files:
    """Return image files as a source without classes.

    Raises:
        DataError: no files are given, or one of them is missing.
    """
    if not paths:
        raise DataError("no images given: name DATA, a folder, or at least one file")
    for path in paths:
        if not Path(path).is_file():
            raise DataError(f"no such file: {path}")
    return image_paths([str(path) for path in paths])
