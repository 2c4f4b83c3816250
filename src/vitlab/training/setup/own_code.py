"""A function of the user's own, as a run records it: its name and a digest of what it is.

The digest covers the source text of the function, its default values, and what it refers to
outside itself as far as that is a number, a string, a tuple of these, a tensor, an array, or
another function of the same module. It does not cover lists, dictionaries and objects, which may
change while a run goes on, nor the code of libraries, whose versions `run.toml` has.
"""

import hashlib
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from vitlab.errors import OptionError

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def recorded(option: str, function: object) -> dict[str, str]:
    """Return the lines of a function in the table `[code]` of `run.toml`.

    Args:
        option: `transform` or `loss`
        function: that was passed for it

    Raises:
        OptionError: it is not a plain function, or its source text cannot be read.
    """
    inner = inspect.unwrap(function) if callable(function) else function
    if not callable(function):
        raise OptionError(
            f"{option} must be a function, not {function!r}; options of a recipe are set there: "
            f"vitlab.recipe(..., {option}=...)"
        )
    if not inspect.isfunction(inner):
        raise OptionError(
            f"{option} must be a plain function, not a {type(function).__name__}: write one with "
            "def that calls it"
        )
    if inner.__name__ == "<lambda>":
        raise OptionError(
            f"{option} is a lambda, whose source cannot be told from the lines around it: write a "
            "function with def"
        )
    try:
        text = "\0".join(_parts(inner, set()))
    except (OSError, TypeError) as error:
        raise OptionError(
            f"the source of {option}={inner.__name__} cannot be read, and a run records it: define "
            "the function in a file or in a notebook"
        ) from error
    name = f"{inner.__module__}.{inner.__qualname__}"
    return {option: name, f"{option}_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _parts(function: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the texts that make up a function, each function that it refers to once."""
    seen.add(function)
    yield textwrap.dedent(inspect.getsource(function))
    yield from _values(function.__defaults__ or (), function, seen)
    for name, value in sorted((function.__kwdefaults__ or {}).items()):
        yield name
        yield from _values(value, function, seen)
    outside = inspect.getclosurevars(function)
    for name, value in sorted({**outside.globals, **outside.nonlocals}.items()):
        yield name
        yield from _values(value, function, seen)


def _values(value: Any, owner: Any, seen: set[Any]) -> Iterator[str]:
    """Yield what a value that a function refers to is, if it is a constant or a function."""
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, tuple):
        for each in value:
            yield from _values(each, owner, seen)
    elif isinstance(value, torch.Tensor | np.ndarray):
        array = value.detach().cpu() if isinstance(value, torch.Tensor) else value
        yield f"{value.dtype} {tuple(value.shape)}"
        yield hashlib.sha256(repr(array.tolist()).encode()).hexdigest()
    elif inspect.isfunction(value) and value not in seen and value.__module__ == owner.__module__:
        yield from _parts(value, seen)
