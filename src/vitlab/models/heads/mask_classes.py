"""Classes of masks: their names, the numbers that masks have for them, and the number to ignore."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST = 2**16  # numbers in a mask are below it
Truth = NDArray[np.int16]  # (rows, columns): the class of each pixel, or `IGNORED`
Ignored = int | None
"""A number in masks that plays no part, if there is one."""


@dataclass(frozen=True)
class MaskClasses:
    """The classes of the numbers in masks.

    Attributes:
        classes: names
        values: the number of each class
        ignored: the number of pixels that do not count; None for none
    """

    classes: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    ignored: Ignored = 255
