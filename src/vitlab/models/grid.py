"""Grids of patches: rows and columns, and image sizes that a patch divides."""

from vitlab.errors import OptionError

Grid = tuple[int, int]  # rows and columns


def check_multiple(size: tuple[int, int], step: int, of: str) -> None:
    """Refuse an image size that is not a multiple of `step` pixels.

    Args:
        size: rows and columns
        step: pixels
        of: the step in words, `patch=16`

    Raises:
        OptionError: the message names the nearest sizes.
    """
    if any(side % step for side in size):
        rows, columns = size
        shown = rows if rows == columns else (rows, columns)
        raise OptionError(
            f"image_size={shown} is not a multiple of {of}: try {nearest_sizes(size, step)}"
        )


def nearest_sizes(size: tuple[int, int], step: int) -> str:
    """Describe the multiples of `step` next to an image size: `224 or 240`, a pair if not square.

    Args:
        size: rows and columns
        step: pixels
    """
    near = [sorted({max(1, side // step), side // step + 1}) for side in size]
    words = [" or ".join(str(count * step) for count in side) for side in near]
    return words[0] if words[0] == words[1] else f"({words[0]}, {words[1]})"
