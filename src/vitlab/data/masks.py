"""Masks: which mask belongs to which image, and the class of each pixel in it.

    images/ + masks/                   files of the same name but for the ending, also in folders of
                                       splits: images/train + masks/train, or train/images + …
    JPEGImages/ + SegmentationClass/   the same (VOC); ImageSets/Segmentation/train.txt, val.txt, …
                                       say which images are in a split
    images/ + annotations/             the same (ADE20K): 0 is ignored, 1 is the first class
    COCO's annotations                 polygons and run lengths in a .json, as data/polygons.py
    a .csv, .tsv or .jsonl list        a column `mask` beside that of the images' paths
    (image, mask) pairs in memory      a list, or a dictionary of such lists by split

A mask holds a number for each pixel: a PNG, BMP or TIFF, gray (8 or 16 bits) or with a palette,
whose colors play no part. One number is ignored: 255 unless the layout or the user says another.
The names of the classes are the lines of a file, `classes.txt` beside the folders or another;
without one the classes are the numbers that the masks have, in order, and are called so.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from vitlab.data.cells import usual_columns
from vitlab.data.class_index import check_class_names
from vitlab.data.folder_names import MASK_LAYOUTS
from vitlab.data.images import Images
from vitlab.data.loading.loader import in_chunks
from vitlab.data.mask_frames import place_masks
from vitlab.data.mask_targets import MaskStore, MaskTargets, masks_of
from vitlab.data.polygons import CROWD, Pairs, read_polygons
from vitlab.data.settings import AnnotationFrame, Columns
from vitlab.data.sources.cell_table import check_known_columns
from vitlab.data.sources.folders import json_files, names_below, visible
from vitlab.data.sources.image_files import image_paths
from vitlab.data.sources.lists import SUFFIXES, find_images, read_list, read_paths
from vitlab.data.sources.memory import pieces
from vitlab.data.sources.paths import Names, read_text, some
from vitlab.data.sources.pictures import Pictures
from vitlab.data.sources.request import Found, MaskReading, Part, Request
from vitlab.data.split_cells import find_split_column
from vitlab.data.split_words import SPLIT_OF
from vitlab.data.splits import ALL
from vitlab.errors import DataError, ImageError
from vitlab.models.heads.mask_classes import LARGEST, Ignored, MaskClasses
from vitlab.progress import named_if_slow

MOST = 1000  # classes
NAMES_FILE = "classes.txt"
FEW = 64  # masks that are read without processes


def open_masks(request: Request) -> Found:
    """Open images with masks, all with the same classes.

    Args:
        request: a folder, a list, or pairs in memory, as this file says; `masks` says how they are
            read

    Raises:
        DataError: no such layout, no image with a mask, fewer than two classes, groups of images
            that no list names.
    """
    data = request.given
    columns = request.columns
    how = request.masks
    title = request.data
    names = dict[int, str]()
    usual = 255
    notes = list[str]()
    groups = dict[str, str]()
    turns = dict[str, int]()
    root = Path(title).expanduser()
    if not isinstance(data, str | Path):
        parts, names = _in_memory(data)
        parts = _with_turns(parts, title, columns.annotation_frame, notes)
    else:
        if root.is_file() and root.suffix.lower() in SUFFIXES:
            pairs, groups, notes = _listed(root, columns)
        elif layouts := _layouts(root):
            usual = layouts[0][3]
            pairs, notes = _below(root, layouts)
        else:
            known = how.like or MaskClasses(ignored=CROWD)
            usual = CROWD
            numbers = dict(zip(known.classes, known.values, strict=True))
            drawn = read_polygons(root, numbers, known.ignored, columns)
            pairs = drawn.pairs
            names = drawn.names
            notes = drawn.notes
            groups = drawn.groups
            turns = drawn.turns
            if how.class_names or how.ignore != -1:
                raise DataError(f"{title} names its classes itself: no --class-names, no --ignore")
        parts = _parts(pairs, groups, turns)
        if not turns:
            parts = _with_turns(parts, title, columns.annotation_frame, notes)
    if columns.group_column and not groups:
        raise DataError(
            f"{title} has no columns, so that group_column means nothing: name a list with the "
            "columns path, mask and that of the groups"
        )
    known = how.like or _classes_of_masks(parts, how, names, usual, title)
    labeled = [
        Part(part.with_target(masks_of(part).with_classes(known), known.classes), name)
        for name, part in parts.items()
    ]
    return Found(labeled, notes)


def _classes_of_masks(
    parts: Mapping[str, Images], how: MaskReading, names: dict[int, str], usual: int, title: str
) -> MaskClasses:
    """Return the classes of masks: of a file, of the data, or the numbers that masks have."""
    ignored = usual if how.ignore == -1 else how.ignore
    file = Path(how.class_names or Path(title).expanduser() / NAMES_FILE)
    with named_if_slow(f"looking for the classes in the masks of {title}"):
        own = _named(file, ignored) if how.class_names or file.is_file() else names
        classes = own or _found(parts, ignored, how.workers)
    return _check_mask_classes(classes, ignored, title)


def _check_mask_classes(classes: Mapping[int, str], ignored: Ignored, title: str) -> MaskClasses:
    """Return the classes of masks by their numbers; refuse fewer than two, and odd names."""
    if len(classes) < 2:
        count = "1 class" if classes else "no classes"
        raise DataError(
            f"the masks of {title} have {count} beside {ignored}, which is ignored: at least 2 are "
            "needed; --ignore none counts every number"
        )
    check_class_names(tuple(classes.values()), title)
    return MaskClasses(tuple(classes.values()), tuple(classes), ignored)


def _named(file: Path, ignored: Ignored) -> dict[int, str]:
    """Return names by number, of a file with a class per line."""
    lines = read_text(file, 2**24).split("\n")
    names = [line.strip() for line in lines if line.strip()]
    pairs = [re.fullmatch(r"(\d{1,5})[\s:,]+(\S.*)", name) for name in names]
    first = int(ignored == 0)
    found = dict(enumerate(names, first))
    if names and all(pairs):
        found = {int(each[1]): each[2] for each in pairs if each}
        found.pop(-1 if ignored is None else ignored, None)
    if (
        len(found) > MOST
        or len({normalize("NFC", name) for name in found.values()}) < len(found)
        or max(found, default=0) >= LARGEST
    ):
        raise DataError(f"{file}: names must be different, at most {MOST:,}, a class per line")
    return found


def _found(parts: Mapping[str, Images], ignored: Ignored, workers: int | None) -> dict[int, str]:
    """Return the numbers in all masks that can be read, each as a name too."""
    there = np.zeros(LARGEST, bool)
    for part in parts.values():
        for each in in_chunks(part, _numbers_in, 16, 0 if len(part) < FEW else workers):
            there[each] = True
    if ignored is not None:
        there[ignored] = False
    if there.sum() > MOST:
        raise DataError(
            f"the masks have {there.sum():,} different numbers: such masks of instances need to be "
            f"made masks of classes, of which there are at most {MOST:,}"
        )
    return {int(number): str(number) for number in np.flatnonzero(there)}


def _numbers_in(source: Images, indices: range) -> list[int]:
    """Return the numbers in some masks; damaged ones are reported where they are used."""
    masks = masks_of(source)
    there = np.zeros(LARGEST, bool)
    for index in indices:
        try:
            there[masks.numbers(index)] = True
        except ImageError:
            continue
    return np.flatnonzero(there).tolist()


# Where images and masks are


Layouts = list[tuple[str, Path, Path, int]]


def _layouts(root: Path) -> Layouts:
    """Return a folder's splits, images, masks and ignored numbers; none where there is a .json."""
    if root.is_file() and root.suffix.lower() == ".json":
        return []
    if not root.is_dir():
        raise DataError(f"no such folder or list (.csv, .jsonl, COCO's .json): {root}")
    folders = {each.name.lower(): each for each in visible(root)}
    places = [("", root), *((SPLIT_OF[n], each) for n, each in folders.items() if n in SPLIT_OF)]
    layouts = [
        (split, place / images, place / masks, ignored)
        for images, masks, ignored in MASK_LAYOUTS
        for split, place in places
        if (place / images).is_dir() and (place / masks).is_dir()
    ]
    drawn = json_files(root)
    layouts = [each for each in layouts if all(file.parent != each[2] for file in drawn)]
    if not layouts and not drawn:
        raise DataError(
            f"{root} has no images with masks: put them into folders images/ and masks/ (or VOC's "
            "JPEGImages/ and SegmentationClass/, or ADE's images/ and annotations/), or name a "
            ".csv list with the columns path and mask"
        )
    return layouts


