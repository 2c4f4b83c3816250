"""Class folders at any depth: the level of folders that names the class, or a split.

    cat/1.jpg                           cat
    cat/2024-01-01/1.jpg                cat: dates, numbers, cameras and sites are no classes
    2024-01-01/cat/1.jpg                cat, as the folder above is a date
    site A/camera 3/cat/1.jpg           cat
    cat/train/1.jpg, cat/test/1.jpg     cat, in two splits
    1/cat/1.jpg, 2/cat/1.jpg            cat: what recurs beneath numbers
    day/cat/1.jpg, night/cat/1.jpg      day: it may be either, and a line says so
    animals/cat/1.jpg                   animals, as nothing says otherwise: `class_folder` does

The names alone decide, as `choose_class_level` says.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitlab.data.split_words import SPLIT_OF

ClassFolder = Literal["auto", "outer", "inner"]
Folder = tuple[str, ...]
"""A folder that has images in it, as the names of the folders that lead to it."""

MOST_STRAY = 0.1
"""The largest share of images above the level of the classes that still is a few strays."""

_MONTH = (
    r"(jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|"
    r"oct(ober)?|nov(ember)?|dec(ember)?)"
)
_YEAR = r"(19|20)\d\d"
_DATE = re.compile(
    rf"{_YEAR}([-_. ]?\d\d?([-_. ]?\d\d?)?)?([-_. tT]+\d\d?[-_.:h]?\d\d([-_.:m]?\d\d)?)?|"
    rf"\d\d?[-_. ]\d\d?[-_. ]({_YEAR}|\d\d)|{_YEAR}[-_. ]?(w|q|s)\d\d?|"
    rf"(\d\d?[-_. ])?{_MONTH}[-_. ]?(\d\d?[-_. ,]+)?({_YEAR})?|"
    rf"{_YEAR}[-_. ]?{_MONTH}([-_. ]?\d\d?)?",
    re.IGNORECASE,
)
_PLACE = re.compile(
    r"(?i:site|camera|cam|trap|location|loc|station|plot|transect|hospital|clinic|center|centre|"
    r"lab|patient|subject|person|participant|user|case|study|farm|field|area|zone|region|room|"
    r"street|city|house|building|session|day|week|month|year|visit|trial|experiment|exp|batch|run|"
    r"device|scanner|sensor|phone|drone|flight|trip|roll|scene|sequence|seq|video|clip|film|set|"
    r"part|fold|folder|chunk|shard|group|block|series|take|slide|slice|plate|well|source|domain|"
    r"disk|card)s?"
    r"([-_ .#]*\d+([-_ ]?[a-zA-Z]|[-_ .]\d+)?|[-_ .#]+(?i:[a-z]|[ivx]+)|[A-Z])"
)
_NAMED_PLACE = re.compile(
    r"(site|camera|cam|trap|location|loc|station|plot|hospital|clinic|center|centre|lab|patient|"
    r"subject|participant|user|farm|session|batch|device|scanner|sensor|drone|domain|source)"
    r"[-_ .]+\w+",
    re.IGNORECASE,
)
_CARD = re.compile(r"\d{3}[A-Z_]{3,5}\d{0,2}|DCIM")  # of cameras: 100CANON, 101MSDCF
_NUMBER = re.compile(r"[-_#]?\d+([-_.]\d+)*")
_CONDITIONS = frozenset({
    "day", "night", "dawn", "dusk", "morning", "noon", "afternoon", "evening", "spring", "summer",
    "autumn", "fall", "winter", "left", "right", "front", "back", "rear", "top", "bottom", "side",
    "up", "down", "center", "indoor", "indoors", "outdoor", "outdoors", "images", "image", "imgs",
    "img", "photos", "photo", "pictures", "pics", "frames", "crops", "raw", "original",
    "originals", "processed", "rgb", "color", "gray", "grayscale", "small", "large", "low", "high",
    "old", "new", "clean", "augmented", "aug", "real", "synthetic", "sketch", "north", "south",
    "east", "west", "others", "more", "misc",
})  # fmt: skip


@dataclass(frozen=True)
class ClassLevel:
    """The level of folders that names the class.

    Attributes:
        level: 0 for the outermost, -1 for the folder that holds the image
        split_level: the level that names the split; None if none does
        classes: names at the level, some of them
        above: names at the level above, some of them; empty for the outermost
    """

    level: int = 0
    split_level: int | None = None
    classes: Sequence[str] = ()
    above: Sequence[str] = ()


def is_when_or_where(name: str) -> bool:
    """Return whether the name of a folder is a date, a place with a number, or a camera's own."""
    return any(kind.fullmatch(name) for kind in (_DATE, _PLACE, _CARD))


