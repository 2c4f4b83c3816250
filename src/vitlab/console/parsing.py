"""Turn the words of a command line into options, and options into help.

tyro splits the words and lays out the help. The options themselves check the values, so that the
command line refuses the same things in the same words as Python.
"""

import contextlib
import io
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from vitlab.errors import OptionError
from vitlab.options import Option, Options, check_known, hints, options_of

Start = Options | type[Options]  # options whose values are the defaults, or their class
UNSET = object()
JSON = Option("print one JSON object on stdout")


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
    def is_flag(self) -> bool:
        """Whether it is given as `--name` or `--no-name`."""
        return set(_kinds(self.hint)) <= {bool, types.NoneType}

    @property
    def is_required(self) -> bool:
        """Whether a command cannot run without it."""
        return self.default is MISSING


def parse(start: Start, words: Sequence[str], prog: str) -> dict[str, Any]:
    """Return the options that the words of a command line give, by name.

    Args:
        start: the command's options
        words: after the command's name
        prog: the command itself, `vitlab train`

    Raises:
        OptionError: an unknown option, one without its value, or a superfluous word.
    """
    leaves = {leaf.word: leaf for leaf in all_leaves(start)}
    typed = list(_names(words))
    negated = {f"no_{word}" for word, leaf in leaves.items() if leaf.is_flag}
    check_known(set(typed) - negated, leaves)
    parsed = _run_tyro(_flat_class(list(leaves.values())), words, prog)
    given: dict[str, Any] = {}
    for word, leaf in leaves.items():
        value = getattr(parsed, leaf.name)
        if leaf.is_flag:
            given |= {leaf.name: value} if {word, f"no_{word}"} & set(typed) else {}
        elif value is not UNSET:
            given[leaf.name] = from_words(value, leaf.hint)
    return given


def required(start: Start) -> list[str]:
    """Return what a command cannot run without, as it is written on the command line."""
    return [_spelled(leaf) for leaf in leaves_of(start) if leaf.is_required]


def missing(start: Start, given: dict[str, Any]) -> list[str]:
    """Return what is required but not among the given options."""
    absent = (leaf for leaf in leaves_of(start) if leaf.is_required and not given.get(leaf.name))
    return [_spelled(leaf) for leaf in absent]


def help_text(start: Start, prog: str, summary: str) -> str:
    """Return the text of `--help`: every option with its type, help and default.

    Args:
        start: options whose values are shown as the defaults, or their class
        prog: the command itself, `vitlab train`
        summary: what it does
    """
    box = io.StringIO()
    with contextlib.redirect_stdout(box), contextlib.suppress(SystemExit):
        _tyro(_nested_class(start, summary), ["--help"], prog)
    lines = [line.rstrip() for line in box.getvalue().splitlines()]
    text = "\n".join(line for line in lines if set(line) - set(" -") or not line)  # no rules
    places = [_spelled(leaf) for leaf in leaves_of(start) if leaf.about.positional]
    for place in set(places) & set(required(start)):  # argparse knows no required list
        text = text.replace(f"[{place}]", f"{place}  ")
    usage = " ".join(["usage:", prog, *places, "[OPTIONS]"])
    text = re.sub(r"\Ausage:.*?\n\n", f"{usage}\n\n", text, flags=re.DOTALL)
    return re.sub(r"\n+(?=\n  )", "", text).rstrip()  # no gaps between options


def leaves_of(start: Start, nested: bool = True) -> Iterator[Leaf]:
    """Yield the options of a command, including those of its groups, with the values of `start`."""
    kind = start if isinstance(start, type) else type(start)
    hidden: frozenset[str] = getattr(kind, "HIDDEN", frozenset())
    about = options_of(kind)
    for name, value in _values(start).items():
        if isinstance(value, Options):
            if nested:
                yield from (leaf for leaf in leaves_of(value) if leaf.name not in hidden)
        elif name in about and name not in hidden:
            yield Leaf(name, hints(kind)[name], about[name], value)


def all_leaves(start: Start) -> Iterator[Leaf]:
    """Yield the options of a command, including `json` and those of other kinds of its groups."""
    found = {leaf.name: leaf for leaf in leaves_of(start)}
    for _, group in _groups(start):
        for kind in group.kinds():
            for leaf in leaves_of(kind):
                found.setdefault(leaf.name, leaf)
    for name in getattr(start, "HIDDEN", ()):
        found.pop(name, None)
    yield from found.values()
    yield Leaf("json", bool, JSON, False)


def summary_of(group: Options) -> str:
    """Return the first paragraph of a group's docstring; nothing under `python -OO`."""
    kind = type(group)
    text = (kind.__doc__ or "").split("\n\n")[0]
    return "" if text.startswith(f"{kind.__name__}(") else " ".join(text.split())


def _groups(start: Start) -> Iterator[tuple[str, Options]]:
    """Yield nested groups of options with the name of their field."""
    for name, value in _values(start).items():
        if isinstance(value, Options):
            yield name, value
            yield from _groups(value)


