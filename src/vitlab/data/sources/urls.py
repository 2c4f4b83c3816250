"""Places with a protocol, such as s3://bucket/key, and patterns of names in braces."""

import itertools
import math
import re

from vitlab.errors import DataError

MOST_NAMES = 100_000  # that one brace pattern may expand to


def is_url(place: str) -> bool:
    """Return whether a place has a protocol, as `s3://bucket/key`; never a command."""
    return re.match(r"[a-z][a-z0-9+.-]*://", place) is not None


def braces(pattern: str) -> list[str]:
    """Expand a brace pattern, from left to right; without braces it stays as it is."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [[part] if place % 2 == 0 else _choices(part) for place, part in enumerate(parts)]
    if math.prod(map(len, choices)) > MOST_NAMES:
        raise DataError(f"{pattern} expands to more than {MOST_NAMES:,} files, too many")
    return ["".join(words) for words in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    """Expand a pair of braces, up to one name more than is allowed."""
    ends = re.fullmatch(r"(\d{1,9})\.\.(\d{1,9})", inside)
    if ends is None:
        return inside.split(",") if "," in inside else ["{" + inside + "}"]
    first = int(ends[1])
    last = int(ends[2])
    wide = len(ends[1]) if ends[1].startswith("0") else 0
    return [f"{number:0{wide}d}" for number in range(first, last + 1)[: MOST_NAMES + 1]]
