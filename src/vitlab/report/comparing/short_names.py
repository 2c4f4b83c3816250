"""Short names of compared runs and recipes: where they lie, without what all of them share."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

SHORT = 16  # characters of a name that need not be shortened within
NUMBERED = re.compile(r"(^|[-_. ])(seed|fold)[-_ ]?\d+(-?of-?\d+)?$", re.IGNORECASE)
Parts = tuple[str, ...]


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return a name for each run that no other one has."""
    return _shorten([path.resolve().parts for path in paths])


def recipe_names(recipes: Sequence[Sequence[Path]]) -> list[str]:
    """Return a name for each recipe that no other one has: where all of its runs lie.

    Where that does not tell recipes apart, their first runs do.

    Args:
        recipes: the folders of the runs of each
    """
    own = [[path.resolve().parts for path in paths] for paths in recipes]
    places = [_place(parts) for parts in own]
    count = Counter(places)
    around = {place[:length] for place in places for length in range(len(place))}
    return _shorten(
        [
            parts[0] if count[place] > 1 or place in around else place
            for place, parts in zip(places, own, strict=True)
        ]
    )


def _place(paths: Sequence[Parts]) -> Parts:
    """Return what the places of a recipe's runs have in common, without seed and fold."""
    stems = [_without_number(path) for path in paths]
    alike = _common_start(stems)
    rest = [stem[len(alike) :] for stem in stems]
    words = [_words(each[0]) for each in rest if each]
    start = "".join(_common_start(words)).rstrip("-_. ") if len(words) == len(rest) else ""
    return (*alike, *[start] * bool(start))


def _without_number(path: Parts) -> Parts:
    last = NUMBERED.sub("", path[-1])
    return (*path[:-1], *[last] * bool(last))


def _words(name: str) -> Parts:
    """Return the words of a name, each with the mark after it."""
    return tuple(re.findall(r"[^-_ ]+[-_ ]*|[-_ ]+", name))


def _common_start(rows: Sequence[Parts]) -> Parts:
    """Return what all rows begin with."""
    length = 0
    while all(len(row) > length for row in rows) and len({row[length] for row in rows}) == 1:
        length += 1
    return rows[0][:length]


def _shorten(paths: Sequence[Parts]) -> list[str]:
    """Return as many last parts as it takes to tell all apart, without what all of them share.

    Long names lose such words, too.
    """
    length = 1
    while len({path[-length:] for path in paths}) < len(paths) and length < max(map(len, paths)):
        length += 1
    names = ["/".join(each) for each in _middles([path[-length:] for path in paths])]
    if max(map(len, names)) > SHORT:
        words = _middles([*map(_words, names)], numbered=True)
        shorter = ["".join(each).strip("-_ ") for each in words]
        if all(shorter) and len(set(shorter)) == len(names):
            return shorter
    return names


def _middles(rows: Sequence[Parts], *, numbered: bool = False) -> list[Parts]:
    """Return rows without what all begin and end with; something is left of each.

    Where they go on with numbers, the word before these may be left, too: `lr-0.001`.
    """
    if len(rows) < 2:
        return [row[-1:] for row in rows]
    least = min(map(len, rows)) - 1
    start = min(len(_common_start(rows)), least)
    if numbered and start and all(row[start][0].isdigit() for row in rows):
        start -= 1
    rest = [row[start:] for row in rows]
    end = min(len(_common_start([row[::-1] for row in rest])), min(map(len, rest)) - 1)
    return [row[: len(row) - end] for row in rest]
