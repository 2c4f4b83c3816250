"""Recorded paths: what a run, a delta or a table was made from, found again where either was moved.

A file records a path as it was typed (`source`) and as seen from its own folder (`nearby`), beside
the fingerprint of what is there. Whoever reads it tries these, then the last name beside the
folder, and takes the first one whose fingerprint agrees. What is handed out has neither folders of
this machine nor names of its users: `strip_places`.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

from vitlab.documents import read_toml
from vitlab.errors import RunError, UserError
from vitlab.files import follow_links

RUN_FILE = "run.toml"
LARGEST = 2 * 2**20  # bytes of it
LEVELS = 4  # folders above the recording one, in which a relative path may have been typed
PATTERN = re.compile(r"[*?\[{]")  # begins a glob or a brace range
PREFIX = re.compile(r"vtab(?:-search)?:|file://")  # before a path
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://")  # begins one: of something on another machine
Item = TypeVar("Item")
Content = TypeVar("Content")


def seen_from(folder: Path, source: str) -> str | None:
    """Return a path relative to a folder; None if nothing is there.

    Args:
        folder: of the file that records it, which need not exist yet
        source: as it was typed; a pattern of files is there if its folder is
    """
    _, path = _split_prefix(source)
    if not is_there(path):
        return None
    return os.path.relpath(_make_absolute(path), follow_links(folder))


def places(source: str, nearby: str | None, folder: Path, beside: Path) -> list[str]:
    """Return where a recorded path leads now: what exists, each place once, the likeliest first.

    An address is no path, and leads to none.

    Args:
        source: as it was typed
        nearby: as seen from the folder, if it is known
        folder: of the file that records it
        beside: where the last name alone is tried
    """
    prefix, path = _split_prefix(source)
    if not path or ADDRESS.match(path):
        return []
    here = folder.absolute()
    tried = [] if nearby is None else [str(follow_links(folder) / nearby)]
    tried.append(path)
    if not Path(path).is_absolute():
        tried += (str(each / path) for each in (here, *list(here.parents)[:LEVELS]))
    tried.append(str(beside / PurePosixPath(path).name))
    found = dict[Path, str]()
    for each in filter(is_there, tried):
        found.setdefault(follow_links(each), str(_make_absolute(each)))
    if is_there(path):
        found[follow_links(path)] = path  # as the user knows it
    return [prefix + each for each in found.values()]


def is_same_place(one: str, other: str) -> bool:
    """Return whether two texts lead to the same file or folder, or say the same."""
    mine = _split_prefix(one)
    theirs = _split_prefix(other)
    if mine[0] != theirs[0]:
        return False
    if is_there(mine[1]) and is_there(theirs[1]):
        return follow_links(mine[1]) == follow_links(theirs[1])
    return mine[1].rstrip("/") == theirs[1].rstrip("/")


def is_there(path: str) -> bool:
    """Return whether a file or folder exists, or the folder that a pattern begins with."""
    if not path or os.path.lexists(path):  # False for what no disk can hold
        return bool(path)
    parts = Path(path).parts
    fixed = next((n for n, part in enumerate(parts) if PATTERN.search(part)), 0)
    return bool(fixed) and os.path.isdir(Path(*parts[:fixed]))  # noqa: PTH112 - any text


def read_agreeing(
    items: Iterable[Item], read: Callable[[Item], Content], agrees: Callable[[Content], bool]
) -> tuple[Content, bool]:
    """Return what is read of the first item that agrees, else of the first readable one, and which.

    A fingerprint takes a pass over all that it is of: it is asked for once an item.

    Args:
        items: such as places, at least one
        read: raises a UserError for what cannot be read
        agrees: whether its fingerprint is the recorded one

    Returns:
        The content, and whether it agrees.

    Raises:
        UserError: none can be read: what `read` raised for the first one.
    """
    others = list[Content]()
    problems = list[UserError]()
    for each in items:
        try:
            content = read(each)
        except UserError as error:
            problems.append(error)
            continue
        if agrees(content):
            return content, True
        others = others or [content]
    if others:
        return others[0], False
    raise problems[0]


def base_of_run(folder: Path) -> tuple[str, list[str]]:
    """Return the weights that a run started from, as they were typed, and where they may be now.

    Args:
        folder: with `run.toml`; of any other one nothing is known
    """
    try:
        tables = read_toml(folder / RUN_FILE, RunError, LARGEST)
    except RunError:
        return "", []
    start = tables.get("start")
    nearby = tables.get("nearby", {})
    if not isinstance(start, dict) or not isinstance(nearby, dict):
        return "", []
    source = start.get("weights", "")
    near = nearby.get("weights")
    if not isinstance(source, str) or not isinstance(near, str | None):
        return "", []
    return source, places(source, near, folder, folder.absolute().parent)


def run_of(source: str) -> Path | None:
    """Return the folder of the run that a model was loaded from; None if it was from elsewhere."""
    path = Path(source)
    return next((each for each in (path, path.parent) if (each / RUN_FILE).is_file()), None)


# What is handed out


def strip_places(value: Any) -> Any:
    """Return what JSON can hold with the last name of each path of this machine in its place."""
    if isinstance(value, dict):
        return {key: strip_places(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strip_places(each) for each in value]
    return last_name(value) if isinstance(value, str) else value


def last_name(text: str) -> str:
    """Return the last name of a path with folders of this machine; any other text as it is.

    Those are absolute paths, of any system, and those that begin in a home or lead upwards. An
    address loses what may be a password.
    """
    prefix, path = _split_prefix(text, expand=False)
    if ADDRESS.match(path):
        return re.sub(r"(?<=://)[^/@\s]*@|[?#].*", "", path, flags=re.S)
    windows = PureWindowsPath(path)
    if windows.drive and windows.root:
        return prefix.replace("file://", "") + windows.name
    pure = PurePosixPath(path)
    if not (pure.is_absolute() or path.startswith("~") or ".." in pure.parts):
        return text
    name = (
        pure.name
        if pure.name not in ("", "..", "~")
        else follow_links(Path(path).expanduser()).name
    )
    return prefix.replace("file://", "") + name


def seen_by_others(folder: Path, source: str) -> str | None:
    """Return a path relative to a folder, as `seen_from`, if that names no user and no scratch.

    Where they have only the root, the homes or the folder of temporary files in common, such a
    path would spell out where on this machine it lies.
    """
    nearby = seen_from(folder, source)
    if nearby is None:
        return None
    shared = Path(
        os.path.commonpath([follow_links(folder), _make_absolute(_split_prefix(source)[1])])
    )
    homes = follow_links(Path.home()).parent
    telling = (follow_links(tempfile.gettempdir()), homes, *homes.parents)
    return None if shared in telling or shared == Path(shared.anchor) else nearby


def _split_prefix(source: str, expand: bool = True) -> tuple[str, str]:
    """What stands before a path, and the path."""
    match = PREFIX.match(source)
    prefix = match[0] if match else ""
    path = source[len(prefix) :]
    if expand and path.startswith("~"):
        with suppress(RuntimeError):  # of no user
            path = str(Path(path).expanduser())
    return prefix, path


def _make_absolute(path: str) -> Path:
    """An absolute path; a link at its end stays, whose name may say what the file is."""
    pure = Path(path)
    return follow_links(pure) if pure.name in ("", "..") else follow_links(pure.parent) / pure.name
