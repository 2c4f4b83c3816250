"""Image files: a folder of class folders, as such or in train/ and val/ or test/."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitlab.data.decode.formats import SUFFIXES, unread_lines
from vitlab.data.decode.headers import MAX_BYTES
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.labels import Labels, SingleLabels, check_classes
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.splits import NAMES, Request, Splits, hold_out, join
from vitlab.errors import DataError, ImageError
from vitlab.files import read_bytes

# Endings of what usually lies beside images.
BESIDE = frozenset({".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".md", ".html", ".yaml",
                    ".yml", ".toml", ".db", ".ini", ".pdf", ".py", ".log"})  # fmt: skip
SHOWN = 3  # names that a line lists


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
            ImageError: it cannot be read, or is too large.
        """
        path = self.root / self.paths[index]
        name = str(path)
        try:
            return EncodedImage(read_bytes(path, MAX_BYTES), name)
        except OSError as error:
            raise ImageError(f"{name}: {(error.strerror or str(error)).lower()}") from None

    def name(self, index: int) -> str:
        """Return the path of a file."""
        return str(self.root / self.paths[index])


def open_folder(request: Request) -> Splits | None:
    """Open a folder of class folders, or of splits that hold class folders; None otherwise.

    Raises:
        DataError: it is empty, or it cannot be told whether its folders are classes or splits.
    """
    root = request.path
    if not root.is_dir():
        return None
    if not any(root.iterdir()):
        raise DataError(f"{root} is empty: put the images of each class into a folder of its name")
    found, others = split_folders(root)
    if not found:
        source, notes = class_folders(root, request.classes)
        return hold_out(source, request.test_fraction, notes)
    parts: list[Files] = []
    notes = [f"ignored {each}: neither a split nor a class" for each in others]
    notes += [
        f"the folder {folder.name} has the {split.replace('train', 'training')} images"
        for split, folder in found.items()
        if folder.name != NAMES[split][0]
    ]
    for folder in found.values():
        source, more = class_folders(folder, parts[0].classes if parts else request.classes)
        parts.append(source)
        notes += more
    if len(parts) == 1:
        return hold_out(parts[0], request.test_fraction, notes)
    splits = join(parts[0], parts[1:], request)
    return Splits(splits.train, splits.test, splits.validation, notes=notes)


def split_folders(root: Path) -> tuple[dict[str, Path], list[Path]]:
    """Return the folders that are splits, training first, and those that are neither.

    A folder named as a split is one if its images are in class folders; else it is a class of that
    name (a train, beside a bus and a car).

    Returns:
        Nothing if the folders are classes.

    Raises:
        DataError: folders of classes beside a split, or other splits but none to learn from.
    """
    inside = {each.name.lower(): each for each in visible(root)}
    found = {
        split: next(inside[name] for name in names if name in inside)
        for split, names in NAMES.items()
        if any(name in inside for name in names)
    }
    found = {split: folder for split, folder in found.items() if not holds_images(folder)}
    others = [each for each in inside.values() if each not in found.values()]
    if not found or (others and "train" not in found):
        return {}, []
    if "train" not in found and len(found) > 1:
        names = " and ".join(each.name for each in found.values())
        raise DataError(f"{root} has {names}, but no train folder: name one of them as the data")
    doubtful = [each for each in others if not holds_images(each) and image_files(each)]
    if doubtful:
        raise DataError(
            f"{root} has {doubtful[0].name} beside {found['train'].name}, and it may be a class or "
            f"a split: rename it test or val, move it away, or name {found['train']} as the data"
        )
    return found, others


def visible(folder: Path) -> list[Path]:
    """Return the folders inside, sorted, except hidden ones and what macOS adds to archives."""
    inside = (each for each in folder.iterdir() if each.name[0] != "." and each.name != "__MACOSX")
    return sorted(each for each in inside if each.is_dir())


def holds_images(folder: Path) -> bool:
    """Return whether images are in a folder itself, not only in folders below."""
    return any(
        each.suffix.lower() in SUFFIXES and each.is_file() and not each.name.startswith(".")
        for each in folder.iterdir()
    )


def class_folders(root: Path, classes: Sequence[str] | None = None) -> tuple[Files, list[str]]:
    """Return the images of a folder whose sub-folders are classes, and notes on what was left out.

    The class index is the sorted order of the folder names, or the one given, by name.

    Raises:
        DataError: no class folders, no images in them, or a class that is not among those given.
    """
    folders = visible(root)
    listed = {each.name: files_below(each) for each in folders}
    images = {name: own for name, (own, _) in listed.items()}
    found = {name: paths for name, paths in images.items() if paths}
    skipped = unread_lines(str(root), sum((others for _, others in listed.values()), Counter()))
    if not found:
        loose = " (its images are not in sub-folders)" if image_files(root) else ""
        raise DataError(
            f"{root} has no class folders with images{loose}: put the images of each class into a "
            f"folder of its name; supported are {', '.join(sorted(SUFFIXES))}"
            + "".join(f"; {line}" for line in skipped)
        )
    order = tuple(classes or found)
    check_classes(list(found), order, str(root))
    place = {name: number for number, name in enumerate(order)}
    labels = [place[name] for name, own in found.items() for _ in own]
    names = Names.of(str(path.relative_to(root)) for own in found.values() for path in own)
    files = Files(root, names, SingleLabels(np.array(labels, np.int64)), order)
    notes = sorted(
        f"skipped class folder {root / name}: no images" for name in images.keys() - found
    )
    return files, [*notes, *nested_lines(root, found), *skipped]


def image_files(folder: Path) -> list[Path]:
    """Return all images below a folder, sorted, except hidden ones."""
    return files_below(folder)[0]


def files_below(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return all images below a folder, sorted, and how many other files have which ending."""
    names, others = names_below(folder)
    return [folder / name for name in names], others


def names_below(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return what `files_below` does, as text relative to the folder: there may be millions.

    What is hidden is left out, and what macOS adds to archives.
    """
    images: list[str] = []
    others, inner = Counter[str](), [""]
    while inner:
        place = inner.pop()
        with suppress(PermissionError), os.scandir(folder / place) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith(".") or name == "__MACOSX":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    inner.append(f"{place}{name}/")
                    continue
                stem, _, ending = name.rpartition(".")
                suffix = f".{ending.lower()}" if stem and ending else ""
                if suffix in BESIDE or not _is_file(entry):
                    continue
                if suffix in SUFFIXES:
                    images.append(place + name)
                else:
                    others[suffix or "no ending"] += 1
    images.sort(key=lambda name: name.replace("/", "\0"))  # folder by folder, as paths are sorted
    return images, others


def _is_file(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_file()
    except OSError:  # a ring of links
        return False


def nested_lines(root: Path, found: Mapping[str, Sequence[Path]]) -> list[str]:
    """Return a line about folders inside of classes, whose names say nothing to a model."""
    deeper = {
        name: sorted({path.relative_to(root / name).parts[0] for path in paths})
        for name, paths in found.items()
        if not holds_images(root / name)
    }
    several = {name: inner for name, inner in deeper.items() if len(inner) > 1}
    if not several:
        return []
    name, inner = next(iter(several.items()))
    shown = ", ".join(inner[:SHOWN]) + (", …" if len(inner) > SHOWN else "")
    return [
        f"{len(several):,} of the {len(found):,} classes have their images in folders of their own "
        f"({root / name}: {shown}): every image has the class {name}; if those are the classes, "
        "move them up, or list the images in a .csv"
    ]
