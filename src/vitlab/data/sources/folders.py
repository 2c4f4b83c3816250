"""Image files: a folder of class folders, as such or in train/ and val/ or test/."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitlab.data.decode.headers import SUFFIXES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.labels import Labels, SingleLabels, check_classes
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.splits import NAMES, Request, Splits, hold_out, join
from vitlab.errors import DataError, ImageError


@dataclass(frozen=True)
class Files:
    """Image files, each with its label; paths are relative to the root."""

    root: Path
    paths: Sequence[str]
    labels: Labels
    classes: tuple[str, ...]
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int) -> EncodedImage:
        """Read one file.

        Raises:
            ImageError: it cannot be read.
        """
        name = self.name(index)
        try:
            return EncodedImage((self.root / self.paths[index]).read_bytes(), name)
        except OSError as error:
            raise ImageError(f"{name}: {(error.strerror or str(error)).lower()}") from None

    def name(self, index: int) -> str:
        """Return the path of a file."""
        return str(self.root / self.paths[index])


def open_folder(request: Request) -> Splits | None:
    """Open a folder of class folders, or of splits that hold class folders; None otherwise."""
    root = request.path
    if not root.is_dir():
        return None
    if not any(root.iterdir()):
        raise DataError(f"{root} is empty: put the images of each class into a folder of its name")
    inside = {each.name.lower(): each for each in root.iterdir() if each.is_dir()}
    found = {
        split: next((inside[name] for name in names if name in inside), None)
        for split, names in NAMES.items()
    }
    train, others = found["train"], [found["validation"], found["test"]]
    if train is None or not any(others):
        alone = train if len(inside) == 1 else None  # beside others it is a class of that name
        source, notes = class_folders(alone or root, request.classes)
        return hold_out(source, request.test_fraction, notes)
    source, notes = class_folders(train, request.classes)
    rest = []
    for folder in filter(None, others):
        extra, more = class_folders(folder, source.classes)
        rest.append(extra)
        notes += more
    splits = join(source, rest, request)
    return Splits(splits.train, splits.test, splits.validation, notes=notes)


def class_folders(root: Path, classes: Sequence[str] | None = None) -> tuple[Files, list[str]]:
    """Return the images of a folder whose sub-folders are classes, and notes on what was left out.

    The class index is the sorted order of the folder names, or the one given, by name.

    Raises:
        DataError: no class folders, no images in them, or a class that is not among those given.
    """
    folders = sorted(each for each in root.iterdir() if each.is_dir() and each.name[0] != ".")
    images = {each.name: image_files(each) for each in folders}
    found = {name: paths for name, paths in images.items() if paths}
    if not found:
        loose = " (its images are not in sub-folders)" if image_files(root) else ""
        raise DataError(
            f"{root} has no class folders with images{loose}: put the images of each class into a "
            f"folder of its name; supported are {', '.join(sorted(SUFFIXES))}"
        )
    order = tuple(classes or found)
    check_classes(list(found), order, str(root))
    place = {name: number for number, name in enumerate(order)}
    labels = [place[name] for name, own in found.items() for _ in own]
    names = Names.of(str(path.relative_to(root)) for own in found.values() for path in own)
    files = Files(root, names, SingleLabels(np.array(labels, np.int64)), order)
    notes = [f"skipped class folder {root / name}: no images" for name in images.keys() - found]
    return files, sorted(notes)


def image_files(folder: Path) -> list[Path]:
    """Return all images below a folder, sorted, except hidden ones."""
    inside = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return sorted(path for path in inside if path.is_file() and not path.name.startswith("."))
