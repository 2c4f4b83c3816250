"""`open_images`: which images DATA means. The one answer for every command, page and Python call.

A folder (flat, of classes, with train/ and test/, or mixed), a list, tables, tar shards, a name on
the Hub, `digits`, a glob, files, standard input, objects in memory: each kind has an opener, a
function in a file of its own below `data/sources`. A new kind is a file and a line in `OPENERS`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from vitlab.by_name import load_object
from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.exists import PATTERN, check_data
from vitlab.data.images import Images, concat
from vitlab.data.labels import UnlabeledError
from vitlab.data.settings import Columns
from vitlab.data.sources.image_files import named_files
from vitlab.data.sources.pictures import Picture, in_hand
from vitlab.data.sources.request import (
    NO_LABELS,
    Found,
    Given,
    MaskReading,
    Part,
    Request,
    TargetKind,
    title_of,
)
from vitlab.data.sources.urls import is_url
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS
from vitlab.data.splits import ALL
from vitlab.errors import DataError
from vitlab.progress import named_if_slow

OPENERS: dict[str, str] = {
    "memory": "vitlab.data.sources.memory:open_memory",
    "digits": "vitlab.data.sources.memory:open_digits",
    "scenes": "vitlab.data.boxes:open_scenes",
    "vtab": "vitlab.data.vtab:open_vtab",
    "list": "vitlab.data.sources.lists:open_list",
    "saved": "vitlab.data.sources.tables:open_saved",
    "parquet": "vitlab.data.sources.parquet:open_parquet",
    "shards": "vitlab.data.sources.tar_shards:open_shards",
    "zip": "vitlab.data.sources.zips:open_zip",
    "folder": "vitlab.data.sources.layouts:open_folder",
    "files": "vitlab.data.sources.folders:open_files",
    "hub": "vitlab.data.sources.tables:open_hub",
    "other": "vitlab.data.sources.refusals:explain_data",
}
"""Openers by the kind of data, asked in this order: each returns None for what is not of its kind.

The text names a module and a function of it, which is imported when it is asked.
"""

ANNOTATED: dict[str, str] = {
    "boxes": "vitlab.data.boxes:open_boxes",
    "mask": "vitlab.data.masks:open_masks",
}
"""Openers of images whose targets are places in them, by the kind of target."""

OF_CLASS_FOLDERS = frozenset({"folder", "zip", "shards"})


def _ask_opener(kind: str, request: Request) -> Found | None:
    """Ask the opener of one kind of data."""
    opener: Callable[[Request], Found | None] = load_object(OPENERS[kind])
    return opener(request)


@dataclass(frozen=True)
class Opened:
    """The images that DATA means.

    Attributes:
        title: what to call the data in a message
        parts: `train` and, if there are any, `validation` and `test`, then what else the data has,
            by its own name; or `all` alone, where the data comes unsplit. All have the same classes
        unlabeled: images without a label beside labeled ones, of labels that were optional, by
            their split; `all` where they are in none
        lacks: why there are no labels; empty where there are
        notes: remarks for the user, such as what was left out
    """

    title: str
    parts: dict[str, Images]
    unlabeled: dict[str, Images] = field(default_factory=dict)
    lacks: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def loose(self) -> Images | None:
        """All images without a label beside labeled ones; None if there are none."""
        return concat([*self.unlabeled.values()]) if self.unlabeled else None

    @property
    def unsplit(self) -> Images | None:
        """All images with labels of data that comes unsplit; None of data in splits."""
        return self.parts.get(ALL)

    def every(self) -> Images:
        """Return all images in the data's order, those without labels last."""
        sources = list(self.parts.values())
        if self.loose is not None:
            sources = [*(each.without_labels() for each in sources), self.loose]
        return concat(sources)


