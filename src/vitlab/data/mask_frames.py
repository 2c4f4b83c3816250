"""EXIF orientation of images with masks: which masks are turned with their images.

A mask has no orientation of its own: its sides tell whether it was drawn on the upright photo or on
the stored pixels (`data.frames`). Masks of another size stay as they are, and are reported where
they are used.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitlab.data.frames import (
    ORIENTATION,
    ImageFrame,
    Placed,
    Sides,
    Verdict,
    evidence_in,
    image_frame,
    image_frames,
    place,
    read_frame,
    verdict,
)
from vitlab.data.images import Images
from vitlab.data.settings import AnnotationFrame
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.pictures import Picture, Pictures
from vitlab.errors import ImageError


def place_masks(
    parts: Mapping[str, tuple[Images, Sequence[Any]]], title: str, wanted: AnnotationFrame
) -> dict[str, Placed]:
    """Return how the masks of each part are turned.

    Args:
        parts: images, and the mask of each: a path, or numbers
        title: of the data
        wanted: the option of that name
    """
    frames = dict[str, list[ImageFrame | None]]()
    sides = dict[str, list[Sides | None]]()
    verdicts = dict[str, list[Verdict]]()
    for name, (images, masks) in parts.items():
        own = frames[name] = _turn_frames(images)
        said = [frame and _sides_of(masks[number]) for number, frame in enumerate(own)]
        pairs = zip(own, said, strict=True)
        verdicts[name] = [_verdict(frame, each, wanted) for frame, each in pairs]
        sides[name] = said
    evidence = set().union(*(evidence_in(frames[name], verdicts[name]) for name in parts))
    found = dict[str, Placed]()
    for name, (images, _) in parts.items():
        names = [images.name(number) for number in range(len(images))]
        found[name] = place(title, names, frames[name], sides[name], verdicts[name], evidence)
    return found


def _verdict(frame: ImageFrame | None, sides: Sides | None, wanted: AnnotationFrame) -> Verdict:
    """Return in which frame a mask is; one of other sides is reported where it is used."""
    if frame is None or sides not in (frame.stored, frame.upright):
        return "upright"
    return verdict(frame, sides, wanted)


def _turn_frames(images: Images) -> list[ImageFrame | None]:
    """Return the frames of the images that EXIF turns or mirrors; None of others."""
    store = images.store
    numbers = images.rows.tolist()
    frames = list[ImageFrame | None]()
    if isinstance(store, ImageFiles):
        frames = image_frames(str(store.root / store.paths[number]) for number in numbers)
    elif isinstance(store, Pictures):
        frames = [_frame_in_memory(store.pictures[number]) for number in numbers]
    turned = [frame if frame is not None and frame.orientation > 1 else None for frame in frames]
    return turned or [None] * len(images)


def _frame_in_memory(picture: Picture) -> ImageFrame | None:
    """Return the frame of an image as a user has it; None of arrays, and of damaged ones."""
    match picture:
        case str() | Path():
            return read_frame(Path(picture).expanduser())
        case bytes():
            with suppress(ImageError):
                return image_frame(picture)
        case Image.Image():
            if file := getattr(picture, "filename", ""):
                return read_frame(Path(file))
            turn = picture.getexif().get(ORIENTATION, 1)
            return ImageFrame(picture.size, turn if turn in range(1, 9) else 1)
    return None


def _sides_of(mask: Any) -> Sides | None:
    """Return width and height of a mask that is not turned itself; None of others."""
    if not isinstance(mask, str | Path):
        rows, columns = [*np.shape(mask), 0, 0][:2]
        return columns, rows
    frame = read_frame(Path(mask))
    return None if frame is None or frame.orientation > 1 else frame.stored
