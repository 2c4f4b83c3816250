"""Lists of images: CSV or JSON Lines, with a path and its label or labels per line.

    path,label,split            {"path": "a.jpg", "label": "cat"}
    a.jpg,cat,train             {"path": "b.jpg", "labels": ["dog", "night"], "split": "test"}

Other names of columns, several columns of 0 and 1, and files without a first line of names are
recognized. Paths are relative to the list's folder, or to a folder in it. A column
`labels` holds any number of labels, in CSV separated by `|`; every image then has, or does not
have, each class. What cells mean is in `data/cells.py`.
"""

import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from vitlab.data.cells import usual_columns
from vitlab.data.decode.formats import SUFFIXES as IMAGES
from vitlab.data.label_cells import LABEL_COLUMNS
from vitlab.data.path_cells import PATH_COLUMNS, path_in, path_spellings
from vitlab.data.settings import Columns
from vitlab.data.sources.cell_table import CellTable, check_known_columns, open_rows
from vitlab.data.sources.folders import visible
from vitlab.data.sources.image_files import image_paths
from vitlab.data.sources.paths import Inside, read_text, some
from vitlab.data.sources.request import Found, Part, Request
from vitlab.data.sources.urls import is_url
from vitlab.data.split_cells import FOLD_COLUMNS, SPLIT_COLUMNS
from vitlab.data.split_words import SPLIT_OF
from vitlab.errors import DataError

SUFFIXES = {".csv", ".tsv", ".jsonl", ".ndjson"}
LINES_OF_JSON = {".jsonl", ".ndjson"}
METADATA = ("metadata.csv", "metadata.jsonl")  # in a folder of images, as Hugging Face has it
HEAD = 65_536  # bytes of a first line
DELIMITERS = ",;\t"
LARGEST = 2**30  # bytes of a list: more than ten million lines
SAMPLE = 20  # rows whose images are looked for
BY_NAME = "by their last names alone"

Row = dict[str, Any]


def open_list(request: Request) -> Found | None:
    """Open a list of paths, or folders of splits with a list each; None for other data."""
    files = _list_files(request.path)
    if not files:
        return _open_split_lists(request)
    file = files[0]
    table = read_list(file, request.columns)
    found, places = open_path_rows(table, file, request)
    ignored = [f"ignored {other}: {file.name} is the list of that folder" for other in files[1:]]
    return Found(found.parts, [*ignored, *_place_notes(places, file), *found.notes])


def open_path_rows(table: CellTable, file: Path, request: Request) -> tuple[Found, "Places"]:
    """Return the images of a table that names files, and where these are.

    Args:
        table: the cells
        file: the list, or a place in the folder that paths are relative to
        request: what is wanted

    Raises:
        DataError: no column of paths, missing files, or files elsewhere.
    """
    column, places = find_images(table, file, request.columns)
    paths, notes = read_paths(table, column, places, file, request.columns)
    found = open_rows(table, column, image_paths(paths, places.root), request)
    return Found(found.parts, [*notes, *found.notes]), places


def _open_split_lists(request: Request) -> Found | None:
    """Open folders of splits with a metadata list each, as Hugging Face has them."""
    root = request.path
    folders = {each: SPLIT_OF[each.name.lower()] for each in visible(root)
               if each.name.lower() in SPLIT_OF} if root.is_dir() else {}  # fmt: skip
    listed = [folder for folder in folders if _list_files(folder)]
    if not listed:
        return None
    parts = list[Part]()
    notes = list[str]()
    for folder in listed:
        known = replace(request.columns, split_column="none")
        one = replace(request, data=str(folder), given=str(folder), columns=known)
        found = open_list(one) or Found([])
        parts += [replace(part, split=folders[folder]) for part in found.parts]
        notes += found.notes
    others = [folder for folder in folders if folder not in listed]
    notes += [f"ignored {folder}: it has no list as {listed[0]} has" for folder in others]
    return Found(parts, notes)


# Files


