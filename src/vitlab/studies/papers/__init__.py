"""The studies of the papers, and what these print: `claims.toml` and `tables.toml`."""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from vitlab.studies.claims import Claim


def claims_of(study: str) -> tuple[Claim, ...]:
    """Return the claims that a study tests."""
    return tuple(Claim(**each) for each in _read("claims").get(study, ()))


def table(name: str) -> dict[str, Any]:
    """Return a table of a paper, its rows by their names."""
    found = _read("tables")[name]
    assert isinstance(found, dict)
    return found


@cache
def _read(name: str) -> dict[str, Any]:
    file = resources.files("vitlab.studies.papers") / f"{name}.toml"
    return tomllib.loads(file.read_text("utf-8"))
