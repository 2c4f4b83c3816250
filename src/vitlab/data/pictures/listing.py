"""The image files that a user names: files, folders, glob patterns, lists, standard input."""

import glob
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from vitlab.data.decode.formats import unread_lines
from vitlab.data.presence import STDIN
from vitlab.data.settings import Columns
from vitlab.data.sources.folders import names_below
from vitlab.data.sources.listed.lists import SUFFIXES, paths_in
from vitlab.errors import DataError


def listed_images(names: Sequence[str], known: Columns) -> list[str]:
    """Return what the user names, with the paths of lists in the place of the lists.

    Args:
        names: files, folders, glob patterns, lists, or `-` for paths on standard input
        known: what the user says of the columns of lists

    Raises:
        DataError: a list that cannot be read, or names files that are missing or elsewhere.
    """
    found: list[str] = []
    for name in names:
        path = Path(name).expanduser()
        if name == STDIN:
            paths = [line.rstrip("\r\n") for line in sys.stdin]
            found += [each for each in paths if each.strip()]
        elif path.suffix.lower() in SUFFIXES and path.is_file():
            found += paths_in(path, known)
        else:
            found.append(name)
    if not found:
        raise DataError("no images given: the list is empty")
    return found


def find_images(patterns: Sequence[str]) -> list[str]:
    """Return every image that files, folders and glob patterns name, in that order.

    Raises:
        DataError: one of them names nothing.
    """
    found: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_file():
            matches = [str(path)]
        elif path.is_dir():
            names, others = names_below(path)
            root = "" if path == Path() else f"{str(path).rstrip('/')}/"
            matches = [root + name for name in names]
            for line in unread_lines(pattern, others):
                logging.getLogger("vitlab").warning(line)
        else:
            matches = sorted(p for p in glob.glob(str(path), recursive=True) if Path(p).is_file())  # noqa: PTH207
        if not matches:
            raise DataError(
                f"no images in {pattern}" if path.is_dir() else f"no such file: {pattern}"
            )
        found += matches
    return found
