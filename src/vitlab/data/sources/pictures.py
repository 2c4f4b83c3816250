"""Images from anywhere: paths, files, bytes, Pillow's images, arrays, tensors, as one source.

`as_picture` turns whatever a caller holds into one of the forms that the package reads.
"""

import inspect
import io
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from torch import Tensor

from vitlab.data.decode.colors import GRAY, note_samples, recolored
from vitlab.data.decode.formats import format_of
from vitlab.data.decode.headers import (
    MAX_BYTES,
    MAX_PIXELS,
    check_size,
    complaints_are_errors,
    explained_image,
    unheard,
    upright,
)
from vitlab.data.decode.media import stored_file
from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import EncodedImage, PixelImage, StoredImage
from vitlab.data.sources.paths import read_image
from vitlab.errors import DataError, ImageError

Picture = str | Path | bytes | Image.Image | NDArray[np.uint8] | Tensor
"""A file, its bytes, an image of Pillow, an array (rows, columns, channels) or a tensor (channels,
rows, columns), both of uint8."""

Form = Picture | os.PathLike[str] | bytearray | memoryview | IO[bytes]
"""What `as_picture` makes one of."""

AS_THEY_ARE = (str, Path, bytes, Image.Image)  # one image, whatever is in them
WANTED = "give a path, bytes, an open file, an image of Pillow, or an array or tensor of uint8"
PIECE = 2**20  # bytes of a file that are read at a time


class Unread(bytes):
    """No bytes: in a list, an open file that could not be read, and why."""

    reason = ""


@dataclass(frozen=True)
class Pictures:
    """Images in memory or in files, as a store.

    Attributes:
        pictures: each as the user has it
    """

    pictures: Sequence[Picture]

    @cached_property
    def in_memory(self) -> bool:
        """Whether no image is a file or its bytes, which processes may decode."""
        return not any(isinstance(each, str | Path | bytes) for each in self.pictures)

    def __len__(self) -> int:
        return len(self.pictures)

    def image(self, index: int) -> StoredImage:
        """Return one image.

        Raises:
            ImageError: it cannot be read, or is nothing that can be an image.
        """
        return stored(self.pictures[index], self.name(index))

    def name(self, index: int) -> str:
        """Return the path of a file, or the number of an image in memory."""
        picture = self.pictures[index]
        return str(picture) if isinstance(picture, str | Path) else f"image {index}"


