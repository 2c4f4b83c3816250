"""What tyro reads: dataclasses made of options."""

from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any

from vitlab.console.leaves import Leaf, shape_of

UNSET = object()


def run_tyro(kind: type, words: Sequence[str], prog: str) -> Any:
    import tyro

    return tyro.cli(kind, prog=prog, args=list(words), config=(tyro.conf.OmitArgPrefixes,))


def tyro_field(leaf: Leaf, optional: bool = False) -> tuple[str, Any, Any]:
    """Make a field of a dataclass that tyro reads."""
    import tyro
    from tyro.constructors import PrimitiveConstructorSpec

    only = f"; only {leaf.about.only.words}" if leaf.about.only else ""
    default = "" if leaf.default in (None, "", ()) else f"(default: {_shown(leaf.default)})"
    default = "(required)" if leaf.is_required else default
    flag = leaf.about.flag or None
    about = tyro.conf.arg(name=flag, help=leaf.about.help + only, help_behavior_hint=default)
    if leaf.is_flag:
        return leaf.name, Annotated[bool, about], field(default=bool(leaf.default))
    nargs, metavar = shape_of(leaf)
    read = PrimitiveConstructorSpec(
        nargs=nargs,
        metavar=metavar,
        instance_from_str=tuple,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [],
    )
    positional: Any = tyro.conf.Positional
    kind: Any = Annotated[Any, read, about]
    kind = positional[kind] if leaf.about.positional else kind
    if leaf.is_required and not optional:
        return leaf.name, kind, field()
    return leaf.name, kind, field(default=UNSET)


def _shown(value: object) -> str:
    """Format a default as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
