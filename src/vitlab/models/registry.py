"""Which stems and position schemes there are: a class registers itself when it is defined.

A configuration asks here by name. Nothing here imports PyTorch or lists a kind: the files of the
two folders are found, and each holds one class that knows all about itself.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any, ClassVar, Protocol

from vitlab.options import Only

FOLDERS = {"stem": "vitlab.models.stems", "positions": "vitlab.models.positions"}
# By the field of the configuration, then by the value of that field.
KINDS: dict[str, "dict[str, type[Part]]"] = {field: {} for field in FOLDERS}


class Part(Protocol):
    """What a configuration asks of a stem or a position scheme."""

    name: ClassVar[str]
    uses: ClassVar[tuple[str, ...]]

    @staticmethod
    def check(config: Any) -> None:
        """Refuse a configuration that this part does not fit."""


def register(field: str, kind: type[Part]) -> None:
    """Make a class available under its `name`, as a value of the configuration's `field`."""
    if kind.name in KINDS[field]:
        raise TypeError(f"{field}={kind.name} is already {KINDS[field][kind.name].__qualname__}")
    KINDS[field][kind.name] = kind


def kinds(field: str) -> dict[str, type[Part]]:
    """Return the classes that a field of the configuration can name, in alphabetical order."""
    _import_all(FOLDERS[field])
    return dict(sorted(KINDS[field].items()))


@cache
def _import_all(folder: str) -> None:
    for each in pkgutil.iter_modules(import_module(folder).__path__):
        import_module(f"{folder}.{each.name}")


def where_used(field: str, option: str) -> Only:
    """Say that an option applies only with the stems, or position schemes, that use it."""

    def users() -> list[str]:
        return [name for name, kind in kinds(field).items() if option in kind.uses]

    def words() -> str:
        *first, last = users()
        return f"with {field}={', '.join(first)} or {last}" if first else f"with {field}={last}"

    return Only(words, lambda options: getattr(options, field) in users())