def _below(root: Path, layouts: Layouts) -> tuple[Pairs, list[str]]:
    """Return images and masks of a folder by split, and remarks."""
    pairs = Pairs()
    without: list[str] = []
    for outer, images, masks, _ in layouts:
        stems = _stems(masks)
        for name in names_below(images)[0]:
            file = str(images / name)
            if stem := stems.get(_stem(name)):
                top = name.partition("/")[0].lower() if "/" in name else ""
                pairs.setdefault(outer or SPLIT_OF.get(top, ""), []).append((file, str(stem)))
            else:
                without.append(file)
    if not pairs:
        raise DataError(f"no image of {root} has a mask of the same name in {layouts[0][2]}")
    notes = []
    if without:
        notes.append(f"left out {len(without):,} images without a mask: {some(without)}")
    return _by_lists(root / "ImageSets" / "Segmentation", pairs), notes


def _stem(name: str) -> str:
    """Return a path without its ending, in whatever case."""
    return name.rpartition(".")[0]


def _stems(masks: Path) -> dict[str, Path]:
    """Return the masks of a folder by their paths without endings."""
    found: dict[str, Path] = {}
    for name in names_below(masks)[0]:
        if other := found.get(_stem(name)):
            raise DataError(f"{masks} has two masks of one name, {other.name} and {name}")
        found[_stem(name)] = masks / name
    return found