def open_images(
    data: Given | Picture | Iterable[Any],
    target: TargetKind = "label",
    *,
    classes: Sequence[str] = (),
    columns: Columns | None = None,
    masks: MaskReading | None = None,
) -> Opened:
    """Open the images that DATA means, with what is wanted of each.

    Args:
        data: `digits`; a folder of photographs, of class folders, or with train/ and val/ or test/;
            a Parquet file, or a folder of them; WebDataset shards (a `.tar` file or URL, a glob, a
            brace range such as `photos-{000..031}.tar`, or a folder of them); a `.csv`, `.tsv` or
            `.jsonl` list; a Hugging Face data set `user/name`; a task of VTAB-1k,
            `vtab:ROOT/TASK`; an image file, a glob pattern of them, or `-` for paths on standard
            input; several of these names; or images in memory (`data.sources.request.Given`)
        target: `label`: its class or classes; images without any are left out and counted, or
            refused if none has one. `optional`: these images are `Opened.loose`, or all there is.
            `none`: labels and splits play no part: one part, `all`, of every image in the data's
            order. `numbers`: of each column of `columns.label_column`, NaN where there is none.
            `boxes`: of objects (`data.boxes`). `mask`: the class of each pixel (`data.masks`)
        classes: the class index to map labels to by name; none for the data's own
        columns: the columns of a list or a table; None to find them
        masks: how these are read; None for the usual

    Raises:
        UnlabeledError: no image has a label, and they are required.
        UnknownClassError: a class that is not among `classes`, or not in the training images.
        DataError: nothing there, no images, a list that names missing files, a damaged shard.
    """
    data = in_hand(data)
    request = Request(
        title_of(data),
        data,
        target,
        tuple(classes),
        columns or Columns(),
        masks or MaskReading(),
    )
    if target in ANNOTATED:
        return _open_annotated(request)
    if isinstance(data, list | tuple) and data and all(isinstance(n, str | Path) for n in data):
        found = _named_by_several(request)
    else:
        found = _found(request)
    if target == "none":
        whole = concat([part.source.without_labels() for part in found.parts])
        opened = Opened(request.data, {ALL: whole}, notes=found.notes)
    else:
        opened = _labeled(request, found)
    if not any(map(len, opened.parts.values())) and not opened.loose:
        raise DataError(f"{opened.title} has no images")
    if target == "numbers" and any(each.target.kind != target for each in opened.parts.values()):
        raise DataError(f"{opened.title} has no columns of numbers: give a table, such as a .csv")
    return opened


def _open_annotated(request: Request) -> Opened:
    """Open images whose targets are places in them."""
    opener: Callable[[Request], Found] = load_object(ANNOTATED[request.target])
    found = opener(request)
    parts = {part.split or ALL: part.source for part in found.parts}
    return Opened(request.data, parts, notes=found.notes)


def _found(request: Request) -> Found:
    """Ask the openers."""
    if request.data == "":
        raise DataError("no data given: name digits, a folder of class folders, a Parquet file, …")
    what = request.data if isinstance(request.data, str | Path) else "images"
    for kind in OPENERS:
        with named_if_slow(f"reading {what}"):
            found = _ask_opener(kind, request)
        if found is None:
            continue
        if request.columns.class_folder != "auto" and kind not in OF_CLASS_FOLDERS:
            raise DataError(
                f"{request.data} has no class folders, so that class_folder means nothing: leave "
                "it out"
            )
        return found
    if is_url(request.data):
        raise DataError(
            f"{request.data}: over a network DATA is tar shards or Parquet files, whose names end "
            "in .tar or .parquet"
        )
    if request.path.exists():
        raise DataError(
            f"{request.data} is not a folder, a Parquet file, a .tar shard, or a .csv or .jsonl "
            "list"
        )
    check_data(request.data)
    raise DataError(f"no such file or folder: {request.data}")


def _named_by_several(request: Request) -> Found:
    """Open each of several names; what is in them is one part without labels."""
    if request.target == "label":
        raise UnlabeledError(
            f"{request.data} is a list of names without labels: give one DATA, or (path, label) "
            "pairs"
        )
    parts: list[Part] = []
    notes: list[str] = []
    for name in _runs(request.given):
        if isinstance(name, str):
            found = _found(replace(request, data=name, given=name, target="none"))
        else:
            found = Found([Part(named_files(name, request.data))])
        parts += found.parts
        notes += found.notes
    whole = concat([part.source.without_labels() for part in parts])
    return Found([Part(whole, lacks="names of several DATA")], notes)


