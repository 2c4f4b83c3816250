"""Command-line words to options.

The options themselves check the values, so that the command line refuses the same things in the
same words as Python.
"""

import contextlib
import types
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from vitlab.console.leaves import Leaf, Start, all_leaves, kinds_of, shape_of, spelled
from vitlab.errors import OptionError
from vitlab.options import check_known
from vitlab.values import shown


def parse(start: Start, words: Sequence[str]) -> dict[str, Any]:
    """Return the options that the words of a command line give, by name.

    Args:
        start: the command's options
        words: after the command's name

    Raises:
        OptionError: an unknown option, one without its value, or a superfluous word.
    """
    leaves = {leaf.word: leaf for leaf in all_leaves(start)}
    end = list(words).index("--") if "--" in words else len(words)
    given: dict[str, Any] = {}
    others: list[str] = []
    left = deque(words[:end])
    while left:
        if not (word := left.popleft()).startswith("--"):
            others.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        leaf = _named(name, leaves, getattr(start, "ELSEWHERE", {}))
        if not leaf.is_flag:
            own = [value] if equals else _taken(leaf, left)
            given[leaf.name] = from_words(_checked_count(leaf, own), leaf.hint)
        elif equals:
            no = f"--no-{leaf.flag[2:]}"
            raise OptionError(f"{leaf.flag} takes no value: write {leaf.flag} or {no}")
        else:
            given[leaf.name] = name == leaf.word
    return given | _positional(leaves, [*others, *words[end + 1 :]], len(others))


def _named(name: str, leaves: Mapping[str, Leaf], elsewhere: Mapping[str, str]) -> Leaf:
    """Return the option of a name, or of `no_` and a flag's name."""
    given = f"--{name.replace('_', '-')}"
    bare = name.removeprefix("no_")
    leaf = leaves.get(name)
    negated = leaves.get(bare)
    if leaf is None and negated is not None:
        if not negated.is_flag:
            raise OptionError(f"{given}: {bare} takes a value: leave it out, or give one")
        leaf = negated
    for each in (name, bare):
        if each in elsewhere:  # only another command has it
            raise OptionError(f"--{each.replace('_', '-')} {elsewhere[each]}")
    if leaf is None:
        check_known([name], leaves)
    assert leaf
    if leaf.about.positional:
        raise OptionError(f"{spelled(leaf)} is given without {given}, by its position")
    return leaf


def _taken(leaf: Leaf, left: deque[str]) -> list[str]:
    """Take the words that belong to an option; of any number of numbers, no more than these."""
    count = shape_of(leaf)[0]
    found = list[str]()
    parts = {part for kind in kinds_of(leaf.hint) for part in get_args(kind) or (kind,)}
    numbers = not isinstance(count, int) and parts <= {int, float, Ellipsis, types.NoneType}
    while left and len(found) != count and _is_value(left[0]):
        if numbers and found and not _is_number(left[0]):
            break  # the first one, if it is no number, is refused by its option
        found.append(left.popleft())
    return found


def _is_value(word: str) -> bool:
    return not word.startswith("-") or word == "-" or _is_number(word)


def _is_number(word: str) -> bool:
    return not isinstance(_from_word(word, [int, float, types.NoneType]), str)


def _checked_count(leaf: Leaf, words: list[str]) -> list[str]:
    """Return an option's words, if they are as many as it has."""
    count, _ = shape_of(leaf)
    if len(words) != count if isinstance(count, int) else count == "+" and not words:
        several = isinstance(count, int) and count > 1
        raise OptionError(f"{leaf.flag} needs {f'{count} values' if several else 'a value'}")
    return words


def _positional(leaves: Mapping[str, Leaf], rest: list[str], before: int) -> dict[str, Any]:
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
