"""The options of a command one by one, out of their groups, and how each is written."""

import types
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace
from typing import Any, Literal, Union, get_args, get_origin

from vitlab.options import Option, Options, defaults, hints, options_of

Start = Options | type[Options]  # options whose values are the defaults, or their class


@dataclass(frozen=True)
class Leaf:
    """One option of a command.

    Attributes:
        name: as in Python
        hint: its type
        about: its help and rules
        default: its value where none is given; `MISSING` if it is required
    """

    name: str
    hint: Any
    about: Option
    default: object

    @property
    def word(self) -> str:
        """Its name on the command line, with underscores."""
        return self.about.flag or self.name

    @property
    def flag(self) -> str:
        """Its name as it is typed."""
        return f"--{self.word.replace('_', '-')}"

    @property
    def is_flag(self) -> bool:
        """Whether it is given as `--name` or `--no-name`."""
        return set(kinds_of(self.hint)) <= {bool, types.NoneType}

    @property
    def is_required(self) -> bool:
        """Whether a command cannot run without it."""
        return self.default is MISSING


OF_ALL = (  # options of every command
    Leaf("json", bool, Option("print one JSON object on stdout"), False),
    Leaf("quiet", bool, Option("print no messages but warnings and errors"), False),
)


def leaves_of(start: Start, nested: bool = True) -> Iterator[Leaf]:
    """Yield the options of a command, including those of its groups, with the values of `start`.

    A command's class leaves some out: those in `HIDDEN`, and those in `ELSEWHERE`, by name with
    what its user is told. `NARROWED` has the type and the help of those that it takes fewer values
    of than their group.
    """
    kind = start if isinstance(start, type) else type(start)
    hidden = hidden_of(kind)
    narrowed: dict[str, tuple[Any, str]] = getattr(kind, "NARROWED", {})
    about = options_of(kind)
    for name, value in _values(start).items():
        if isinstance(value, Options):
            if nested:
                inner = (leaf for leaf in leaves_of(value) if leaf.name not in hidden)
                yield from (_narrowed(leaf, narrowed.get(leaf.name)) for leaf in inner)
        elif name in about and name not in hidden:
            yield Leaf(name, hints(kind)[name], about[name], value)


def _narrowed(leaf: Leaf, narrow: tuple[Any, str] | None) -> Leaf:
    """Return an option with another type and help, without a default that is not of the type."""
    if narrow is None:
        return leaf
    hint, text = narrow
    values = get_args(hint)
    default = leaf.default if not values or leaf.default in values else None
    return replace(leaf, hint=hint, about=replace(leaf.about, help=text), default=default)


def hidden_of(start: Start) -> frozenset[str]:
    """Return the options of its groups that a command does not have."""
    return getattr(start, "HIDDEN", frozenset()) | frozenset(getattr(start, "ELSEWHERE", ()))


def all_leaves(start: Start) -> Iterator[Leaf]:
    """Yield a command's options, those of all commands, and of other kinds of its groups."""
    found = {leaf.name: leaf for leaf in leaves_of(start)}
    for _, group in groups_of(start):
        for kind in group.kinds():
            for leaf in leaves_of(kind):
                found.setdefault(leaf.name, leaf)
    for name in hidden_of(start):
        found.pop(name, None)
    yield from found.values()
    yield from OF_ALL


def groups_of(start: Start) -> Iterator[tuple[str, Options]]:
    """Yield nested groups of options with the name of their field."""
    for name, value in _values(start).items():
        if isinstance(value, Options):
            yield name, value
            yield from groups_of(value)


def _values(start: Start) -> dict[str, object]:
    if isinstance(start, type):
        return defaults(start)
    return {name: getattr(start, name) for name in hints(type(start))}


def missing(start: Start, given: dict[str, Any]) -> list[str]:
    """Return what is required but not among the given options, as it is written."""
    absent = (leaf for leaf in leaves_of(start) if leaf.is_required and not given.get(leaf.name))
    return [spelled(leaf) for leaf in absent]


def kinds_of(hint: Any) -> list[Any]:
    """Return the alternatives of a type."""
    return list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]


def shape_of(leaf: Leaf) -> tuple[Any, str]:
    """Return how many words an option takes, and its placeholder in the help."""
    if leaf.about.positional:
        many = get_origin(leaf.hint) is tuple
        name = leaf.name.upper()
        return ("*", f"{name.removesuffix('S')} ...") if many else (1, name)
    counts: set[int] = set()
    shown: list[str] = []
    for kind in kinds_of(leaf.hint):
        if get_origin(kind) is tuple:
            parts = get_args(kind)
            if parts[-1] is Ellipsis:
                return "*", f"{_metavar(parts[0])} ..."
            counts.add(len(parts))
            shown.append(" ".join(_metavar(part) for part in parts))
        elif kind is not types.NoneType:
            counts.add(1)
            shown.append(_metavar(kind))
    words = list(leaf.about.choices()) if leaf.about.choices else []
    metavar = f"{{{','.join(words)}}}" if words else "|".join(dict.fromkeys(shown))
    return (counts.pop() if len(counts) == 1 else "+"), metavar


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        parts = [str(part) for part in get_args(kind) if part != ""]
        return parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}"
    return {int: "INT", float: "FLOAT", bool: "{True,False}"}.get(kind, "TEXT")


def spelled(leaf: Leaf) -> str:
    """Format an option as it is written on the command line."""
    if leaf.is_flag:
        return f"{leaf.flag}, --no-{leaf.flag[2:]}"
    shown = shape_of(leaf)[1]
    return shown if leaf.about.positional else f"{leaf.flag} {shown}"