def read_list(file: Path, known: Columns) -> CellTable:
    """Return the cells of a list.

    Raises:
        DataError: the file, or a line of it, cannot be read.
    """
    text = read_text(file, LARGEST).replace("\r\n", "\n").replace("\r", "\n")
    if file.suffix.lower() in LINES_OF_JSON:
        table = _read_json_lines(text, file)
    else:
        table = _read_csv(text, file, known)
    if not table.columns:
        raise DataError(f"{file} lists no images")
    return table


def _read_csv(text: str, file: Path, known: Columns) -> CellTable:
    """Return the cells of a text whose fields a comma, a semicolon or a tab separates.

    A first line that names an existing image is no line of column names; columns then have the
    names 1, 2, … Columns without a name (the index that pandas writes) are left out, and lines of
    empty fields (a spreadsheet's last ones).
    """
    first = text.partition("\n")[0]
    skipped = 0
    if first.lower().startswith("sep=") and len(first.strip()) == 5:  # Excel's own line
        delimiter = first.strip()[4]
        text = text.partition("\n")[2]
        skipped = 1
    else:
        delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    try:
        lines = [(reader.line_num + skipped, fields) for fields in reader if any(fields)]
    except csv.Error as error:
        raise DataError(f"cannot read {file}: {error}") from None
    if not lines:
        raise DataError(f"{file} lists no images")
    head = [cell.strip() for cell in lines[0][1]]
    check_known_columns(head, file, ())
    if _is_header(head, file, known):
        del lines[0]
    else:
        head = [str(number) for number in range(1, len(head) + 1)]
    named = max(number for number, name in enumerate(head, 1) if name) if any(head) else 0
    head = head[:named]
    lines = [(number, _without_empty_end(fields, named)) for number, fields in lines]
    places = [number for number, name in enumerate(head) if name]
    names = [head[number] for number in places]
    if len(set(names)) < len(names):
        raise DataError(f"{file} has two columns of the same name: {','.join(names)[:80]!r}")
    for number, fields in lines:
        if len(fields) != len(head):
            raise DataError(
                f"{file} line {number}: the number of fields differs from the first line"
            )
    if not lines:
        raise DataError(f"{file} lists no images")
    columns = {name: [fields[place] for _, fields in lines] for name, place in
               zip(names, places, strict=True)}  # fmt: skip
    return CellTable(
        str(file), names, columns.__getitem__, lambda row: f"line {lines[row][0]}", is_csv=True
    )


def _without_empty_end(fields: list[str], named: int) -> list[str]:
    """Return the fields of a line without the empty ones beyond the columns with a name.

    Excel writes such fields in some of the lines and not in others.
    """
    return fields if any(fields[named:]) else fields[:named]


def _is_header(head: Sequence[str], file: Path, known: Columns) -> bool:
    """Return whether a first line has names of columns, rather than an image and its label."""
    usual = (*PATH_COLUMNS, *LABEL_COLUMNS, *SPLIT_COLUMNS, *FOLD_COLUMNS)
    if usual_columns(head, usual) or {known.path_column, *known.label_column} & {*head} - {""}:
        return True
    nearby = Nearby(file, known)
    return not any(nearby.find(path) for path in map(path_in, head) if path)


def _read_json_lines(text: str, file: Path) -> CellTable:
    """Return the cells of a text with a JSON object in each line."""
    rows = list(_json_objects(text, file))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    return CellTable(
        str(file),
        names,
        lambda name: [row.get(name) for _, row in rows],
        lambda row: f"line {rows[row][0]}",
    )


def _json_objects(text: str, file: Path) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # Python converts no more digits than 4,300
            row = None
        if not isinstance(row, dict):
            raise DataError(f'{file} line {number} is not a JSON object like {{"path": …}}')
        yield number, row


def _list_files(path: Path) -> list[Path]:
    """Return the list that a user names, or those in a folder of images; none of other data."""
    if not path.is_dir():
        return [path] if path.is_file() and path.suffix.lower() in SUFFIXES else []
    found = list[Path]()
    for file in (path / name for name in METADATA):
        if file.is_file():  # not a pipe, which would be waited for
            with file.open("rb") as stream:
                if b"file_name" in stream.readline(HEAD):  # else it is notes on something else
                    found.append(file)
    return found


