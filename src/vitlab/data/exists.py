"""Existence of what a user names as data, checked before anything is imported.

Nothing here imports PyTorch, so that the command line answers a mistyped path at once. What is
there is opened, and checked in full, by `open_images`.
"""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from vitlab.data.sources.urls import is_url
from vitlab.errors import DataError, SourceError
from vitlab.hub import OFFLINE, SilentError, check_answers, is_cached, is_offline
from vitlab.packages import check_installed
from vitlab.places import exists

IN_MEMORY = "in memory"
"""What a recipe calls data in memory."""

SCENES = "digit-scenes"  # embedded, with boxes

STDIN = "-"  # a list of paths on standard input
OF_FILES = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".csv", ".tsv", ".jsonl", ".ndjson",
            ".parquet", ".tar", ".zip", ".tgz", ".gz", ".7z", ".rar", ".json", ".xlsx")  # fmt: skip
PATTERN = "*?[{"  # signs of a glob or a brace range


def is_hub_data(name: str) -> bool:
    """Return whether a name may be that of a data set on the Hugging Face Hub, `user/name`."""
    path = Path(name)
    local = path.suffix.lower() in OF_FILES or path.parent.is_dir()
    return not local and re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name) is not None


def is_built_in(name: str) -> bool:
    """Return whether a name is of data that is made here, not a path."""
    return name in ("", STDIN, "digits", "digit-scenes")


def check_each(names: Iterable[str]) -> None:
    """Refuse the first of several names that cannot exist, as `check_data` does."""
    for name in names:
        check_data(name)


def check_data(data: str) -> None:
    """Refuse DATA that cannot exist: no file or folder, and not the name of something else.

    Raises:
        DataError: no such file or folder.
        SourceError: it may be a data set on the Hub, which gives no answer.
        PackageError: Parquet files, or a name on the Hub, without the package that reads them.
    """
    if is_built_in(data) or is_url(data) or data.startswith(("vtab:", "vtab-search:")):
        return
    if data == IN_MEMORY and not exists(data):
        raise DataError("these images were in memory: give them again in Python, with data=…")
    named = exists(data) or any(sign in data for sign in PATTERN)
    near = "" if named else nearest_beside(data)
    if not named and (near or not is_hub_data(data)):
        hint = f"; did you mean {near}?" if near else ""
        raise DataError(f"no such file or folder: {data}{hint}")
    if data.endswith(".parquet"):
        check_installed("pyarrow", data)
    elif not named:
        check_installed("datasets", f"{data}, not a file or folder but perhaps a name on the Hub,")
        if not is_cached("datasets", data):
            check_hub_data(data)


def check_hub_data(name: str) -> None:
    """Refuse a name that may be on the Hub, if the Hub does not answer; it is asked once.

    Raises:
        SourceError: no answer.
        DataError: HF_HUB_OFFLINE is set.
    """
    if is_offline():
        raise DataError(f"no such file or folder: {name}; nor is it in the local cache: {OFFLINE}")
    try:
        check_answers()
    except SilentError as error:
        raise SourceError(
            f"no such file or folder: {name}; nor does the Hub answer, where it may be a data set "
            f"({error})"
        ) from error


def nearest_beside(place: str) -> str:
    """Return the path of the most similar name in the folder of a missing one; empty if none is."""
    path = Path(place)
    try:
        beside = sorted(each.name for each in path.parent.iterdir())
    except (OSError, ValueError):  # no such folder, or no path at all
        return ""
    near = difflib.get_close_matches(path.name, beside, n=1)
    return str(path.parent / near[0]) if near else ""
