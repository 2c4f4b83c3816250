"""What boxes need of a JPEG: its scale, and its rows down to the last one needed."""

import math
from collections.abc import Sequence

from vitlab.data.decode import jpeg
from vitlab.data.decode.headers import exceeded
from vitlab.data.decode.jpeg_frame import Frame, frame_of
from vitlab.data.decode.metadata import BACK, turn, turn_box
from vitlab.data.decode.pixels import Box, ChooseBox, Pixels
from vitlab.errors import UserError


def jpeg_boxes(
    data: bytes,
    max_pixels: int,
    choices: Sequence[ChooseBox],
    at_least: tuple[float, float],
    cut: bool = True,
) -> list[tuple[Pixels, Box]] | None:
    """Decode boxes and their surroundings by `jpeg.decode`, each scale once.

    Args:
        data: an image file
        max_pixels: the most that the image may have
        choices: the boxes, given the rows and columns of the upright image
        at_least: rows and columns that each box must have in the result
        cut: whether what lies below the boxes may be left out

    Returns:
        Upright pixels (rows, columns, 1 or 3) and the box within them, of each; within it they are
        the same for one box as for several. None where only Pillow can tell, or several boxes of
        an image that is turned have to be decoded each by itself.

    Raises:
        ImageError: a damaged JPEG.
    """
    frame = frame_of(data)
    if frame is None or exceeded(frame, data, max_pixels):
        return None
    turned = frame.orientation
    if len(choices) > 1 and turned > 1:
        return None
    parts = [_part(frame, choose, at_least) for choose in choices]
    lowest: dict[int, int] = {}
    for scale, until, _ in parts:
        lowest[scale] = max(until if cut else frame.rows, lowest.get(scale, 0))
    try:
        decoded = {scale: jpeg.decode(data, frame, scale, until) for scale, until in lowest.items()}
    except UserError:
        raise
    except ValueError:  # a warning that may be harmless
        return None
    return [
        (turn(decoded[scale], turned), turn_box(inside, turned, *decoded[scale].shape[:2]))
        for scale, _, inside in parts
    ]


def _part(frame: Frame, choose: ChooseBox, at_least: tuple[float, float]) -> tuple[int, int, Box]:
    """Return the scale to decode a box at, its last row, and where it then is, not yet turned."""
    rows, columns, orientation = frame.rows, frame.columns, frame.orientation
    upright = (columns, rows) if orientation >= 5 else (rows, columns)
    box = choose(*upright)
    left, top, right, bottom = turn_box(box, BACK.get(orientation, orientation), *upright)
    high, wide = reversed(at_least) if orientation >= 5 else at_least
    scale = jpeg.scale_for(right - left, bottom - top, wide, high)
    inside = (left / scale, top / scale, right / scale, bottom / scale)
    return scale, min(rows, math.ceil(bottom)), inside