def _values(start: Start) -> dict[str, object]:
    if isinstance(start, type):
        return {each.name: each.default for each in fields(cast(Any, start))}
    return {each.name: getattr(start, each.name) for each in fields(cast(Any, start))}


# --- words to values


def from_words(words: Sequence[str], hint: Any) -> object:
    """Convert words to a value of a type where possible; options refuse the rest later.

    `None` is None and `50%` is 0.5 if the type has such values; `3` is a number unless the type is
    text; several words are a tuple.
    """
    kinds = _kinds(hint)
    several = [get_args(kind) for kind in kinds if get_origin(kind) is tuple]
    if several and (len(words) != 1 or len(several) == len(kinds)):
        parts = [part for args in several for part in args if part is not Ellipsis]
        return tuple(_from_word(word, parts) for word in words)
    return _from_word(words[0], kinds)


def _kinds(hint: Any) -> list[Any]:
    """Return the alternatives of a type."""
    return list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]


def _from_word(word: str, kinds: list[Any]) -> object:
    if types.NoneType in kinds and word == "None":
        return None
    if bool in kinds and word.lower() in ("true", "false"):
        return word.lower() == "true"
    if str in kinds or any(
        get_origin(kind) is Literal and word in get_args(kind) for kind in kinds
    ):
        return word
    if float in kinds and word.endswith("%"):
        with contextlib.suppress(ValueError):
            return float(word[:-1]) / 100
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(word)
    return word


# --- options for tyro


def _run_tyro(kind: type, words: Sequence[str], prog: str) -> Any:
    """Let tyro parse; turn its framed messages into one line."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return _tyro(kind, words, prog)
    except SystemExit:
        lines = (re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.getvalue().splitlines())
        text = " ".join(line for line in lines if line)
    if found := re.search(r"Missing value for argument '(\S+)'\. Expected (\d+)", text):
        count = "a value" if found[2] == "1" else f"{found[2]} values"
        raise OptionError(f"{found[1]} needs {count}")
    if found := re.search(r"Unrecognized options: (.*?)\s*(Perhaps|For full|$)", text):
        raise OptionError(f"unexpected argument {found[1].split(', ')[0]!r}")
    raise OptionError(text)


def _tyro(kind: type, words: Sequence[str], prog: str) -> Any:
    import tyro

    return tyro.cli(kind, prog=prog, args=list(words), config=(tyro.conf.OmitArgPrefixes,))


def _flat_class(leaves: list[Leaf]) -> type:
    """Make a dataclass of all options for tyro to fill; what is not given stays `UNSET`."""
    return make_dataclass("Given", [_field(leaf, optional=True) for leaf in leaves])


def _nested_class(start: Start, summary: str) -> type:
    """Make a dataclass for tyro to lay out the help of, with one class per group of options."""
    shown = {leaf.name for leaf in leaves_of(start)}
    own = [_field(leaf) for leaf in leaves_of(start, nested=False)]
    own.append(_field(Leaf("json", bool, JSON, False)))
    for name, group in _groups(start):
        leaves = leaves_of(group, nested=False)
        mine = [_field(leaf) for leaf in leaves if leaf.name in shown]
        kind = make_dataclass(name, mine, namespace={"__doc__": summary_of(group)})
        own.append((name, kind, field(default_factory=kind)))
    return make_dataclass("Options", own, namespace={"__doc__": summary})


def _field(leaf: Leaf, optional: bool = False) -> tuple[str, Any, Any]:
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
    nargs, metavar = _shape(leaf)
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


def _shape(leaf: Leaf) -> tuple[Any, str]:
    """Return how many words an option takes, and its placeholder in the help."""
    if leaf.about.positional:
        many = get_origin(leaf.hint) is tuple
        name = leaf.name.upper()
        return ("*", f"{name.removesuffix('S')} ...") if many else (1, name)
    counts: list[int] = []
    shown: list[str] = []
    for kind in _kinds(leaf.hint):
        if get_origin(kind) is tuple:
            parts = get_args(kind)
            if parts[-1] is Ellipsis:
                return "*", f"{_metavar(parts[0])} ..."
            counts.append(len(parts))
            shown.append(" ".join(_metavar(part) for part in parts))
        elif kind is not types.NoneType:
            counts.append(1)
            shown.append(_metavar(kind))
    words = list(leaf.about.choices()) if leaf.about.choices else []
    metavar = f"{{{','.join(words)}}}" if words else "|".join(dict.fromkeys(shown))
    return (counts[0] if len(set(counts)) == 1 else tuple(sorted(set(counts)))), metavar


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        parts = [str(part) for part in get_args(kind)]
        return parts[0] if len(parts) == 1 else f"{{{','.join(parts)}}}"
    return {int: "INT", float: "FLOAT", bool: "{True,False}"}.get(kind, "TEXT")


def _shown(value: object) -> str:
    """Format a default as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _spelled(leaf: Leaf) -> str:
    """Format an option as it is written on the command line."""
    shown = _shape(leaf)[1]
    return shown if leaf.about.positional else f"--{leaf.word.replace('_', '-')} {shown}"


def _names(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the options among the words."""
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word[2:].split("=")[0].replace("-", "_")
