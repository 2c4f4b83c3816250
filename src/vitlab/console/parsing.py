"""Command-line words to options, by argparse.

argparse only splits the words. The options themselves check the values, so that the command line
refuses the same things in the same words as Python.
"""

import argparse
import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args, get_origin

from vitlab.console.leaves import Leaf, Start, all_leaves, kinds_of, shape_of, spelled
from vitlab.errors import OptionError
from vitlab.options import check_known
from vitlab.values import shown

MINUS = "\N{MINUS SIGN}"  # argparse takes -1e-3 for an option


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
    end = list(words).index("--") if "--" in words else len(words)
    named = _named(words[:end], leaves, getattr(start, "ELSEWHERE", {}))
    parser = argparse.ArgumentParser(
        prog, argument_default=argparse.SUPPRESS,
        add_help=False, allow_abbrev=False, exit_on_error=False,
    )  # fmt: skip
    for leaf in named:
        add_option(parser, leaf)
    apart = _numbers_last(words[:end], {leaf.flag: leaf for leaf in named})
    try:
        found, rest = parser.parse_known_args([_escaped(word) for word in apart])
    except argparse.ArgumentError as error:
        raise _complaint(named, error.argument_name or "") from None
    given = {leaf.name: _value(leaf, getattr(found, leaf.name)) for leaf in named}
    return given | _positional(leaves, [*map(_plain, rest), *words[end + 1 :]], len(rest))


def add_option(parser: argparse.ArgumentParser, leaf: Leaf, **more: Any) -> argparse.Action:
    """Add an option to a parser; `more` is passed on to argparse."""
    if leaf.is_flag:
        return parser.add_argument(leaf.flag, action=argparse.BooleanOptionalAction, dest=leaf.name)
    count, _ = shape_of(leaf)
    count = "+" if isinstance(count, tuple) else count
    return parser.add_argument(leaf.flag, nargs=count, dest=leaf.name, **more)


def _named(words: Sequence[str], leaves: dict[str, Leaf], elsewhere: dict[str, str]) -> list[Leaf]:
    """Return the options that are named among the words, all of which must be the command's."""
    typed = list(_names(words))
    negated = {f"no_{word}" for word, leaf in leaves.items() if leaf.is_flag}
    for name in typed:
        _check_name(name, leaves)
        _check_elsewhere(name, elsewhere)
    check_known(set(typed) - negated, leaves)
    there = {name.removeprefix("no_") if name in negated else name for name in typed}
    return [leaf for word, leaf in leaves.items() if word in there]


def _names(words: Sequence[str]) -> Iterator[str]:
    """Yield the names of the options among the words."""
    for word in words:
        if word.startswith("--"):
            yield word[2:].split("=")[0].replace("-", "_")


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


def _numbers_last(words: Sequence[str], flags: dict[str, Leaf]) -> list[str]:
    """Return the words, options of any number of numbers last: argparse would take what follows."""
    others: list[str] = []
    numbers: list[str] = []
    taking = False  # whether the last word belongs to such an option
    for word in words:
        if word.startswith("--"):
            leaf = flags.get(word.replace("_", "-"))
            taking = leaf is not None and _of_numbers(leaf)
        elif taking:  # the first one, if it is no number, is refused by its option
            taking = _is_number(word) or numbers[-1].startswith("--")
        (numbers if taking else others).append(word)
    return others + numbers


def _of_numbers(leaf: Leaf) -> bool:
    """Whether an option takes any number of numbers."""
    parts = {part for kind in kinds_of(leaf.hint) for part in get_args(kind) or (kind,)}
    open_ended = not isinstance(shape_of(leaf)[0], int)
    return open_ended and parts <= {int, float, Ellipsis, types.NoneType}


def _is_number(word: str) -> bool:
    return not isinstance(_from_word(word, [int, float, types.NoneType]), str)


def _escaped(word: str) -> str:
    """Return a word as argparse is to see it: names with hyphens, negative numbers as values."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return name.replace("_", "-") + equals + value
    with contextlib.suppress(ValueError):
        if word.startswith("-"):
            float(word.removesuffix("%"))
            return MINUS + word[1:]
    return word


def _plain(word: str) -> str:
    """Return a word as it was typed."""
    return "-" + word[1:] if word.startswith(MINUS) else word


def _value(leaf: Leaf, words: Any) -> object:
    return words if leaf.is_flag else from_words([_plain(word) for word in words], leaf.hint)


def _complaint(named: Sequence[Leaf], option: str) -> OptionError:
    """Return the error of an option with too few words, or one too many."""
    leaf = next(each for each in named if each.flag == option.split("/")[0])
    if leaf.is_flag:
        return OptionError(f"{leaf.flag} takes no value: write {leaf.flag} or --no-{leaf.flag[2:]}")
    count, _ = shape_of(leaf)
    several = isinstance(count, int) and count > 1
    return OptionError(f"{leaf.flag} needs {f'{count} values' if several else 'a value'}")


def _positional(leaves: dict[str, Leaf], rest: list[str], before: int) -> dict[str, Any]:
    """Return what is given by its position, in order; `before` words came before two dashes."""
    given: dict[str, Any] = {}
    for word in rest[:before]:
        if word.startswith("-") and word != "-":
            raise OptionError(f"unexpected argument {shown(word)}")
    for leaf in leaves.values():
        if not leaf.about.positional:
            continue
        many = shape_of(leaf)[0] == "*"
        own, rest = (rest, []) if many else (rest[:1], rest[1:])
        if own:
            given[leaf.name] = from_words(own, leaf.hint)
    if rest:
        raise OptionError(f"unexpected argument {shown(rest[0])}")
    return given


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
