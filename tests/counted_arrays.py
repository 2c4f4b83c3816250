"""Arrays that count how much is computed with them."""

from typing import Any

import numpy as np


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
