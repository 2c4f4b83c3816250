"""Image files: a folder, flat or of class folders, in splits or not; single files and globs."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from vitlab.data.decode.formats import CLIPS, READABLE, SUFFIXES, unread_lines
from vitlab.data.decode.media import stored_file
from vitlab.data.decode.stored import StoredImage
from vitlab.data.exists import PATTERN, STDIN
from vitlab.data.labels import Labels, SingleLabels
from vitlab.data.rules import SPLIT_OF, SPLIT_WORDS, is_system_name, merge_names
from vitlab.data.sources.paths import Names, read_image, some
from vitlab.data.sources.remote import braces, expand, is_url
from vitlab.data.sources.request import Found, Part, Request, blank
from vitlab.errors import DataError

# Endings of what usually lies beside images.
BESIDE = frozenset({".txt", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".md", ".html", ".yaml",
                    ".yml", ".toml", ".db", ".ini", ".pdf", ".py", ".log"})  # fmt: skip

# Folders of images and of their masks, which are no classes, and the number that masks ignore.
MASK_LAYOUTS = (
    ("images", "masks", 255),
    ("JPEGImages", "SegmentationClass", 255),
    ("images", "annotations", 0),
)


@dataclass(frozen=True)
class LabeledFiles:
    """Image files, each with its label; paths are relative to the root."""

    root: Path
    paths: Sequence[str]
    labels: Labels
    classes: tuple[str, ...]
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int) -> StoredImage:
        """Read one file.

        Raises:
            ImageError: it cannot be read, or is too large.
        """
        name = self.name(index)
        return stored_file(read_image(Path(name), name), name)

    def name(self, index: int) -> str:
        """Return the path of a file."""
        return str(self.root / self.paths[index])


def image_paths(paths: Sequence[str], root: Path = Path()) -> LabeledFiles:
    """Return image files, relative to a root, as a source without labels."""
    return LabeledFiles(root, Names.of(paths), blank(len(paths)), ())


def named_files(paths: Sequence[str], title: str) -> LabeledFiles:
    """Return files that are named one by one, as a source without labels.

    Raises:
        DataError: some of them do not exist.
    """
    whole = [str(Path(each).expanduser()) for each in paths]
    missing = [each for each in whole if not Path(each).is_file()]
    if len(missing) == 1:
        raise DataError(f"no such file: {missing[0]}")
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files of {title} do not exist: {some(missing)}"
        )
    return image_paths(whole)


def open_folder(request: Request) -> Found | None:
    """Open a folder of images; None for others.

    Its folders are classes, or splits that hold class folders; images beside class folders have no
    label. Where no label is required, it may also be a folder of photographs at any depth, or of
    splits that hold photographs.

    Raises:
        DataError: it is empty, or it cannot be told whether its folders are classes or splits.
    """
    root = request.path
    if not root.is_dir():
        return None
    if request.labels == "ignored":
        return _without_labels(root, {"": root})
    flat = _flat_splits(root)
    try:
        if flat:
            raise DataError(
                f"{root} has images in {' and '.join(each.name for each in flat.values())}, which "
                "are names of splits, not of classes: put the images of each class into a folder "
                "of its name there, or name a CSV list of the images (path,label,split) as the data"
            )
        return _of_classes(root)
    except DataError:
        if request.labels == "required":
            raise
        splits = flat or _splits_inside(root)
        if "train" not in splits:
            return _without_labels(root, {"": root})
        beside = [each for each in visible(root) if each not in splits.values()]
        found = _without_labels(root, splits)
        notes = [f"ignored {each}: it is beside {splits['train'].name}" for each in beside]
        return Found(found.parts, [*notes, *found.notes])


def _without_labels(root: Path, folders: Mapping[str, Path]) -> Found:
    """Return all images below some folders, by split."""
    parts, notes = list[Part](), list[str]()
    for split, folder in folders.items():
        names, others = names_below(folder)
        notes += unread_lines(str(folder), others, not names)
        if names:
            why = f"{root} has no class folders"
            parts.append(Part(image_paths(names, folder), split, why))
    if not parts or (folders.keys() > {"train"} and parts[0].split != "train"):
        where = folders.get("train", root)
        raise DataError(f"no images in {where}" + "".join(f"; {note}" for note in notes))
    return Found(parts, notes)


def _of_classes(root: Path) -> Found:
    """Return the images of class folders, and those beside them."""
    found, others = split_folders(root)
    blind = [each for each in others if each.name.lower() in SPLIT_OF and holds_images(each)]
    notes = [f"ignored {each}: neither a split nor a class" for each in others if each not in blind]
    parts = []
    for folder in blind if found else []:
        lacks = f"{folder} has no class folders"
        names, unread = names_below(folder)
        parts.append(Part(image_paths(names, folder), SPLIT_OF[folder.name.lower()], lacks))
        notes += unread_lines(str(folder), unread)
    for split, folder in (found or {"": root}).items():
        source, more = class_folders(folder)
        parts.append(Part(source, split))
        notes += more
    loose = [] if found else sorted(each.name for each in root.iterdir() if _is_image(each))
    if loose:
        why = f"they are in {root} itself, beside its class folders"
        parts.append(Part(image_paths(loose, root), lacks=why))
    return Found(parts, notes)


def open_files(request: Request) -> Found | None:
    """Open an image file, a glob or brace pattern, or `-`; None for other names.

    Where a pattern has its wildcard among the folders, the label of an image is the name of its
    folder.
    """
    name, path = request.data, request.path
    if name == STDIN:
        lines = [line.rstrip("\r\n") for line in sys.stdin]
        given = [line for line in lines if line.strip()]
        if not given:
            raise DataError("no images given: the list is empty")
        files = named_files(given, "standard input")
        return Found([Part(files, lacks="paths on standard input have no labels")])
    if path.is_file():
        if path.suffix.lower() not in SUFFIXES | READABLE and request.labels != "ignored":
            return None
        return Found([Part(image_paths([str(path)]), lacks=f"{name} is one image without a label")])
    if is_url(name) or not any(sign in name for sign in PATTERN):
        return None
    matches = [file for file in expand(str(path)) if Path(file).is_file()]
    images: list[str] = []
    for known in (SUFFIXES, READABLE):
        images = images or [each for each in matches if Path(each).suffix.lower() in known]
    if not matches:
        raise DataError(f"no such file: {name}")
    if not images:
        raise DataError(f"no images among the {len(matches):,} files of {name}")
    left = len(matches) - len(images)
    notes = [f"skipped {left:,} files of {name} that are not images"] * bool(left)
    part, alike = _by_folder(name, images)
    return Found([part], [*notes, *alike])


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
    return Part(LabeledFiles(Path(), Names.of(images), SingleLabels(labels), order)), notes


def _splits_inside(root: Path) -> dict[str, Path]:
    """Return the folders that are named as splits, training first."""
    inside = {each.name.lower(): each for each in visible(root)}
    found = {
        split: [name for name in names if name in inside] for split, names in SPLIT_WORDS.items()
    }
    return {split: inside[names[0]] for split, names in found.items() if names}


def _flat_splits(root: Path) -> dict[str, Path]:
    """Return the folders of a root that has nothing but splits without class folders."""
    found = _splits_inside(root)
    alone = len(found) > 1 and len(found) == len(visible(root))
    first = found.get("train")
    return found if alone and all(map(holds_images, [first] if first else found.values())) else {}


def split_folders(root: Path) -> tuple[dict[str, Path], list[Path]]:
    """Return the folders that are splits, training first, and those that are neither.

    A folder named as a split is one if its images are in class folders; else it is a class of that
    name (a train, beside a bus and a car).

    Returns:
        Nothing if the folders are classes.

    Raises:
        DataError: folders of classes beside a split, or other splits but none to learn from.
    """
    found = {s: folder for s, folder in _splits_inside(root).items() if not holds_images(folder)}
    others = [each for each in visible(root) if each not in found.values()]
    if not found or (others and "train" not in found):
        return {}, []
    if "train" not in found and len(found) > 1:
        names = " and ".join(each.name for each in found.values())
        raise DataError(f"{root} has {names}, but no train folder: name one of them as the data")
    doubtful = [each for each in others if not holds_images(each) and names_below(each)[0]]
    if doubtful:
        raise DataError(
            f"{root} has {doubtful[0].name} beside {found['train'].name}, and it may be a class or "
            f"a split: rename it test or val, move it away, or name {found['train']} as the data"
        )
    return found, others


def visible(folder: Path) -> list[Path]:
    """Return the folders inside, sorted, except hidden ones and those that systems add."""
    inside = (each for each in folder.iterdir() if not is_system_name(each.name))
    return sorted(each for each in inside if each.is_dir())


def json_files(root: Path) -> list[Path]:
    """Return the .json of a folder, and of the folders in it: annotations, perhaps."""
    return [file for sub in ("", "*/") for file in sorted(root.glob(f"{sub}*.json"))]


def holds_images(folder: Path) -> bool:
    """Return whether images are in a folder itself, not only in folders below."""
    return any(map(_is_image, folder.iterdir()))


def _is_image(file: Path) -> bool:
    read = file.suffix.lower() in SUFFIXES | READABLE
    return read and not is_system_name(file.name) and file.is_file()


def class_folders(root: Path) -> tuple[LabeledFiles, list[str]]:
    """Return the images of a folder whose sub-folders are classes, and notes on what was left out.

    The class index is the sorted order of the folder names.

    Raises:
        DataError: no class folders, no images in them, or they hold images and their masks.
    """
    listed = {each.name: names_below(each) for each in visible(root)}
    found = {name: own for name, (own, _) in listed.items() if own}
    others = sum((others for _, others in listed.values()), Counter[str]())
    skipped = unread_lines(str(root), others, not found)
    if not found:
        loose = " (its images are not in sub-folders)" if names_below(root)[0] else ""
        raise DataError(
            f"{root} has no class folders with images{loose}: put the images of each class into a "
            f"folder of its name; supported are {', '.join(sorted(SUFFIXES))}"
            + "".join(f"; {line}" for line in skipped)
        )
    if len({CLIPS.get(Path(own[0]).suffix.lower()) for own in found.values()}) > 1:
        raise DataError(f"{root} has classes of images, sounds or films together: keep one kind")
    if any(found.keys() == {images, masks} for images, masks, _ in MASK_LAYOUTS):
        raise DataError(
            f"{root} has {' and '.join(found)}, which are not classes: vitlab probe --task segment "
            "learns from images with masks; to tell the two apart all the same, rename one"
        )
    spelled, alike = merge_names(found, str(root))
    classes = tuple(sorted({*spelled.values()}))
    place = {name: number for number, name in enumerate(classes)}
    labels = np.repeat(
        [place[spelled[name]] for name in found], [len(own) for own in found.values()]
    )
    names = Names.of(f"{name}/{path}" for name, own in found.items() for path in own)
    files = LabeledFiles(root, names, SingleLabels(labels), classes)
    notes = sorted(
        f"skipped class folder {root / name}: no images" for name in listed.keys() - found
    )
    return files, [*notes, *alike, *_nested_lines(root, found), *skipped]


def names_below(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return all images below a folder, sorted, and how many other files have which ending.

    Films take their place where there are none, and sounds where there are no films either.
    Paths are texts relative to the folder: there may be millions. What is hidden is left out, and
    what systems add.
    """
    found: dict[str, list[str]] = {"": [], "av": [], "soundfile": []}  # images, films, sounds
    read = SUFFIXES | READABLE
    others, inner = Counter[str](), [("", frozenset[tuple[int, int]]())]
    while inner:
        place, around = inner.pop()
        with suppress(PermissionError), os.scandir(folder / place) as entries:
            state = (folder / place).stat()
            own = state.st_dev, state.st_ino
            if own in around:  # a link to a folder that it is in
                continue
            around |= {own}
            for entry in entries:
                name = entry.name
                if is_system_name(name):
                    continue
                if _is(entry.is_dir):
                    inner.append((f"{place}{name}/", around))
                    continue
                stem, _, ending = name.rpartition(".")
                suffix = f".{ending.lower()}" if stem and ending else ""
                if suffix in BESIDE or not _is(entry.is_file):
                    continue
                if suffix in read:
                    found[CLIPS.get(suffix, "")].append(place + name)
                else:
                    others[suffix or "no ending"] += 1
    images = next(filter(None, found.values()), [])
    for more in found.values():
        if more is not images:
            others.update(Path(each).suffix.lower() for each in more)
    images.sort(key=lambda name: name.replace("/", "\0"))  # folder by folder, as paths are sorted
    return images, others


def _is(kind: Callable[[], bool]) -> bool:
    try:
        return kind()
    except OSError:  # a link to itself
        return False


def _nested_lines(root: Path, found: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a line about folders inside of classes, whose names say nothing to a model."""
    nested = [
        name
        for name, paths in found.items()
        if all("/" in path for path in paths)
        and len({path.partition("/")[0] for path in paths}) > 1
    ]
    if not nested:
        return []
    return [
        f"{len(nested):,} of the {len(found):,} classes have their images in folders of their own: "
        f"every image in {root / nested[0]} has the class {nested[0]}; if those folders are the "
        "classes, move them up, or list the images in a .csv"
    ]