def _by_lists(folder: Path, pairs: Pairs) -> Pairs:
    """Return pairs by the lists of VOC that name the images of a split; as they are without."""
    by_stem = {Path(image).stem: (image, mask) for own in pairs.values() for image, mask in own}
    found = Pairs()
    for file in sorted(folder.glob("*.txt")):
        if split := SPLIT_OF.get(file.stem.lower()):
            stems = read_text(file, 2**28).split()
            if missing := [stem for stem in stems if stem not in by_stem]:
                raise DataError(
                    f"{file} names {len(missing):,} images that are missing or have no mask: "
                    f"{some(missing)}"
                )
            found[split] = [by_stem[stem] for stem in stems]
    return found or pairs


def _listed(file: Path, known: Columns) -> tuple[Pairs, dict[str, str], list[str]]:
    """Return images and masks of a list by split, the groups of the images, and remarks."""
    table = read_list(file, known)
    column, places = find_images(table, file, known)
    others = [name for name in table.columns if name != column]
    columns = usual_columns(others, ("mask", "mask_path"))
    if not columns:
        raise DataError(f"{file} has no column mask beside {column}: it names the mask of an image")
    images, notes = read_paths(table, column, places, file, known)
    masks, more = read_paths(table, columns[0], replace(places, ending=""), file, known)
    check_known_columns(table.columns, file, (known.group_column,))
    facts = replace(table.facts(""), column=known.split_column)
    held = (column, columns[0], known.group_column)
    splits = find_split_column(table.columns, table.cells, facts, held)
    groups = dict[str, str]()
    if known.group_column:
        cells = table.cells(known.group_column)
        groups = {
            str(places.root / image): str(cell) for image, cell in zip(images, cells, strict=True)
        }
    pairs = Pairs()
    for row, (image, mask) in enumerate(zip(images, masks, strict=True)):
        pair = str(places.root / image), str(places.root / mask)
        split = splits.splits[row] if splits.splits else "train"
        pairs.setdefault(split, []).append(pair)
    return pairs, groups, [*notes, *more, *splits.notes]


def _parts(pairs: Pairs, groups: Mapping[str, str], turns: Mapping[str, int]) -> dict[str, Images]:
    """Return files by split; what is in no split is training, or all there is.

    Args:
        pairs: images and masks
        groups: of images, by their paths; none of images that are alone
        turns: by which masks are turned, by the paths of their images; none of masks that are not
    """
    names = sorted(name for name in pairs if name) or [""]
    one = len(names) < 2 or "train" not in names
    by_split = Pairs()
    for name, own in pairs.items():
        by_split.setdefault(ALL if one else name or "train", []).extend(own)
    found = dict[str, Images]()
    for name, own in by_split.items():
        paths = [image for image, _ in own]
        images = image_paths(paths)
        if groups:
            images = images.in_groups([groups[path] for path in paths])
        turned = [turns[path] for path in paths] if turns else ()
        found[name] = _with_masks(images, [mask for _, mask in own], turned)
    return found


def _with_masks(images: Images, masks: Sequence[Any], turns: Sequence[int] = ()) -> Images:
    """Return images with a mask each, whose classes are not known yet."""
    names = Names.of(images.name(row) for row in range(len(images)))
    return images.with_target(MaskTargets.of(MaskStore(masks, names, turns=turns)), ())


def _with_turns(
    parts: Mapping[str, Images], title: str, wanted: AnnotationFrame, notes: list[str]
) -> dict[str, Images]:
    """Return images whose masks are turned with them where EXIF turns the image alone.

    Images of which it cannot be told are left out.
    """
    pairs = {name: (part, masks_of(part).store.masks) for name, part in parts.items()}
    found = dict[str, Images]()
    for name, placed in place_masks(pairs, title, wanted).items():
        part = parts[name]
        notes += placed.notes
        if (placed.turns != 1).any():
            turned = _with_masks(part, masks_of(part).store.masks, placed.turns.tolist())
            part = turned.take(np.flatnonzero(placed.turns))
        if len(part):
            found[name] = part
    if not found:
        raise DataError(f"no image is left to learn from: {notes[-1]}")
    return found


def _in_memory(data: Any) -> tuple[dict[str, Images], dict[int, str]]:
    """Return pairs of images and masks by split, and the names of the classes if given."""
    given, names = pieces(data)
    found = {}
    for name, own in given.items():
        pairs = [*own]
        if not pairs or not all(
            isinstance(each, tuple | list) and len(each) == 2 for each in pairs
        ):
            raise DataError("images with masks in memory are a list of (image, mask) pairs")
        images = Images.of(Pictures([image for image, _ in pairs]))
        split = name if len(given) > 1 else ALL
        found[split] = _with_masks(images, [mask for _, mask in pairs])
    return found, dict(enumerate(names))
