"""The images of a list, whatever their labels."""

from pathlib import Path

from vitlab.data.labels import SingleLabels
from vitlab.data.settings import Columns
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.folders import Files
from vitlab.data.sources.listed.columns import SPLITS, find_paths, named
from vitlab.data.sources.listed.list_rows import read_rows
from vitlab.data.sources.listed.lists import Entry, check_files, check_inside, path_of, split_in


def listed_images(file: Path, known: Columns) -> dict[str, Files]:
    """Return the images that a list names, by the splits that its lines name.

    Args:
        file: the list
        known: what the user says of its columns

    Raises:
        DataError: no column of paths, an unknown split, or files that are missing or elsewhere.
    """
    names, rows = read_rows(file, known)
    column, places = find_paths(names, [row for _, row in rows], file, known)
    split = next(iter(named([name for name in names if name != column], SPLITS)), "")
    entries = [
        Entry(
            path_of(row, column, places, f"{file} line {number}"),
            "",
            str(row.get(split) or "").strip().lower(),
        )
        for number, row in rows
    ]
    check_files(entries, places, file)
    check_inside(entries, places, file, known)
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(split_in(entry, file), []).append(entry.path)
    return {
        name: Files(places.root, Names.of(paths), SingleLabels.blank(len(paths), 0), ())
        for name, paths in groups.items()
    }