def is_part(name: str, level: int) -> bool:
    """Return whether a name is a number or a named place; inside of others also `day` or `left`."""
    is_like = any(kind.fullmatch(name) for kind in (_NUMBER, _NAMED_PLACE))
    return is_like or (level > 0 and name.strip().lower() in _CONDITIONS)


def choose_class_level(
    folders: Mapping[Folder, int], choice: ClassFolder = "auto", *, is_split: bool = False
) -> ClassLevel:
    """Return the level of folders that names the class.

    `outer` is the outermost, `inner` the folder that holds an image. `auto` is the outermost level
    less than three quarters of whose names are dates, places with numbers (site A, camera_3),
    numbers or named places (site_north), and inside of others words such as day and left; its names
    must be two or more. A level beneath numbers, named places or such words counts only where its
    names recur: most of them beneath half of the folders above, so that grades 0 to 4 with left and
    right, or with a folder of each patient, stay the classes. A level beneath a single folder
    (photos/cat) counts too. It is the outermost level after all where more than a tenth of the
    images lie above the one that was chosen.

    A level whose names are all those of splits, train among them, names the split (cat/train).

    Args:
        folders: those with images in them, and how many
        choice: what the user says
        is_split: whether they are in folders of splits already, so that none is looked for
    """
    if choice == "inner":
        return ClassLevel(-1)
    split_level = None if is_split else _find_split_level(folders)
    reduced = _without_level(folders, split_level)
    level = 0 if choice == "outer" else _find_level(reduced)
    classes = sorted({path[level] for path in reduced if len(path) > level})
    above = sorted({path[level - 1] for path in reduced if len(path) > level}) if level else []
    return ClassLevel(level, split_level, classes, above)


def _find_split_level(folders: Mapping[Folder, int]) -> int | None:
    """Return the level, not the outermost, whose names are all those of two splits or more."""
    for level in range(1, min(map(len, folders), default=0)):
        splits = {SPLIT_OF.get(path[level].lower(), "") for path in folders}
        if "train" in splits and len(splits) > 1 and "" not in splits:
            return level
    return None


def _without_level(folders: Mapping[Folder, int], level: int | None) -> dict[Folder, int]:
    """Return folders without one level of their names."""
    if level is None:
        return {**folders}
    found = defaultdict[Folder, int](int)
    for path, count in folders.items():
        found[path[:level] + path[level + 1 :]] += count
    return found


def _find_level(folders: Mapping[Folder, int]) -> int:
    """Return the level of `auto`."""
    depth = max(map(len, folders), default=0)
    total = sum(folders.values())
    must_recur = False
    for level in range(depth):
        deep = [path for path in folders if len(path) > level]
        if sum(folders[path] for path in deep) < (1 - MOST_STRAY) * total:
            return 0
        names = {path[level] for path in deep}
        context = [name for name in names if is_when_or_where(name)]
        parts = [name for name in names if is_part(name, level) and not is_when_or_where(name)]
        if len(names) == 1 and level + 1 < depth:  # what lies around all is no class
            total -= sum(folders[path] for path in deep if len(path) == level + 1)
            continue
        if len(context) + len(parts) < 0.75 * len(names):
            is_class = len(names) > 1 and (not must_recur or _recur(deep, level))
            return level if is_class else 0
        must_recur = must_recur or bool(parts)
    return 0


def _recur(folders: Iterable[Folder], level: int) -> bool:
    """Return whether most names at a level are beneath at least half of the folders above."""
    beneath = defaultdict[str, set[Folder]](set)
    parents = set[Folder]()
    for path in folders:
        beneath[path[level]].add(path[:level])
        parents.add(path[:level])
    pairs = sum(map(len, beneath.values()))
    common = sum(len(own) for own in beneath.values() if 1 < len(own) >= len(parents) / 2)
    return 2 * common > pairs
