"""Files here and elsewhere: a path, or a URL that fsspec understands (http, s3, hf, …)."""

import glob
import itertools
import re
from pathlib import Path
from typing import Any

from vitlab.errors import UserError

_MANY = 100_000  # names that one brace pattern may stand for


def is_url(place: str) -> bool:
    """Whether a place is named by protocol, as `s3://bucket/key`; never a command."""
    return re.match(r"[a-z][a-z0-9+.-]*://", place) is not None


def filesystem(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it.

    Raises:
        ValueError: an unknown protocol, or a package that it needs and that is not installed.
    """
    import fsspec

    protocol = url.split("://")[0]
    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        needs = {
            "http": "aiohttp requests",
            "https": "aiohttp requests",
            "s3": "s3fs",
            "gs": "gcsfs",
            "az": "adlfs",
        }
        package = needs.get(protocol)
        hint = f"pip install {package}" if package else str(error)
        raise UserError(f"{url}: reading {protocol}:// takes another package: {hint}") from None
    except ValueError as error:
        raise UserError(f"{url}: {error}") from None


def expand(pattern: str) -> list[str]:
    """The files that a path, a glob or a brace pattern stands for, in order.

    `{000..031}` counts with leading zeros, `{a,b}` lists. What a glob finds is sorted; what braces
    spell out must exist and is checked when it is opened.
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
        raise UserError(f"no such file: {pattern}")
    return places


def braces(pattern: str) -> list[str]:
    """What a brace pattern spells out, from left to right; itself where it has no braces."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[part] if place % 2 == 0 else _choices(part) for place, part in enumerate(parts)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MANY:
        raise UserError(f"{pattern} stands for {count:,} files; {_MANY:,} are allowed")
    return ["".join(words) for words in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    ends = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inside)
    if ends is None:
        return inside.split(",") if "," in inside else ["{" + inside + "}"]
    first, last = int(ends[1]), int(ends[2])
    if abs(last - first) >= _MANY:
        raise UserError(f"{{{inside}}} stands for {abs(last - first) + 1:,} files")
    wide = len(ends[1]) if ends[1].startswith("0") or len(ends[1]) == len(ends[2]) else 0
    step = 1 if last >= first else -1
    return [f"{number:0{wide}d}" for number in range(first, last + step, step)]
