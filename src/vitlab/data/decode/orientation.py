"""Stored pixels and boxes in them, turned upright as one of the eight EXIF orientations says."""

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Box = tuple[float, float, float, float]  # left, top, right, bottom edge
BACK = {6: 8, 8: 6}  # what undoes a quarter turn; every other orientation undoes itself


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Stored pixels (rows, columns, C) upright, as a view; EXIF orientations 1 to 8."""
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    return pixels.transpose(1, 0, 2) if orientation >= 5 else pixels


def turn_box(box: Box, orientation: int, rows: int, columns: int) -> Box:
    """Where a box of stored pixels (rows, columns) lies in the upright image."""
    left, top, right, bottom = box
    if orientation in (3, 4, 6, 7):
        top, bottom = rows - bottom, rows - top
    if orientation in (2, 3, 7, 8):
        left, right = columns - right, columns - left
    return (top, left, bottom, right) if orientation >= 5 else (left, top, right, bottom)
