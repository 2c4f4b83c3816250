"""Names of image files: of files, globs, and all that is in a folder."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitlab.data.class_names import merge_names
from vitlab.data.decode.formats import CLIPS, LISTED, READABLE, SUFFIXES, is_image_file
from vitlab.data.exists import PATTERN, STDIN
from vitlab.data.folder_names import is_system_name
from vitlab.data.images import Images
from vitlab.data.labels import Labels, SingleLabels
from vitlab.data.sources.file_tree import BESIDE, MOST_LOOKED_INTO, FileTree, list_folder, suffix_of
from vitlab.data.sources.image_files import ImageFiles, image_paths, named_files
from vitlab.data.sources.paths import Names, read_text
from vitlab.data.sources.remote import expand
from vitlab.data.sources.request import Found, Part, Request
from vitlab.data.sources.urls import braces, is_url
from vitlab.data.target import Classes
from vitlab.errors import DataError
from vitlab.units import counted


@dataclass(frozen=True)
class FolderPlace:
    """A folder on the disk as the place of a `FileTree`.

    Attributes:
        root: the folder
    """

    root: Path
    is_archive: ClassVar[bool] = False

    def title(self, path: str) -> str:
        """Return the path on the disk."""
        return str(self.root / path)

    def source(self, folder: str, paths: Sequence[str], labels: Labels, classes: Classes) -> Images:
        """Return images, by their paths in a folder of the tree, with their labels."""
        return Images.of(ImageFiles(self.root / folder, Names.of(paths)), labels, classes)

    def read_text(self, path: str, limit: int) -> str:
        """Return the text of a file.

        Raises:
            DataError: it cannot be read, is larger than `limit` bytes, or is no text.
        """
        return read_text(self.root / path, limit)

    def is_image(self, path: str) -> bool:
        """Return whether a file is an image that can be read, by its first bytes."""
        return is_image_file(self.root / path)


def tree_of(folder: Path) -> FileTree:
    """Return the names of all files and folders below a folder on the disk."""
    return list_folder(folder, FolderPlace(folder))


def names_below(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return all images below a folder, and how many other files have which ending.

    As `FileTree.pictures`: paths are texts relative to the folder, for there may be millions.
    """
    return tree_of(folder).pictures()


def visible(folder: Path) -> list[Path]:
    """Return the folders inside, sorted, except hidden ones and those that systems add."""
    inside = (each for each in folder.iterdir() if not is_system_name(each.name))
    return sorted(each for each in inside if each.is_dir())


def json_files(root: Path) -> list[Path]:
    """Return the .json of a folder, and of the folders in it: annotations, perhaps."""
    files = [file for sub in ("", "*/") for file in sorted(root.glob(f"{sub}*.json"))]
    own = [file for file in files if not is_system_name(file.name)]
    return [file for file in own if file.parent == root or not is_system_name(file.parent.name)]


def holds_images(folder: Path) -> bool:
    """Return whether images are in a folder itself, not only in folders below."""
    return any(map(_is_image, folder.iterdir()))


def _is_image(file: Path) -> bool:
    read = file.suffix.lower() in SUFFIXES | READABLE
    return read and not is_system_name(file.name) and file.is_file()


def open_files(request: Request) -> Found | None:
    """Open an image file, a glob or brace pattern, or `-`; None for other names.

    Where a pattern has its wildcard among the folders, the label of an image is the name of its
    folder.
    """
    name = request.data
    path = request.path
    if name == STDIN:
        lines = [line.rstrip("\r\n") for line in sys.stdin]
        given = [line for line in lines if line.strip()]
        if not given:
            raise DataError("no images given: the list is empty")
        files = named_files(given, "standard input")
        return Found([Part(files, lacks="paths on standard input have no labels")])
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES | READABLE and request.target != "none":
            return None
        return Found([Part(image_paths([str(path)]), lacks=f"{name} is one image without a label")])
    if is_url(name) or not any(sign in name for sign in PATTERN):
        return None
    matches = [
        file
        for file in expand(str(path))
        if not _is_of_a_system(file, str(path)) and Path(file).is_file()
    ]
    if not matches:
        raise DataError(f"no such file: {name}")
    images, notes = _images_among(matches, name)
    if not images:
        raise DataError(f"no images among the {len(matches):,} files of {name}")
    part, alike = _by_folder(name, images)
    return Found([part], [*notes, *alike])


def _is_of_a_system(file: str, pattern: str) -> bool:
    """Return whether a name that a pattern left open is one that a system adds."""
    written = {part for each in braces(pattern) for part in Path(each).parts}
    return any(is_system_name(part) for part in Path(file).parts if part not in written)


def _images_among(files: Sequence[str], title: str) -> tuple[list[str], list[str]]:
    """Return the images among some files, by their endings or content, and lines about both.

    Films take their place where there are none, and sounds where there are no films either.
    """
    suffixes = {file: suffix_of(Path(file).name) for file in files}
    known = SUFFIXES | BESIDE | LISTED.keys() | CLIPS.keys()
    doubtful = [file for file, suffix in suffixes.items() if suffix not in known]
    by_content = {*filter(is_image_file, doubtful[:MOST_LOOKED_INTO])}
    images = [file for file in files if suffixes[file] in SUFFIXES or file in by_content]
    images = images or [file for file in files if suffixes[file] in READABLE]
    notes = list[str]()
    if by_content:
        are = "is an image" if len(by_content) == 1 else "are images"
        notes.append(
            f"{counted(len(by_content), 'file')} of {title} without a usual ending {are} by content"
        )
    if left := len(files) - len(images):
        notes.append(f"skipped {left:,} files of {title} that are not images")
    return images, notes


def _by_folder(pattern: str, images: Sequence[str]) -> tuple[Part, list[str]]:
    """Return images, the folder of each as its label if the pattern leaves several folders open."""
    spelled, notes = merge_names([Path(each).parent.name for each in images], pattern)
    names = [spelled[Path(each).parent.name] for each in images]
    folders = {str(Path(each).parent) for each in braces(pattern)}
    deep = "**" in pattern  # a folder at any depth is no class
    open_folders = not deep and (len(folders) > 1 or any(s in min(folders) for s in "*?["))
    classes, labels = np.unique(names, return_inverse=True)
    if not open_folders or len(classes) < 2:
        return Part(
            image_paths(images), lacks=f"{pattern} names images of one folder: no labels"
        ), []
    order = tuple(classes.tolist())
    found = image_paths(images).with_target(SingleLabels(labels), order)
    return Part(found), notes
