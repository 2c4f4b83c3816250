"""Pixels and boxes of a file, turned upright by one of the eight EXIF orientations."""

from vitlab.data.decode.pixels import Box, Pixels

BACK = {6: 8, 8: 6}  # what undoes a quarter turn; every other orientation undoes itself


def turn(pixels: Pixels, orientation: int) -> Pixels:
    """Turn stored pixels (rows, columns, channels) upright, as a view; EXIF orientations 1 to 8."""
    if orientation in (3, 4, 6, 7):
        pixels = pixels[::-1]
    if orientation in (2, 3, 7, 8):
        pixels = pixels[:, ::-1]
    return pixels.transpose(1, 0, 2) if orientation >= 5 else pixels


def turn_box(box: Box, orientation: int, rows: int, columns: int) -> Box:
    """Return where a box of stored pixels (rows, columns) lies in the upright image."""
    left, top, right, bottom = box
    if orientation in (3, 4, 6, 7):
        top, bottom = rows - bottom, rows - top
    if orientation in (2, 3, 7, 8):
        left, right = columns - right, columns - left
    return (top, left, bottom, right) if orientation >= 5 else (left, top, right, bottom)
