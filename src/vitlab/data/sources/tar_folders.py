"""Tar files of class folders: where no label lies beside an image, its folder is the label."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vitlab.data.images import Images
from vitlab.data.labels import Labels
from vitlab.data.sources.class_levels import is_part, is_when_or_where
from vitlab.data.sources.file_tree import FileTree, Listing, add_folder
from vitlab.data.sources.layouts import open_tree
from vitlab.data.sources.request import Found, Request
from vitlab.data.target import Classes
from vitlab.errors import DataError


@dataclass(frozen=True)
class MemberPlace:
    """The images of archives as the place of a `FileTree`.

    Attributes:
        name: of the data
        whole: all images, without labels
        rows: the number of each, by its path
    """

    name: str
    whole: Images
    rows: dict[str, int]
    is_archive: ClassVar[bool] = True

    def title(self, path: str) -> str:
        """Return the data and the path in it."""
        return f"{self.name}/{path}" if path else self.name

    def source(self, folder: str, paths: Sequence[str], labels: Labels, classes: Classes) -> Images:
        """Return images, by their paths in a folder of the tree, with their labels."""
        own = [self.rows[f"{folder}/{path}" if folder else path] for path in paths]
        images = self.whole.take(np.array(own, np.int64))
        return images.with_target(labels, classes) if classes else images

    def read_text(self, path: str, limit: int) -> str:
        """Refuse: only images are listed."""
        raise DataError(f"cannot read {self.title(path)}")

    def is_image(self, path: str) -> bool:
        """Return whether a file is an image."""
        return path in self.rows


def open_by_folder(keys: Sequence[str], bare: Images, request: Request, split: str) -> Found | None:
    """Return images with the folders that they are in as their labels; None where none are classes.

    Args:
        keys: the path of each image, without its ending
        bare: the images, without labels
        request: names the data
        split: of all of them; empty if the data comes unsplit
    """
    rows = {key: number for number, key in enumerate(keys)}
    if len(rows) < len(keys) or not any("/" in key for key in rows):
        return None
    listings = {"": Listing()}
    for key in rows:
        folder, _, base = key.rpartition("/")
        add_folder(listings, f"{folder}/" if folder else "").images.append(base)
    tree = FileTree(MemberPlace(request.data, bare, rows), listings)
    try:
        found = open_tree(tree, replace(request, target="label"))
    except DataError:
        return None
    classes = {name for part in found.parts for name in part.source.classes}
    if len(classes) < 2 or all(is_part(name, 0) or is_when_or_where(name) for name in classes):
        return None
    line = f"{request.data} has no labels beside its images: the folder of an image is its label"
    parts = [replace(part, split=part.split or split) for part in found.parts]
    return Found(parts, [line, *found.notes])
