"""Local and remote files: a path, or a URL that fsspec supports (http, s3, hf, …)."""

import glob
import itertools
import os
import re
from pathlib import Path
from typing import Any

from vitlab.errors import DataError, PackageError

_PACKAGES = {
    "http": "aiohttp requests",
    "https": "aiohttp requests",
    "s3": "s3fs",
    "gs": "gcsfs",
    "az": "adlfs",
}
_MOST = 100_000  # names that one brace pattern may expand to


def is_url(place: str) -> bool:
    """Return whether a place has a protocol, as `s3://bucket/key`; never a command."""
    return re.match(r"[a-z][a-z0-9+.-]*://", place) is not None


def filesystem(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it.

    Raises:
        DataError: an unknown protocol.
        PackageError: a package that the protocol needs is not installed.
    """
    import fsspec

    protocol = url.split("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        package = _PACKAGES.get(protocol)
        hint = f"pip install {package}" if package else str(error)
        raise PackageError(f"{url}: {protocol}:// needs another package: {hint}") from None
    except ValueError as error:
        raise DataError(f"{url}: {error}") from None


def read_part(place: str, offset: int, size: int) -> bytes:
    """Read some bytes of a local or remote file; nothing stays open, so processes may be forked."""
    if is_url(place):
        system, path = filesystem(place)
        return bytes(system.cat_file(path, start=offset, end=offset + size))
    with Path(place).open("rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)


def reason(error: Exception) -> str:
    """Return in a few words why a file could not be read."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):  # remote file systems give only the name
        text = "no such file"
    return " ".join(str(text).split())[:200]


def expand(pattern: str) -> list[str]:
    """Return the files that a path, a glob or a brace pattern stands for, in order.

    `{000..031}` counts with leading zeros, `{a,b}` lists. Files that a glob finds are sorted; files
    that braces spell out are checked when they are opened.

    Raises:
        DataError: a glob that finds nothing, or braces that expand to too many names.
    """
    places: list[str] = []
    for each in braces(pattern):
        if not any(sign in each for sign in "*?["):
            places.append(each)
        elif is_url(each):
            system, path = filesystem(each)
            places += [system.unstrip_protocol(found) for found in sorted(system.glob(path))]
        else:
            places += sorted(glob.glob(str(Path(each).expanduser()), recursive=True))  # noqa: PTH207
    if not places:
        raise DataError(f"no such file: {pattern}")
    return places


def braces(pattern: str) -> list[str]:
    """Return what a brace pattern expands to, from left to right; itself if it has no braces."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[part] if place % 2 == 0 else _choices(part) for place, part in enumerate(parts)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MOST:
        raise DataError(f"{pattern} expands to {count:,} files; at most {_MOST:,} are allowed")
    return ["".join(words) for words in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    ends = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inside)
    if ends is None:
        return inside.split(",") if "," in inside else ["{" + inside + "}"]
    first, last = int(ends[1]), int(ends[2])
    if (count := abs(last - first) + 1) > _MOST:
        raise DataError(f"{{{inside}}} expands to {count:,} files; at most {_MOST:,} are allowed")
    wide = len(ends[1]) if ends[1].startswith("0") or len(ends[1]) == len(ends[2]) else 0
    step = 1 if last >= first else -1
    return [f"{number:0{wide}d}" for number in range(first, last + step, step)]
