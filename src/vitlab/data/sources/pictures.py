"""Images from anywhere: paths, bytes, Pillow's images, arrays and tensors, as one source."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.ImageFile import ImageFile
from torch import Tensor

from vitlab.data.decode.colors import GRAY, note_samples, recolored
from vitlab.data.decode.headers import (
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
from vitlab.data.labels import Labels
from vitlab.data.sources.paths import read_image
from vitlab.errors import DataError, ImageError

Picture = str | Path | bytes | Image.Image | NDArray[np.uint8] | Tensor
"""A file, its bytes, an image of Pillow, an array (rows, columns, channels) or a tensor (channels,
rows, columns), both of uint8."""


@dataclass(frozen=True)
class Pictures:
    """Images in memory or in files, as a source.

    Attributes:
        pictures: each as the user has it
        labels: of each
        classes: that the labels index
    """

    pictures: Sequence[Picture]
    labels: Labels
    classes: tuple[str, ...]

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


def stored(picture: Picture, name: str = "the image") -> StoredImage:
    """Return an image as the rest of the package reads it.

    A file of Pillow's that was opened but not decoded is read as the file it is, so that its pixels
    are those that the commands see.

    Raises:
        ImageError: it cannot be read, or is nothing that can be an image.
    """
    match picture:
        case str() | Path():
            return stored_file(read_image(Path(picture).expanduser(), name), name)
        case bytes():
            return stored_file(picture, name)
        case Image.Image():
            return _of_pillow(picture, name)
        case torch.Tensor():
            return _of_tensor(picture, name)
        case np.ndarray():
            return _of_array(picture, name)
    raise ImageError(
        f"{name} is of type {type(picture).__name__}: give a path, bytes, an image of Pillow, or "
        "an array or tensor of uint8"
    )


def several(pictures: Picture | Iterable[Picture]) -> list[Picture]:
    """Return images as a list: one alone, a batch in an array or tensor, or any number of them.

    Raises:
        DataError: nothing there.
    """
    if isinstance(pictures, str | Path | bytes | Image.Image):
        return [pictures]
    if isinstance(pictures, Tensor | np.ndarray) and pictures.ndim < 4:
        return [cast(Picture, pictures)]
    found: list[Picture] = list(cast(Iterable[Picture], pictures))
    if not found:
        raise DataError("no images given")
    return found


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
    pixels = picture[..., None] if picture.ndim == 2 else picture
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise ImageError(
            f"{name} has shape {picture.shape}: give (rows, columns) or (rows, columns, channels) "
            "with 1, 3 or 4 channels"
        )
    if pixels.shape[2] == 4:  # transparent pixels are seen over white, as those of files
        return PillowImage(Image.fromarray(np.ascontiguousarray(pixels)), name)
    return PixelImage(np.ascontiguousarray(pixels), name)
