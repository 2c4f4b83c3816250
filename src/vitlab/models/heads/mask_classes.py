"""Classes of masks: their names, the numbers that masks have for them, and the number to ignore."""

from dataclasses import dataclass

LARGEST = 2**16  # numbers in a mask are below it
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
