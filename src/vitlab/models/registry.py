"""Registry of stems and position schemes: a class registers itself when it is defined.

A configuration asks here by name. Nothing here lists a kind: the files of the two folders are
found, and each holds one class that knows all about itself. `--help` needs only the names and the
options that each uses; they are read from the source, as importing a class imports PyTorch.
"""

import ast
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from vitlab.options import Only

FOLDERS = {"stem": "vitlab.models.stems", "positions": "vitlab.models.positions"}
# By the field of the configuration, then by the value of that field.
KINDS: dict[str, "dict[str, type[Component]]"] = {field: {} for field in FOLDERS}


class Component:
    """What a stem and a position scheme have in common: what a configuration asks of them.

    Attributes:
        field: the configuration's field that names it
        name: the value of that field; a subclass that has one is registered
        uses: those options of the configuration that have an effect here
        undecayed: own parameters that weight decay leaves alone, beside norms and biases
        usual_norm: the `stem_norm` that a stem is given by its name alone
    """

    field: ClassVar[str]
    name: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ()
    undecayed: ClassVar[tuple[str, ...]] = ()
    usual_norm: ClassVar[str] = "none"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            known = KINDS[cls.field]
            if cls.name in known:
                there = known[cls.name].__qualname__
                raise TypeError(f"{cls.field}={cls.name} is already {there}")
            known[cls.name] = cls

    @staticmethod
    def check(config: Any) -> None:
        """Refuse a configuration that this part does not fit.

        Raises:
            OptionError: the message says what would work.
        """


def kinds(field: str) -> dict[str, type[Component]]:
    """Return the classes that a field of the configuration can name, in alphabetical order."""
    _import_all(FOLDERS[field])
    return dict(sorted(KINDS[field].items()))


def used_options(field: str) -> dict[str, tuple[str, ...]]:
    """Return which options each kind uses, by its name in alphabetical order, without PyTorch."""
    registered = {name: kind.uses for name, kind in KINDS[field].items()}
    return dict(sorted((_declared(FOLDERS[field]) | registered).items()))


@cache
def _declared(folder: str) -> dict[str, tuple[str, ...]]:
    """Return `uses` by `name` of the classes in the files of a folder, which state them plainly."""
    found = {}
    for path in import_module(folder).__path__:
        for file in Path(path).glob("*.py"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                facts = {
                    each.targets[0].id: each.value
                    for each in getattr(node, "body", ())
                    if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
                }
                if "name" in facts:
                    uses = facts.get("uses", ast.Tuple([]))
                    found[ast.literal_eval(facts["name"])] = ast.literal_eval(uses)
    return found


@cache
def _import_all(folder: str) -> None:
    for each in pkgutil.iter_modules(import_module(folder).__path__):
        import_module(f"{folder}.{each.name}")


def where_used(field: str, option: str) -> Only:
    """Say that an option applies only with the stems, or position schemes, that use it."""

    def users() -> list[str]:
        return [name for name, used in used_options(field).items() if option in used]

    def words() -> str:
        *first, last = users()
        return f"with {field}={', '.join(first)} or {last}" if first else f"with {field}={last}"

    return Only(words, lambda options: getattr(options, field) in users())