@dataclass(frozen=True)
class PillowImage(StoredImage):
    """A decoded image of Pillow, upright."""

    picture: Image.Image
    name: str

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels, as of the file that the image may be from."""
        columns, rows = self.picture.size
        return rows, columns, 1 if self.picture.mode in GRAY else 3

    def decode(self, channels: int) -> Pixels:
        """Return the pixels in gray, RGB or RGBA.

        Raises:
            ImageError: other channels, or numbers outside the range that can be read.
        """
        with explained_image(self.name):
            return recolored(self.picture, channels)

    def content(self) -> bytes:
        """Return the pixels, row by row."""
        return self.picture.tobytes()


def as_picture(given: object, name: str = "the image") -> Picture | None:
    """Return the image that an object is, in a form that can be read again; None if it is none.

    - Texts and whatever has a path (`os.PathLike`) name a file.
    - `bytes`, `bytearray`, `memoryview` and other buffers of bytes are the content of a file.
    - An open file is read at once: from its start, as Pillow does, and left where it stood; one
      that cannot seek, such as an answer of HTTP, from where it stands.
    - Images of Pillow, arrays and tensors of two axes or more stay what they are; arrays of other
      libraries become those of NumPy.
    - A cell of a table of images, a dictionary with `bytes` and `path`, is what is in it.

    Args:
        given: anything
        name: what to call the image in an error

    Raises:
        ImageError: a file that cannot be read, is too large, or is opened as text.
    """
    if isinstance(given, AS_THEY_ARE):
        return given
    if isinstance(given, np.ndarray | Tensor):
        return given if given.ndim >= 2 else None
    if isinstance(given, os.PathLike):
        return Path(os.fsdecode(given))
    if callable(getattr(given, "read", None)):
        return _content(given, name)
    if isinstance(given, Mapping):
        cell = {"bytes", "path"} <= given.keys()
        inside = given["path"] if cell and given["bytes"] is None else given.get("bytes")
        return as_picture(inside, name) if cell else None
    if type(given).__module__.partition(".")[0] == "pyarrow" and hasattr(given, "as_py"):
        return as_picture(given.as_py(), name)
    if isinstance(given, np.void) and not given.dtype.names:
        return given.tobytes()
    return _of_buffer(given)


def _of_buffer(given: Any) -> Picture | None:
    """Return the bytes or the pixels of what lends its memory; None of anything else."""
    try:
        view = memoryview(given)
    except (TypeError, ValueError, BufferError):  # an array of another library, perhaps
        kind = type(given)
        is_array = hasattr(kind, "__array__") and hasattr(kind, "dtype") and hasattr(kind, "ndim")
        return np.asarray(given) if is_array and given.ndim in (2, 3) else None
    if view.ndim > 1:
        return np.asarray(view)
    return bytes(view) if view.format in ("B", "b", "c", "<B") else None


def _content(file: Any, name: str) -> bytes:
    """Return the content of an open file.

    Raises:
        ImageError: it cannot be read, is too large, or is opened as text.
    """
    if isinstance(file, io.TextIOBase):
        raise ImageError(f"{name} is a file opened as text: open it with mode 'rb'")
    try:
        place = file.tell() if _can_seek(file) else None
        if place is not None:
            file.seek(0)
        try:
            return _pieces(file, name)
        finally:
            if place is not None:
                file.seek(place)
    except ImageError:
        raise
    except Exception as error:  # whatever an object with a `read` may raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{name} cannot be read from its file: {text}") from error


def _pieces(file: Any, name: str) -> bytes:
    """Read a file to its end, which must come within the limit of an image."""
    whole = bytearray()
    while piece := file.read(PIECE):
        if not isinstance(piece, bytes | bytearray | memoryview):
            kind = type(piece).__name__
            if inspect.iscoroutine(piece):
                piece.close()  # nobody will await it
            raise ImageError(
                f"{name} is of type {type(file).__name__}, which reads {kind}: {WANTED}"
            )
        whole += piece
        if len(whole) > MAX_BYTES:
            raise ImageError(f"{name}: more bytes than the limit of {MAX_BYTES:,}")
    return bytes(whole)


def _can_seek(file: Any) -> bool:
    seekable = getattr(file, "seekable", None)
    return bool(seekable()) if callable(seekable) else hasattr(file, "seek")


def stored(picture: object, name: str = "the image") -> StoredImage:
    """Return an image as the rest of the package reads it.

    A file of Pillow's that was opened but not decoded is read as the file it is, so that its pixels
    are those that the commands see.

    Args:
        picture: what `as_picture` takes; or an array or tensor (n,) of uint8, the bytes of a file
        name: what to call the image in an error

    Raises:
        ImageError: it cannot be read, or is nothing that can be an image.
    """
    found = picture if isinstance(picture, np.ndarray | Tensor) else as_picture(picture, name)
    match found:
        case str() | Path():
            return stored_file(read_image(Path(found).expanduser(), name), name)
        case Unread():
            raise ImageError(found.reason)
        case bytes():
            return stored_file(found, name)
        case Image.Image():
            return _of_pillow(found, name)
        case torch.Tensor():
            return _of_tensor(found, name)
        case np.ndarray():
            return _of_array(found, name)
    raise ImageError(f"{name} is of type {type(picture).__name__}: {WANTED}")


def is_one(pictures: object) -> bool:
    """Return whether this is one image, not a batch or a list; nothing is read."""
    if isinstance(pictures, np.ndarray | Tensor):
        return pictures.ndim < 4 and not _holds_items(pictures)
    if callable(getattr(pictures, "read", None)):
        return True
    return as_picture(pictures) is not None


def several(pictures: Any) -> list[Picture]:
    """Return images as a list: one alone, a batch in an array or tensor, or any number of them.

    Args:
        pictures: one image, as `as_picture` takes it; a batch of them, an array (B, rows, columns,
            channels) or a tensor (B, channels, rows, columns); or anything that gives images

    Raises:
        DataError: nothing there, or what is none of these.
        ImageError: a file that cannot be read.
    """
    if is_one(pictures):
        is_array = isinstance(pictures, np.ndarray | Tensor)
        return [cast(Picture, pictures if is_array else as_picture(pictures, "image 0"))]
    if isinstance(pictures, Iterable) and not isinstance(pictures, Mapping):
        found = [*pictures]
    else:
        raise DataError(f"the images are of type {type(pictures).__name__}: {WANTED}, or a list")
    if not found:
        raise DataError("no images given")
    return [_in_hand(each, f"image {number}") for number, each in enumerate(found)]


def in_hand(data: Any) -> Any:
    """Return images in memory with their files read, and what can be iterated once as a list.

    Args:
        data: any DATA: names stay what they are, as does whatever has no file in it

    Raises:
        ImageError: a file that cannot be read.
    """
    if isinstance(data, AS_THEY_ARE):
        return data
    if isinstance(data, np.ndarray | Tensor) and not data.ndim:
        raise DataError(f"the data is one number, of type {type(data).__name__}: {WANTED}")
    if isinstance(data, Mapping):  # of splits
        return {key: value if key == "classes" else in_hand(value) for key, value in data.items()}
    if callable(getattr(data, "read", None)):
        return as_picture(data, "image 0")
    if isinstance(data, Iterator | Set | ValuesView | deque) or _holds_items(data):
        data = list(data)
    if type(data) in (list, tuple):
        return type(data)(_in_hand(each, f"image {n}") for n, each in enumerate(data))
    found = as_picture(data, "image 0")
    return data if found is None else found


def _holds_items(data: Any) -> bool:
    """Return whether this is a column of things: an array of objects or texts, or one of pandas."""
    if isinstance(data, np.ndarray):
        return data.ndim == 1 and data.dtype.kind in "OUS"
    of_pandas = type(data).__module__.partition(".")[0] == "pandas"
    return of_pandas and getattr(data, "ndim", 0) == 1


def _in_hand(item: Any, name: str) -> Any:
    """Return an image, or an image with its label, that can be read again; others as they are."""
    if isinstance(item, (*AS_THEY_ARE, np.ndarray, Tensor, Mapping)):
        return item
    if isinstance(item, tuple | list):
        pair = len(item) == 2 and not isinstance(item[0], tuple | list)
        return (_in_hand(item[0], name), item[1]) if pair else item
    try:
        found = as_picture(item, name)
    except ImageError as error:
        found = Unread()
        found.reason = str(error)
    return item if found is None else found


def _of_pillow(picture: Image.Image, name: str) -> StoredImage:
    if isinstance(picture, ImageFile) and picture.filename and _untouched(picture):
        return EncodedImage(read_image(Path(str(picture.filename)), name), name)
    # Pillow may decode only now
    with explained_image(name), unheard(), complaints_are_errors(picture):
        check_size(*picture.size, MAX_PIXELS)
        turned = upright(picture)
        note_samples(turned, picture)
        return PillowImage(turned, name)


def _untouched(picture: ImageFile) -> bool:
    """Whether a file was opened by Pillow, but its pixels were not decoded yet."""
    return getattr(picture, "_im", None) is None and bool(getattr(picture, "tile", None))


def _of_tensor(picture: Tensor, name: str) -> StoredImage:
    if picture.ndim == 3 and picture.shape[0] not in (1, 3, 4):
        raise ImageError(
            f"{name} is a tensor of shape {tuple(picture.shape)}: give (channels, rows, columns) "
            "with 1, 3 or 4 channels; arrays have their channels last"
        )
    array = picture.permute(1, 2, 0) if picture.ndim == 3 else picture
    return _of_array(array.detach().cpu().numpy(), name)


def _of_array(picture: NDArray[np.uint8], name: str) -> StoredImage:
    if picture.dtype != np.uint8:
        raise ImageError(
            f"{name} has numbers of type {picture.dtype}: give pixels from 0 to 255 as uint8 "
            "(leave out ToTensor and Normalize)"
        )
    if picture.ndim == 1 and format_of(file := picture.tobytes()):  # as torchvision reads files
        return stored_file(file, name)
    pixels = picture[..., None] if picture.ndim == 2 else picture
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise ImageError(
            f"{name} has shape {picture.shape}: give (rows, columns) or (rows, columns, channels) "
            "with 1, 3 or 4 channels"
        )
    if pixels.shape[2] == 4:  # transparent pixels are seen over white, as those of files
        return PillowImage(Image.fromarray(np.ascontiguousarray(pixels)), name)
    return PixelImage(np.ascontiguousarray(pixels), name)
