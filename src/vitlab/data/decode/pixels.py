"""The two values that every step of decoding shares: pixels and boxes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
"""(rows, columns, channels)."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom edge in pixels; fractions are allowed."""

ChooseBox = Callable[[int, int], Box]
"""The box to cut from an image, given its rows and columns."""
