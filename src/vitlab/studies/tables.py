"""Tables of the papers as data: rows of options and figures, and the list of studies."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read(name: str) -> dict[str, Any]:
    """Return `studies.toml` or `tables.toml` of the papers."""
    file = resources.files("vitlab.studies.papers") / f"{name}.toml"
    return tomllib.loads(file.read_text("utf-8"))


def table(name: str) -> dict[str, Any]:
    """Return a table of a paper, its rows by their names."""
    found = read("tables")[name]
    assert isinstance(found, dict)
    return found


def options_of(name: str, row: str) -> dict[str, Any]:
    """Return the options of a recipe in a row of a table; lists are tuples there."""
    options = table(name)[row]
    return {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