# Images


@dataclass(frozen=True)
class Places:
    """The place of a list's images.

    Attributes:
        root: the folder that the paths are relative to
        ending: what the list leaves out of every path
        by_name: whether a file may be found by its last name alone: in a folder that the user names
    """

    root: Path
    ending: str = ""
    by_name: bool = False

    def find(self, path: str) -> tuple[str, str]:
        """Return the path of a file, and how it was read if not as written; empty if none is there.

        Args:
            path: as in `data.path_cells.path_in`
        """
        for spelling, how in path_spellings(path, self.root.name) if path else ():
            if os.path.isfile(self.root / (spelling + self.ending)):  # noqa: PTH113  however long
                return spelling + self.ending, how
        if not self.by_name or not path:
            return "", ""
        there = PurePosixPath(path.strip().strip("\"'").replace("\\", "/"))
        elsewhere = not os.path.isdir(self.root / there.parent) or there.is_absolute()  # noqa: PTH112
        if elsewhere and os.path.isfile(self.root / (there.name + self.ending)):  # noqa: PTH113
            return there.name + self.ending, BY_NAME
        return "", ""

    def has(self, path: str) -> bool:
        """Return whether a path, in some spelling, is that of a file."""
        return bool(self.find(path)[0])


class Nearby:
    """The names in a list's folder and in the folders there, each listed once.

    Attributes:
        roots: the folders, the list's own first; or the one that the user names
    """

    def __init__(self, file: Path, known: Columns) -> None:
        """List nothing yet.

        Raises:
            DataError: the folder that the user names does not exist.
        """
        if known.images:
            root = Path(known.images).expanduser()
            if not root.is_dir():
                raise DataError(f"--images {known.images}: no such folder")
            self.roots = [root]
        else:
            self.roots = [file.parent, *visible(file.parent)]
        self.by_name = bool(known.images)
        self._places: dict[str, list[Places]] | None = None

    def find(self, path: str) -> list[Places]:
        """Return the places that may have a path, or one of its spellings, the likeliest first."""
        if self._places is None:
            self._places = self._list()
        found: dict[Places, None] = {}
        for spelling, _ in path_spellings(path, self.roots[0].name):
            first, *rest = spelling.removeprefix("./").split("/")
            places = self._places.get(first, [])
            whole = [*places]
            if rest and any(not each.ending for each in places):  # in a folder, with any ending
                roots = dict.fromkeys(each.root for each in places)
                endings = sorted(IMAGES)
                whole += [Places(root, each, self.by_name) for root in roots for each in endings]
            found |= dict.fromkeys(each for each in whole if each.has(path))
        return [*found]

    def _list(self) -> dict[str, list[Places]]:
        """Return where each name is, with its ending and without."""
        places = defaultdict[str, list[Places]](list)
        for root in self.roots:
            for name in sorted(os.listdir(root)):  # noqa: PTH208  names alone
                places[name].append(Places(root, "", self.by_name))
                stem, dot, ending = name.rpartition(".")
                if stem and f"{dot}{ending.lower()}" in IMAGES:
                    places[stem].append(Places(root, f"{dot}{ending}", self.by_name))
        return places


def find_images(table: CellTable, file: Path, known: Columns) -> tuple[str, Places]:
    """Return the column of the paths, and the place that has those of the first rows.

    Raises:
        DataError: an unknown column, none that can be the one of the paths, or two places of them.
    """
    check_known_columns(table.columns, file, (known.path_column,))
    usual = usual_columns(table.columns, PATH_COLUMNS)
    columns = [known.path_column] if known.path_column else [*usual, *table.columns]
    nearby = Nearby(file, known)
    heads = {name: _first_paths(table.cells(name)) for name in dict.fromkeys(columns)}
    plain = Places(nearby.roots[0], "", nearby.by_name)
    for name in [name for name in columns if heads[name]][: len(usual) or 1]:
        if all(map(plain.has, heads[name])):
            return name, plain
    counts = {name: _count_places(nearby, heads[name]) for name in heads}
    for share in (1.0, 0.0):  # all of the first rows, or any: the missing ones are reported
        for name, own in counts.items():
            least = max(1, round(share * len(heads[name])))
            if places := [place for place, count in own.items() if count >= least]:
                return name, _only_place(places, nearby.roots[0], file)
    if known.path_column or usual:
        return columns[0], plain
    raise DataError(
        f"{file} has no column of paths among {', '.join(table.columns)[:200]}: name it with "
        "--path-column, and the folder of the images with --images"
    )


