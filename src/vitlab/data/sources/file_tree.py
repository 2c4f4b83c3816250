"""File tree: the names of all files and folders of a place, listed once, by what they are.

A folder (`list_folder`) and a zip (`data/sources/zips.py`) become the same `FileTree`, on which
`data/sources/layouts.py` decides what the names mean. Nothing here knows labels or splits.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from vitlab.data.decode.formats import CLIPS, LISTED, READABLE, SUFFIXES
from vitlab.data.folder_names import is_system_name
from vitlab.data.images import Images
from vitlab.data.labels import Labels
from vitlab.data.target import Classes
from vitlab.units import counted

# Endings of what usually lies beside images.
BESIDE = frozenset({".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".md", ".html", ".yaml",
                    ".yml", ".toml", ".db", ".ini", ".pdf", ".py", ".log",
                    ".names", ".labels"})  # fmt: skip
ARCHIVES = frozenset({".zip", ".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", ".gz", ".bz2",
                      ".xz", ".zst", ".7z", ".rar", ".lzh", ".z01"})  # fmt: skip
MOST_LOOKED_INTO = 4096
"""Files of endings in no table, or without one, of which the first bytes are read."""


class Place(Protocol):
    """Where the files of a tree are: a folder, or an archive."""

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive, so that no file in it has a path."""

    def title(self, path: str) -> str:
        """Return what to call a file or folder in a message, by its path in the tree."""

    def source(self, folder: str, paths: Sequence[str], labels: Labels, classes: Classes) -> Images:
        """Return images, by their paths in a folder of the tree, with their labels."""

    def read_text(self, path: str, limit: int) -> str:
        """Return the text of a file of at most `limit` bytes.

        Raises:
            DataError: it cannot be read, is larger, or is no text.
        """

    def is_image(self, path: str) -> bool:
        """Return whether a file is an image that can be read, by its first bytes."""


class Listing:
    """What is in one folder, by name.

    Attributes:
        folders: in it
        images: by their endings, or by their content
        clips: films and sounds, by the package that reads them
        beside: texts and tables
        archives: zip, tar and others
        others: how many other files have which ending, in lower case
    """

    __slots__ = ("archives", "beside", "clips", "folders", "images", "others")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.folders = list[str]()
        self.images = list[str]()
        self.beside = list[str]()
        self.clips: dict[str, list[str]] | None = None
        self.archives: list[str] | None = None
        self.others: Counter[str] | None = None

    def add_file(self, name: str) -> bool:
        """Add a file by its ending; return whether its content could make it an image."""
        suffix = suffix_of(name)
        if suffix in BESIDE:
            self.beside.append(name)
        elif suffix in SUFFIXES:
            self.images.append(name)
        elif suffix in READABLE:
            self.clips = self.clips or {}
            self.clips.setdefault(CLIPS[suffix], []).append(name)
        else:
            self.others = self.others or Counter()
            self.others[suffix or "no ending"] += 1
            if suffix in ARCHIVES:
                self.archives = self.archives or []
                self.archives.append(name)
            return suffix not in LISTED and suffix not in CLIPS and suffix not in ARCHIVES
        return False

    def make_image(self, name: str) -> None:
        """Count a file of another ending as an image."""
        assert self.others is not None
        self.others[suffix_of(name) or "no ending"] -= 1
        self.others += Counter()  # leaves out what is 0
        self.images.append(name)

    @property
    def has_pictures(self) -> bool:
        """Whether images, films or sounds are in the folder itself."""
        return bool(self.images or self.clips)


