"""EXIF orientation: whether boxes and masks lie on a photo as it is seen, or as it is stored.

Cameras store a photo as the sensor saw it, and note in its EXIF block how to turn it upright.
Pixels are turned when they are decoded. What was drawn on the stored pixels (kwcoco, torchvision)
must be turned with them; what was drawn on the upright photo (browsers, Ultralytics) must not. The
sides that annotations state tell which: those of the stored pixels, or of the upright photo. Where
they are the same (half turns, mirror images, squares), or none are stated, the other photos of the
data tell, if all of them say the same; else such photos are left out and named. The option
`annotation_frame` decides where the user knows better: Label Studio states the stored sides of
photos that it shows, and its users draw on, upright.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL.TiffImagePlugin import TiffImageFile

from vitlab.data.decode.formats import format_of
from vitlab.data.decode.headers import opened
from vitlab.data.decode.metadata import EXIF, jpeg_segments, orientation
from vitlab.data.settings import AnnotationFrame
from vitlab.data.sources.paths import read_image, some
from vitlab.data.target import Integers
from vitlab.errors import ImageError

BEGINNING = 2**16  # bytes of a JPEG in which its sides usually are
SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # markers of the segments that have them
ORIENTATION = 274  # the tag of a TIFF
THREADS = 8  # that read files
ROUNDING = 1.0  # pixels by which the sides of a resized photo are off
SLACK = 0.01  # of a side, likewise

_WHOLE = Lock()  # one file at a time is in memory as a whole

Sides = tuple[float, float]
"""Width and height."""

Verdict = Literal["upright", "stored", "either", "neither"]


class ImageFrame(NamedTuple):
    """The sides of an image's stored pixels, and how it is turned upright.

    Attributes:
        stored: width and height in pixels
        orientation: of EXIF, 1 to 8
    """

    stored: Sides
    orientation: int

    @property
    def upright(self) -> Sides:
        """Width and height of the upright image."""
        width, height = self.stored
        return (height, width) if self.orientation >= 5 else (width, height)


class Placed(NamedTuple):
    """How the annotations of images become those of the upright images.

    Attributes:
        turns: the EXIF orientation by which they are turned; 1: as they are; 0: the image is left
            out, (n,)
        stated: width and height that their coordinates refer to, (n, 2)
        own: width and height of the image in the frame that they were drawn in, (n, 2)
        notes: remarks for the user
    """

    turns: Integers
    stated: NDArray[np.float64]
    own: Integers
    notes: list[str]


def read_frame(file: Path) -> ImageFrame | None:
    """Return the sides and the orientation of an image file; None of a damaged one.

    Of a JPEG or a PNG a few thousand bytes are read.
    """
    with suppress(OSError, ImageError):
        with file.open("rb") as stream:
            beginning = stream.read(BEGINNING)
            kind = format_of(beginning)
            if kind == "JPEG" and (found := _jpeg_frame(beginning)):
                return found
            if kind == "PNG":
                return _png_frame(stream)
        with _WHOLE:
            return image_frame(read_image(file, str(file)))
    return None


def image_frame(data: bytes) -> ImageFrame:
    """Return the sides and the orientation of an image.

    Raises:
        ImageError: it is damaged, or none.
    """
    with opened(data, "image") as header:
        image = header.image
        turn = header.orientation
        if isinstance(image, TiffImageFile):  # Pillow turns it itself, and gives upright sides
            turn = image.tag_v2.get(ORIENTATION, 1)
            turn = turn if turn in range(1, 9) else 1
        width, height = image.size
        upright_already = turn >= 5 and isinstance(image, TiffImageFile)
        return ImageFrame((height, width) if upright_already else (width, height), turn)
    raise AssertionError  # for type checkers: `opened` swallows nothing


def _jpeg_frame(data: bytes) -> ImageFrame | None:
    """Return the frame of a JPEG by its first bytes; None if its sides are not among them."""
    exif = b""
    for marker, at, end in jpeg_segments(data):
        if end > len(data):
            return None
        if marker == EXIF and not exif and data.startswith(b"Exif\0\0", at + 4):
            exif = data[at + 4 : end]
        if marker in SIZES:
            height, width = (int.from_bytes(data[at + n : at + n + 2]) for n in (5, 7))
            return ImageFrame((width, height), orientation(exif))
    return None


def _png_frame(stream: BinaryIO) -> ImageFrame:
    """Return the frame of a PNG, whose EXIF may follow the pixels."""
    stream.seek(16)
    width, height = (int.from_bytes(stream.read(4)) for _ in range(2))
    at, exif = 33, b""
    while len(head := _bytes_at(stream, at, 8)) == 8:
        length = int.from_bytes(head[:4])
        kind = head[4:]
        if kind == b"eXIf":
            exif = _bytes_at(stream, at + 8, min(length, BEGINNING))
            break
        at += 12 + length
    return ImageFrame((width, height), orientation(exif))


def _bytes_at(stream: BinaryIO, at: int, count: int) -> bytes:
    """Return some bytes of a file."""
    stream.seek(at)
    return stream.read(count)


def image_frames(paths: Iterable[str]) -> list[ImageFrame | None]:
    """Return the frame of each image file; None of those that cannot be read."""
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(read_frame, map(Path, paths)))


def verdict(frame: ImageFrame, stated: Sides | None, wanted: AnnotationFrame) -> Verdict:
    """Return in which frame the annotations of an image are, as far as its sides tell.

    Args:
        frame: of the image
        stated: width and height that go with the annotations, perhaps of a resized copy; None
            where there are none
        wanted: `upright` and `stored` are right wherever sides fit either way round
    """
    upright, stored = (_fits(stated, own) for own in (frame.upright, frame.stored))
    if stated is not None and (stated == frame.upright) != (stated == frame.stored):
        upright = stated == frame.upright
        stored = stated == frame.stored
    if not upright and not stored:
        return "neither"
    if frame.orientation == 1:
        return "upright"
    if wanted != "auto":
        return wanted
    return "either" if upright and stored else "upright" if upright else "stored"


def _fits(stated: Sides | None, own: Sides) -> bool:
    """Return whether sides are those of an image, or of a resized copy."""
    if stated is None:
        return True
    (width, height), (columns, rows) = stated, own
    across = abs(width - height * columns / rows)
    down = abs(height - width * rows / columns)
    return across <= ROUNDING + SLACK * width or down <= ROUNDING + SLACK * height


def verdicts_of(
    frames: Sequence[ImageFrame | None], stated: Sequence[Sides | None], wanted: AnnotationFrame
) -> list[Verdict]:
    """Return the verdict on each image; an image that cannot be read is upright."""
    return [
        "upright" if frame is None else verdict(frame, sides, wanted)
        for frame, sides in zip(frames, stated, strict=True)
    ]


def evidence_in(frames: Sequence[ImageFrame | None], verdicts: Sequence[Verdict]) -> set[Verdict]:
    """Return the frames that the turned images speak for whose sides tell."""
    pairs = zip(frames, verdicts, strict=True)
    turned = {each for frame, each in pairs if frame is not None and frame.orientation > 1}
    return turned & {"upright", "stored"}


def place(
    title: object,
    names: Sequence[str],
    frames: Sequence[ImageFrame | None],
    stated: Sequence[Sides | None],
    verdicts: Sequence[Verdict],
    evidence: set[Verdict],
) -> Placed:
    """Return how the annotations of each image are turned, and which images are left out.

    Labels in shares of the sides (YOLO's) have no stated sides: None for each. Ultralytics reads
    photos upright, so that `verdicts_of` may be asked with `upright` where the user says nothing.

    Args:
        title: where the annotations are, for a line
        names: of the images
        frames: of the images, of `image_frames`
        stated: width and height that go with the annotations of each image
        verdicts: of `verdicts_of`
        evidence: of `evidence_in`, of all files of the data
    """
    others = next(iter(evidence)) if len(evidence) == 1 else "either"
    turns = np.ones(len(names), np.int64)
    own = np.zeros((len(names), 2), np.int64)
    sides = np.full((len(names), 2), np.nan)
    turned = list[str]()
    unclear = list[str]()
    odd = list[str]()
    for number, (name, frame, each) in enumerate(zip(names, frames, verdicts, strict=True)):
        said = stated[number]
        if frame is None:  # a damaged image is reported where it is decoded
            sides[number] = said or np.nan
            own[number] = np.nan_to_num(np.clip(sides[number], 0, 2**31))
            continue
        found = others if each == "either" else each
        own[number] = frame.stored if found == "stored" else frame.upright
        sides[number] = said or own[number]
        if found == "stored":
            turns[number] = frame.orientation
            turned.append(name)
            if not _fits(said, frame.stored):
                sides[number] = sides[number][::-1]
        elif found in ("either", "neither"):
            turns[number] = 0
            (unclear if found == "either" else odd).append(name)
    return Placed(turns, sides, own, _remarks(title, turned, unclear, odd))


def _remarks(
    title: object, turned: Sequence[str], unclear: Sequence[str], odd: Sequence[str]
) -> list[str]:
    """Return what the user should know, a line each."""
    lines = []
    if turned:
        lines.append(
            f"{title}: the annotations of {len(turned):,} images were turned with their pixels "
            "(EXIF), as drawn on the stored pixels; if they were drawn on the upright photos, as "
            f"in Label Studio, pass --annotation-frame upright: {some(turned)}"
        )
    if unclear:
        lines.append(
            f"{title}: left out {len(unclear):,} images that EXIF turns or mirrors, and whose "
            "sides do not tell whether their annotations were drawn on the upright photos or on "
            "the stored pixels: pass --annotation-frame upright, or --annotation-frame stored: "
            f"{some(unclear)}"
        )
    if odd:
        lines.append(
            f"{title}: left out {len(odd):,} images whose sides are not those that go with their "
            f"annotations, nor in the same proportion: {some(odd)}"
        )
    return lines


def turn_shares(boxes: NDArray[np.float64], turns: Integers) -> NDArray[np.float64]:
    """Return boxes of stored pixels as they lie in the upright image.

    Args:
        boxes: left, top, right, bottom in shares of the sides, (m, 4)
        turns: the EXIF orientation of each, (m,)
    """
    found = boxes.copy()
    down = np.isin(turns, (3, 4, 6, 7))
    across = np.isin(turns, (2, 3, 7, 8))
    found[down] = found[down] * (1, -1, 1, -1) + (0, 1, 0, 1)
    found[down] = found[down][:, [0, 3, 2, 1]]
    found[across] = found[across] * (-1, 1, -1, 1) + (1, 0, 1, 0)
    found[across] = found[across][:, [2, 1, 0, 3]]
    found[turns >= 5] = found[turns >= 5][:, [1, 0, 3, 2]]
    return found