def _first_paths(cells: Sequence[Any]) -> list[str]:
    """Return the paths in the first rows; none if one of them has no path."""
    paths = [path_in(cells[row]) for row in range(min(SAMPLE, len(cells)))]
    return paths if all(paths) else []


def _count_places(nearby: Nearby, paths: Sequence[str]) -> dict[Places, int]:
    """Return how many of some paths each place has."""
    counts = dict[Places, int]()
    for path in paths:
        for place in nearby.find(path):
            counts[place] = counts.get(place, 0) + 1
    return counts


def _only_place(places: Sequence[Places], first: Path, file: Path) -> Places:
    """Return the place of a list's images: its own folder, or the only other one.

    Raises:
        DataError: two folders have them.
    """
    ordered = sorted(places, key=lambda each: (each.root != first, bool(each.ending)))
    best = ordered[0]
    roots = {each.root for each in places if bool(each.ending) == bool(best.ending)}
    if best.root != first and len(roots) > 1:
        names = " and ".join(sorted(map(str, roots))[:2])
        raise DataError(f"the images of {file} are in {names}: name one with --images")
    return best


def read_paths(
    table: CellTable, column: str, places: Places, file: Path, known: Columns
) -> tuple[list[str], list[str]]:
    """Return the path of each row, and lines on how they were read.

    Missing files are refused, and those outside of the images' folder: lists are other people's.

    Raises:
        DataError: a row without a path, or the first of the others.
    """
    written = [path_in(cell) for cell in table.cells(column)]
    if "" in written:
        raise DataError(f"{file} {table.place(written.index(''))} has no path")
    found = [places.find(path) for path in written]
    missing = [path for path, (is_there, _) in zip(written, found, strict=True) if not is_there]
    if missing and is_url(missing[0]):
        raise DataError(
            f"{file} names images on another machine, such as {missing[0][:200]}: download them"
        )
    if missing:
        shown = some([path + places.ending for path in missing])
        raise DataError(
            f"{len(missing):,} of the {len(found):,} files listed in {file} do not exist: "
            f"{shown} (paths are relative to {places.root}; --images names another folder)"
        )
    _check_names(dict(zip(written, found, strict=True)), file)
    root = Path(known.images).expanduser() if known.images else file.parent
    inside = Inside((root,), known.allow_outside)
    for path, _ in found:
        if not inside.holds(places.root / path):
            raise DataError(
                f"{file} names {path}, which is outside of {root}: name the folder "
                "of the images with --images, or pass --allow-outside if you trust the list"
            )
    ways = [how for _, how in found if how]
    notes = [
        f"{ways.count(how):,} of the {len(found):,} paths in {file} are read {how}"
        for how in dict.fromkeys(ways)
    ]
    return [path for path, _ in found], notes


def _check_names(found: dict[str, tuple[str, str]], file: Path) -> None:
    """Refuse several paths whose last names alone are those of one file.

    Raises:
        DataError: the first of them; their folders tell them apart.
    """
    owners = dict[str, str]()
    for written, (path, how) in found.items():
        if how == BY_NAME and (before := owners.setdefault(path, written)) != written:
            raise DataError(
                f"{file} names {before} and {written}, and only {path} is there: name with "
                "--images the folder that has their folders"
            )


def _place_notes(places: Places, file: Path) -> list[str]:
    """A line about where the images of a list were found, if not beside it."""
    if places.root == file.parent and not places.ending:
        return []
    ending = f", whose endings {places.ending} it leaves out" if places.ending else ""
    return [f"the images of {file} are in {places.root}{ending}"]
