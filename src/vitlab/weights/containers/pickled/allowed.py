"""The values that a checkpoint may hold beside its tensors: a reviewed list, without their classes.

PyTorch's restricted reader calls only what a list names. None of these names stands for the class
itself: each is mapped to a function or class of this file that keeps the arguments as plain values,
so that nothing of the file's choice is constructed, imported or called, and no library is needed.
"""

import math
import struct
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from types import MappingProxyType
from typing import Any

import numpy as np

NUMBERS = "biuf"  # kinds of NumPy's types that are numbers


class Fields:
    """A namespace: its attributes, in a dictionary."""

    values: Mapping[object, object] = MappingProxyType({})

    def __init__(self, *args: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.values = dict(state) if isinstance(state, dict) else {}


class ArrayType:
    """The type of NumPy arrays and scalars: its code, `f8`, and the order of its bytes."""

    code, order = "", "|"

    def __init__(self, code: object = "", *rest: object) -> None:
        self.code = code if isinstance(code, str) else ""

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else "|"
        self.order = order if isinstance(order, str) and order in ("<", ">", "|", "=") else "|"

    def dtype(self) -> "np.dtype[Any] | None":
        """Return the type if it is one of numbers, else None."""
        kind, size = self.code[:1], self.code[1:]
        if kind not in tuple(NUMBERS) or size not in ("1", "2", "4", "8"):
            return None
        return np.dtype(self.order.replace("|", "=") + self.code)


class Array:
    """A NumPy array: shape, type and bytes as the file states them."""

    state: tuple[Any, ...] = ()

    def __init__(self, *args: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.state = state if isinstance(state, tuple) else ()

    def numbers(self) -> "np.ndarray[Any, Any] | None":
        """Return the array if it has numbers and as many as its shape states, else None."""
        match self.state:
            case (_, tuple(shape), ArrayType() as kind, fortran, bytes(raw)):
                dtype = kind.dtype()
                if dtype is None or not all(type(n) is int and n >= 0 for n in shape):
                    return None
                if math.prod(shape) * dtype.itemsize != len(raw):
                    return None
                order = "F" if fortran else "C"
                return np.frombuffer(raw, dtype).reshape(shape, order=order)  # type: ignore[call-overload]
        return None


class Text:
    """A kind of text, whose only argument is text."""

    def __new__(cls, *args: object) -> str:  # type: ignore[misc]
        """Return the text itself."""
        return next((arg for arg in args if isinstance(arg, str)), "")


def _scalar(kind: object = None, raw: object = b"", *rest: object) -> object:
    """A NumPy scalar: a number, or None for text, dates and objects."""
    dtype = kind.dtype() if isinstance(kind, ArrayType) else None
    if dtype is None or not isinstance(raw, bytes) or len(raw) != dtype.itemsize:
        return None
    return np.frombuffer(raw, dtype)[0].item()


def _path(*parts: object) -> str:
    """A path of either system: text that opens nothing."""
    return "/".join(part.rstrip("/\\") for part in parts if isinstance(part, str))


def _mapping(*args: object) -> dict[object, object]:
    """A defaultdict, without its factory."""
    return {}


def _unused(*args: object) -> None:
    """A class that is itself a value, as the factory of a defaultdict."""


def _moment(kind: Callable[..., Any]) -> Callable[..., object]:
    """A date, a time or a duration: text by the standard library, whose constructors only check."""

    def text(*args: object) -> object:
        try:
            return str(kind(*(arg for arg in args if isinstance(arg, int | bytes))))
        except (TypeError, ValueError, OverflowError, struct.error):
            return None

    return text


def _no_bytes(*args: object) -> bytes:
    """Empty bytes, which a pickle writes as a call."""
    return b""


Global = tuple[Callable[..., Any], str]


def _named(stand_in: Callable[..., Any], *names: str) -> list[Global]:
    return [(stand_in, name) for name in names]


CORES = ("numpy.core.multiarray", "numpy._core.multiarray")
PATHS = ("pathlib", "pathlib._local")
LIGHTNING = (
    "pytorch_lightning.utilities.parsing", "lightning.pytorch.utilities.parsing",
    "lightning_fabric.utilities.data", "lightning.fabric.utilities.data",
)  # fmt: skip
# What PyTorch's reader may meet, and what it calls instead.
ALLOWED: tuple[Global, ...] = (
    # settings of a script: the attributes become entries of a dictionary
    *_named(Fields, "argparse.Namespace", "types.SimpleNamespace"),
    # NumPy: bytes are read only as numbers and only as many as there are; no NumPy code runs
    # before type, shape and length are known to agree
    *_named(ArrayType, "numpy.dtype"),
    *_named(Array, "numpy.ndarray", *(f"{core}._reconstruct" for core in CORES)),
    *_named(_scalar, *(f"{core}.scalar" for core in CORES)),
    # paths: their parts, joined as text
    *(
        entry
        for room in PATHS
        for name in ("Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath",
                     "PureWindowsPath")
        for entry in _named(_path, f"{room}.{name}")
    ),
    # dates: whole numbers or packed bytes, checked by the standard library; time zones are left out
    *_named(_moment(datetime), "datetime.datetime"),
    *_named(_moment(date), "datetime.date"),
    *_named(_moment(time), "datetime.time"),
    *_named(_moment(timedelta), "datetime.timedelta"),
    *_named(_unused, "datetime.timezone"),
    # a dictionary whose factory is never kept, so that nothing can call it
    *_named(_mapping, "collections.defaultdict"),
    # such factories: names without an effect
    *_named(_unused, *(f"builtins.{name}" for name in ("int", "float", "str", "bool", "list",
                                                       "tuple", "dict", "object"))),
    # Lightning's hyperparameters: an ordinary dictionary takes their place
    *_named(dict, *(f"{room}.AttributeDict" for room in LIGHTNING)),
    # empty bytes, whatever the arguments: a number would be a length to allocate
    *_named(_no_bytes, "builtins.bytes"),
    # a version: text
    *_named(Text, "torch.torch_version.TorchVersion"),
)  # fmt: skip
