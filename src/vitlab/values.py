"""Values of options: converted to their type, described and shown in messages."""

import math
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin

from vitlab.errors import CONTROL, OptionError

LONGEST = 1000  # characters of a name
HALF = re.compile("[\ud800-\udfff]")  # of a pair, which stands for no character alone


class MismatchError(Exception):
    """A value does not fit a type."""


def conform(value: Any, hint: Any) -> Any:
    """Convert a value to a type: whole numbers to int, lists to tuples."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _first_fitting(value, parts)
    if origin is Literal:
        if any(type(value) is type(each) and value == each for each in parts):
            return value
    elif hint is Any:
        return value
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint is int:
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
    elif hint is float:
        if isinstance(value, Real) and not isinstance(value, bool):
            with suppress(OverflowError):  # of a whole number
                if math.isfinite(number := float(value)):
                    return number
    elif origin is tuple:
        many = isinstance(value, list | tuple)
        if many or parts[-1] is Ellipsis:  # a single value is a list of one
            return _conform_tuple(value if many else (value,), parts)
    elif isinstance(value, hint):
        return value
    raise MismatchError


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type, as `conform` has it; lists are no single values."""
    if get_origin(hint) is tuple and not isinstance(value, list | tuple):
        return False
    try:
        conform(value, hint)
    except MismatchError:
        return False
    return True


def _first_fitting(value: Any, types_: tuple[Any, ...]) -> Any:
    for each in types_:
        try:
            return conform(value, each)
        except MismatchError:
            continue
    raise MismatchError


def _conform_tuple(value: list[Any] | tuple[Any, ...], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if parts[-1] is Ellipsis:
        parts = parts[:1] * len(value)
    if len(parts) != len(value):
        raise MismatchError
    return tuple(conform(each, part) for each, part in zip(value, parts, strict=True))


def described(hint: Any) -> str:
    """Describe a type: `a whole number`, `one of sgd, adamw`, `two numbers`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        kinds = [each for each in parts if not (each is int and float in parts)]
        return either(dict.fromkeys(described(each) for each in kinds))
    if origin is Literal:
        return str(parts[0]) if len(parts) == 1 else f"one of {', '.join(map(str, parts))}"
    if origin is tuple:
        each = described(parts[0]).removeprefix("a ")
        if parts[-1] is Ellipsis:
            return f"a list of {each}s" if each != "text" else "a list of words"
        return f"{ {2: 'two', 3: 'three'}.get(len(parts), len(parts)) } {each}s"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    return names.get(hint, "None" if hint is types.NoneType else f"a {hint.__name__}")


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse names that cannot be told apart or shown.

    Args:
        names: of classes or columns
        what: each of them is, in one word

    Raises:
        OptionError: an empty or very long one, one twice, or one with a control character or half
            of a pair.
    """
    before = set[str]()
    for name in names:
        if not name.strip() or len(name) > LONGEST:
            has = f"{len(name):,} characters" if name.strip() else "no characters"
            raise OptionError(f"the name of a {what} has {has}: give it another name")
        if CONTROL.search(name) or HALF.search(name):
            raise OptionError(
                f"the name of the {what} {name[:80]!r} has a control character: give it another "
                "name"
            )
        if name in before:
            raise OptionError(f"{what} {name[:80]!r} is named twice: give one another name")
        before.add(name)


def numbers(value: object) -> Iterator[float]:
    """Yield the numbers in a value, to compare with the bounds."""
    if isinstance(value, tuple):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def shown(value: object) -> str:
    """Format a value for a message: short, on one line."""
    value = tuple(value) if isinstance(value, list) else value
    text = str(value) if isinstance(value, str) and value.isidentifier() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
