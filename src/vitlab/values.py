"""Values of options: converted to their type, described and shown in messages."""

import math
import types
from collections.abc import Iterable, Iterator
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, Literal, Union, get_args, get_origin


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
