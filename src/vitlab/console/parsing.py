"""Turn the words of a command line into options.

tyro splits the words. The options themselves check the values, so that the command line refuses the
same things in the same words as Python.
"""

import contextlib
import io
import re
import types
from collections.abc import Iterator, Sequence
from dataclasses import make_dataclass
from typing import Any, Literal, get_args, get_origin

from vitlab.console.leaves import Leaf, Start, all_leaves, kinds_of, spelled
from vitlab.console.tyro_fields import UNSET, run_tyro, tyro_field
from vitlab.errors import OptionError
from vitlab.options import check_known
from vitlab.values import shown


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
    for name in typed:
        _check_name(name, leaves)
        _check_elsewhere(name, getattr(start, "ELSEWHERE", {}))
    check_known(set(typed) - negated, leaves)
    # tyro gets what is there, not some 180 options: it takes a time that grows with their number
    there = {name.removeprefix("no_") if name in negated else name for name in typed}
    named = [leaf for word, leaf in leaves.items() if leaf.about.positional or word in there]
    parsed = _split(_flat_class(named), words, prog)
    given: dict[str, Any] = {}
    for leaf in named:
        value = getattr(parsed, leaf.name)
        if leaf.is_flag:
            given[leaf.name] = value
        elif value is not UNSET:
            given[leaf.name] = from_words(value, leaf.hint)
    return given


def _check_name(name: str, leaves: dict[str, Leaf]) -> None:
    """Refuse a name that is an option's, but is not written so."""
    given, leaf = f"--{name.replace('_', '-')}", leaves.get(name)
    if leaf is not None and leaf.about.positional:
        raise OptionError(f"{spelled(leaf)} is given without {given}, by its position")
    known = leaves.get(name.removeprefix("no_"))
    if leaf is None and known is not None and not known.is_flag:
        raise OptionError(f"{given}: {known.word} takes a value: leave it out, or give one")


def _check_elsewhere(name: str, elsewhere: dict[str, str]) -> None:
    """Refuse an option that only another command has."""
    for each in (name, name.removeprefix("no_")):
        if each in elsewhere:
            raise OptionError(f"--{each.replace('_', '-')} {elsewhere[each]}")


def from_words(words: Sequence[str], hint: Any) -> object:
    """Convert words to a value of a type where possible; options refuse the rest later.

    `None` is None and `50%` is 0.5 if the type has such values; `3` is a number unless the type is
    text; several words are a tuple.
    """
    kinds = kinds_of(hint)
    several = [get_args(kind) for kind in kinds if get_origin(kind) is tuple]
    if several and (len(words) != 1 or len(several) == len(kinds)):
        parts = [part for args in several for part in args if part is not Ellipsis]
        return tuple(_from_word(word, parts) for word in words)
    return _from_word(words[0], kinds)


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


def _split(kind: type, words: Sequence[str], prog: str) -> Any:
    """Let tyro parse; turn its framed messages into one line."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return run_tyro(kind, words, prog)
    except SystemExit:
        lines = (re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.getvalue().splitlines())
        text = " ".join(line for line in lines if set(line) - {"-"})  # no rules
    if found := re.search(r"Missing value for argument '(\S+)'\. Expected (\d+)", text):
        count = "a value" if found[2] == "1" else f"{found[2]} values"
        raise OptionError(f"{found[1]} needs {count}")
    if found := re.search(r"Unrecognized options: (.*?)\s*(Perhaps|For full|$)", text):
        raise OptionError(f"unexpected argument {shown(found[1].split(', ')[0])}")
    raise OptionError(text)


def _flat_class(leaves: list[Leaf]) -> type:
    """Make a dataclass of options for tyro to fill; what is not given stays `UNSET`."""
    return make_dataclass("Given", [tyro_field(leaf, optional=True) for leaf in leaves])


def _names(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the options among the words."""
    for word in words:
        if word == "--":
            return
        if word.startswith("--"):
            yield word[2:].split("=")[0].replace("-", "_")