def _runs(names: Sequence[str | Path]) -> Iterable[str | list[str]]:
    """Yield names, those of image files that follow each other as one list."""

    def is_file(name: str) -> bool:
        other = is_url(name) or any(sign in name for sign in PATTERN)
        return Path(name).suffix.lower() in SUFFIXES and not other

    for files, run in groupby(map(str, names), is_file):
        if files:
            yield list(run)
        else:
            yield from run


def _labeled(request: Request, found: Found) -> Opened:
    """Sort parts by split and by whether they have labels, and give them one class index."""
    bare = [part for part in found.parts if part.lacks]
    labeled = [part for part in found.parts if not part.lacks]
    notes = list(found.notes)
    if not labeled and request.target == "label":
        raise UnlabeledError(bare[0].lacks.removeprefix(NO_LABELS))
    unlabeled = dict[str, Images]()
    if labeled and bare and request.target == "label":
        notes += _lines_on_left_out(labeled, bare)
    elif labeled and bare:
        unlabeled = _group_unlabeled(bare)
    parts = _by_split(labeled or bare, request, notes)
    if request.columns.group_column and all(part.group is None for part in parts.values()):
        raise DataError(
            f"{request.data} has no columns, so that group_column means nothing: name a list or a "
            "table of the images"
        )
    if labeled:
        first = next(iter(parts.values()))
        order = request.classes or first.classes
        parts = {
            name: source.reindexed(order, f"{request.data} {name}".removesuffix(f" {ALL}"))
            for name, source in parts.items()
        }
    lacks = "" if labeled else bare[0].lacks
    return Opened(request.data, parts, unlabeled, lacks, notes)


def _group_unlabeled(bare: Sequence[Part]) -> dict[str, Images]:
    """Return images without a label by their split; in none, or another, they are `all`."""
    sources = dict[str, list[Images]]()
    for part in bare:
        sources.setdefault(SPLIT_OF.get(part.split.lower(), ALL), []).append(part.source)
    return {name: concat(own) for name, own in sources.items()}


def _lines_on_left_out(labeled: Sequence[Part], bare: Sequence[Part]) -> list[str]:
    """Return a line about the images without a label of each split, with the reason."""
    lines = list[str]()
    known = {part.split for part in labeled}
    for part in bare:
        split = f" of the {part.split} split" if part.split else ""
        whole = ", which has none with a label" if split and part.split not in known else ""
        lines.append(
            f"left out {len(part.source):,} images without a label{split}{whole}: "
            f"{part.lacks.removeprefix(NO_LABELS)}"
        )
    return lines


def _by_split(found: Sequence[Part], request: Request, notes: list[str]) -> dict[str, Images]:
    """Return parts by the name of their split; one split alone, whatever its name, is all."""
    sources: dict[str, list[Images]] = {}
    for part in found:
        split = SPLIT_OF.get(part.split.lower(), part.split)
        sources.setdefault(split, []).append(part.source)
    others = [name for name in sources if name not in SPLIT_WORDS]
    if others and "train" in sources and request.target == "label":
        notes.append(f"ignored what is not a split of {request.data}: {', '.join(others)}")
        sources = {name: own for name, own in sources.items() if name in SPLIT_WORDS}
    if "train" not in sources or len(sources) == 1:
        if len(sources) > 1 and request.target == "label":
            names = " and ".join(filter(None, sources))
            notes.append(f"{request.data} has {names}, but no train: taken together")
        every = [source for own in sources.values() for source in own]
        return {ALL: _joined(every, request)}
    return {
        name: _joined(sources[name], request) for name in (*SPLIT_WORDS, *others) if name in sources
    }


def _joined(sources: Sequence[Images], request: Request) -> Images:
    """Return the images of several sources under the classes of all of them."""
    if len(sources) == 1:
        return sources[0]
    order = tuple(dict.fromkeys(name for source in sources for name in source.classes))
    return concat([source.reindexed(order, request.data) for source in sources])
