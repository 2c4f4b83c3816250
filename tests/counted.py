"""Work that is counted: numbers that are computed, networks that are built, bytes that are read."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from vitlab.models.model import Model

COUNTED_BYTES = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="only Linux counts what is read"
)


class Counted(np.ndarray):  # type: ignore[type-arg]
    """An array that counts the numbers which NumPy's functions see of it and its results."""

    seen = 0

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **about: Any) -> Any:
        """Count, compute as usual, and count what is made of the result."""
        Counted.seen += max(np.size(each) for each in inputs)
        plain = [each.view(np.ndarray) if isinstance(each, Counted) else each for each in inputs]
        about = {name: self._plain(each) for name, each in about.items()}
        made = getattr(ufunc, method)(*plain, **about)
        return made.view(Counted) if isinstance(made, np.ndarray) else made

    @staticmethod
    def _plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(Counted._plain, value))
        return value.view(np.ndarray) if isinstance(value, Counted) else value


@contextmanager
def networks() -> Iterator[list[Model]]:
    """Collect the networks that are built in the block, by the first part that each is given."""
    built: list[Model] = []

    def see(module: nn.Module, name: str, part: nn.Module | None) -> None:
        if isinstance(module, Model) and all(module is not each for each in built):
            built.append(module)

    handle = register_module_module_registration_hook(see)
    try:
        yield built
    finally:
        handle.remove()


def bytes_read() -> int:
    """Bytes that this process has asked files for."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@contextmanager
def calls() -> Iterator[list[int]]:
    """Count the calls of functions in the block, of Python's and of built-in ones."""
    counted = [0]

    def see(frame: object, event: str, about: object) -> None:
        counted[0] += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        yield counted
    finally:
        sys.setprofile(None)