@dataclass(frozen=True)
class FileTree:
    """A folder of a place, with all that is below.

    Attributes:
        place: where the files are
        listings: of all folders of the place, by their paths, which end in `/`; of the whole: ""
        path: of this folder
        by_content: how many files of the place are images by their content alone
        unread: how many of unusual endings were not looked into, as there are too many
    """

    place: Place
    listings: Mapping[str, Listing]
    path: str = ""
    by_content: int = 0
    unread: int = 0

    @property
    def title(self) -> str:
        """What to call the folder in a message."""
        return self.place.title(self.path.rstrip("/"))

    @property
    def name(self) -> str:
        """The last part of its path; empty for the whole."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def listing(self) -> Listing:
        """What is in the folder itself."""
        return self.listings[self.path]

    def folder(self, path: str) -> "FileTree":
        """Return a folder below, by its path from here."""
        whole = f"{self.path}{path}/" if path else self.path
        return FileTree(self.place, self.listings, whole, self.by_content, self.unread)

    def folders(self) -> list["FileTree"]:
        """Return the folders inside, sorted."""
        return [self.folder(name) for name in sorted(self.listing.folders)]

    def below(self) -> Iterator[str]:
        """Yield the paths of this folder and of all folders below, from here, in any order."""
        inner = [self.path]
        while inner:
            path = inner.pop()
            yield path[len(self.path) :]
            inner += [f"{path}{name}/" for name in self.listings[path].folders]

    def has_pictures_below(self) -> bool:
        """Return whether there are images, films or sounds at any depth."""
        return any(self.listings[self.path + path].has_pictures for path in self.below())

    def pictures(self, *, deep: bool = True) -> tuple[list[str], Counter[str]]:
        """Return images, sorted, and how many other files have which ending.

        Films take their place where there are none, and sounds where there are no films either.

        Args:
            deep: at any depth, not only in this folder itself

        Returns:
            Paths from here, folder by folder, and the counts by ending.
        """
        kinds: dict[str, list[str]] = {"": [], "av": [], "soundfile": []}  # images, films, sounds
        others = Counter[str]()
        for path in self.below() if deep else [""]:
            listing = self.listings[self.path + path]
            kinds[""] += [path + name for name in listing.images]
            for kind, names in (listing.clips or {}).items():
                kinds[kind] += [path + name for name in names]
            if listing.others:
                others.update(listing.others)
        chosen = next(filter(None, kinds.values()), [])
        for more in kinds.values():
            if more is not chosen:
                others.update(map(suffix_of, more))
        chosen.sort(key=lambda name: name.replace("/", "\0"))  # as paths are sorted
        return chosen, others

    def source(self, paths: Sequence[str], labels: Labels, classes: Classes) -> Images:
        """Return images, by their paths from here, with their labels."""
        return self.place.source(self.path.rstrip("/"), paths, labels, classes)

    def read_text(self, name: str, limit: int) -> str:
        """Return the text of a file in the folder.

        Raises:
            DataError: it cannot be read, is larger than `limit` bytes, or is no text.
        """
        return self.place.read_text(self.path + name, limit)

    def content_lines(self) -> list[str]:
        """Return lines about images whose endings do not say that they are."""
        lines = list[str]()
        title = self.place.title("")
        if self.by_content:
            are = "is an image" if self.by_content == 1 else "are images"
            lines.append(
                f"{counted(self.by_content, 'file')} of {title} without a usual ending {are} by "
                "content"
            )
        if self.unread:
            lines.append(
                f"{self.unread:,} files of {title} without a usual ending were not looked into: "
                "give those that are images an ending such as .jpg"
            )
        return lines


def suffix_of(name: str) -> str:
    """Return the ending of a file's name, in lower case with its dot; empty if it has none."""
    stem, _, ending = name.rpartition(".")
    return f".{ending.lower()}" if stem and ending else ""


def add_folder(listings: dict[str, Listing], path: str) -> Listing:
    """Return the listing of a folder, which is added with those around it."""
    if path in listings:
        return listings[path]
    listing = listings[path] = Listing()
    inner = path
    while inner:
        outer, _, name = inner.rstrip("/").rpartition("/")
        around = f"{outer}/" if outer else ""
        is_known = around in listings
        listings.setdefault(around, Listing()).folders.append(name)
        inner = "" if is_known else around
    return listing


def look_into(
    place: Place, listings: Mapping[str, Listing], doubtful: Sequence[tuple[str, str]]
) -> FileTree:
    """Return the tree of some listings, in which files are images whose content says so.

    Args:
        place: where the files are
        listings: of all folders, by path
        doubtful: folder and name of files whose endings are in no table
    """
    found = 0
    ordered = sorted(doubtful)
    for path, name in ordered[:MOST_LOOKED_INTO]:
        if place.is_image(path + name):
            listings[path].make_image(name)
            found += 1
    unread = max(0, len(ordered) - MOST_LOOKED_INTO)
    return FileTree(place, listings, by_content=found, unread=unread)


def list_folder(root: Path, place: Place) -> FileTree:
    """Return the tree of a folder on the disk.

    What is hidden is left out, and what systems add. Links are followed, but not to a folder that
    they are in.

    Args:
        root: the folder
        place: where its files are
    """
    listings = dict[str, Listing]()
    doubtful = list[tuple[str, str]]()
    inner = [("", frozenset[tuple[int, int]]())]
    while inner:
        path, around = inner.pop()
        listing = listings[path] = Listing()
        with suppress(PermissionError), os.scandir(root / path) as entries:
            state = (root / path).stat()
            own = state.st_dev, state.st_ino
            if own in around:  # a link to a folder that it is in
                continue
            around |= {own}
            for entry in entries:
                name = entry.name
                if is_system_name(name):
                    continue
                if _is(entry.is_dir):
                    listing.folders.append(name)
                    inner.append((f"{path}{name}/", around))
                elif _is(entry.is_file) and listing.add_file(name):
                    doubtful.append((path, name))
    return look_into(place, listings, doubtful)


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself
        return False
