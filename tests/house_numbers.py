"""The numbers of the house, each of which may only fall: what the meters say, and `house.toml`.

usage: python tests/house_numbers.py      writes what is measured, where that is lower
"""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import closures
import diction
import patches

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "vitlab"
FILE = TESTS / "house.toml"
HEAD = """\
# The numbers of the house: each may only fall, and tests/test_house.py compares them.
# `python tests/house_numbers.py` writes what is measured, where that is lower.
"""
SHARE = 0.02  # of a number, or a few, by which what is measured may lie below what is recorded,
FEW = 3  # so that not every change needs a new number
COUNTED = [habit for habit in diction.HABITS if habit != "one_word"]  # which is for information
Numbers = dict[str, dict[str, int]]  # by section, then by name


def measure(source: Path = SOURCE, tests: Path = TESTS) -> Numbers:
    """Return what the meters say of a package and its tests.

    A closure is in tokens, by the first of its entry's names; the patches of internals are those
    of `patches.find_patches`.
    """
    modules = closures.read_modules(source)
    sizes = {}
    for names in closures.ENTRIES:
        if entry := closures.find_entry(names, modules):
            sizes[names.split("|")[0]] = closures.closure_of(entry, modules).tokens
    places = diction.find_habits(source)
    return {
        "closures": sizes,
        "diction": {habit: len(places[habit]) for habit in COUNTED},
        "tests": {"patches": len(patches.find_patches(source.name, tests))},
    }


def read_numbers(file: Path = FILE) -> Numbers:
    """Return the recorded numbers; none where there is no file yet."""
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def complaints(recorded: Numbers, measured: Numbers) -> Iterator[str]:
    """Yield a line for each number that is above what is recorded, or far below it."""
    for section, numbers in measured.items():
        for name, number in numbers.items():
            limit = recorded.get(section, {}).get(name)
            if limit is None:
                yield f"{section}, {name}: {number:,}, of which tests/house.toml says nothing"
            elif number > limit:
                yield (
                    f"{section}, {name}: {number:,}, above the {limit:,} in tests/house.toml, "
                    "which may only fall"
                )
            elif limit - number > max(FEW, SHARE * limit):
                yield (
                    f"{section}, {name}: {number:,}, well below the {limit:,} in tests/house.toml: "
                    "run python tests/house_numbers.py, so that it stays there"
                )
        for name in sorted(recorded.get(section, {}).keys() - numbers.keys()):
            yield f"{section}, {name}: in tests/house.toml, but not in the package"


def lower(recorded: Numbers, measured: Numbers) -> Numbers:
    """Return the lower one of each number; what is no longer measured goes."""
    return {
        section: {
            name: min(number, recorded.get(section, {}).get(name, number))
            for name, number in numbers.items()
        }
        for section, numbers in measured.items()
    }


def as_toml(numbers: Numbers) -> str:
    """Return the text of the file of numbers."""
    text = HEAD
    for section, values in numbers.items():
        keys = {name: name if name.isidentifier() else f'"{name}"' for name in values}
        lines = (f"{keys[name]} = {value}" for name, value in values.items())
        text += "\n".join(("", f"[{section}]", *lines, ""))
    return text


def main() -> None:
    """Lower the numbers in the file; say what would have to rise, and exit with 1 if anything."""
    measured = measure()
    numbers = lower(read_numbers(), measured)
    FILE.write_text(as_toml(numbers), encoding="utf-8")
    if risen := list(complaints(numbers, measured)):
        sys.exit("\n".join(risen))


if __name__ == "__main__":
    main()
