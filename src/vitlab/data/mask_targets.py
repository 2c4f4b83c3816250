"""Masks: the class of each pixel of images, each mask read when its image is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.decode.headers import complaints_are_errors, opened, turn
from vitlab.data.decode.pixels import Box
from vitlab.data.images import Images
from vitlab.data.sources.paths import Names, read_image, some
from vitlab.data.target import IGNORED, Indices, Integers, SpatialTarget
from vitlab.errors import DataError, ImageError
from vitlab.models.heads.mask_classes import LARGEST, MaskClasses, Truth

MaskNumbers = NDArray[np.integer[Any]]  # (rows, columns), as stored
UNKNOWN = -2
FORMATS = ("PNG", "BMP", "TIFF")  # without loss


@dataclass(frozen=True, eq=False)
class MaskStore:
    """Where masks lie, and what their numbers mean.

    Attributes:
        masks: a file or an array of numbers, of each image
        names: of the images, in messages
        known: the classes of the numbers
        turns: the EXIF orientation by which each mask is turned with its image; empty: none is
        moved: the index that each of the known classes has; None for their own order
    """

    masks: Sequence[Any]
    names: Names
    known: MaskClasses = MaskClasses()
    turns: Sequence[int] = ()
    moved: Integers | None = None

    def __len__(self) -> int:
        return len(self.masks)

    def numbers(self, number: int) -> MaskNumbers:
        """Return the numbers of a mask, (rows, columns), turned with its image.

        Raises:
            ImageError: it is missing, damaged, or does not hold a number for each pixel.
        """
        mask = self.masks[number]
        numbers: Any
        if isinstance(mask, str | Path):
            numbers = read_numbers(read_image(Path(mask), str(mask)), str(mask))
        else:
            numbers = _check_numbers(np.asarray(mask), f"the mask of {self.names[number]}")
        if self.turns:
            numbers = turn(numbers[..., None], self.turns[number])[..., 0]
        return numbers

    def truth(self, number: int, size: tuple[int, int]) -> Truth:
        """Return the class of each pixel of an image of so many rows and columns.

        Raises:
            ImageError: as `numbers`, or a mask of another size.
            DataError: a number that is no class.
        """
        numbers = self.numbers(number)
        name = self.names[number]
        if numbers.shape != size:
            has, wants = (f"{rows} x {columns}" for rows, columns in (numbers.shape, size))
            raise ImageError(f"{name}: its mask has {has} pixels, the image {wants}")
        values = self.known.values
        table = np.full(LARGEST, UNKNOWN, np.int16)
        table[list(values)] = np.arange(len(values)) if self.moved is None else self.moved
        if self.known.ignored is not None:
            table[self.known.ignored] = IGNORED
        classes: Truth = table[numbers]
        if (unknown := classes == UNKNOWN).any():
            raise DataError(
                f"the mask of {name} has the number {numbers[unknown][0]}, which is none of the "
                f"{len(values)} classes ({some([*map(str, values)])}): name all classes with "
                "--class-names where they are learned first (vitlab probe --task segment), or "
                f"store {self.known.ignored} where a pixel does not count"
            )
        return classes


@dataclass(frozen=True, eq=False)
class MaskTargets(SpatialTarget):
    """The classes of images' pixels.

    Attributes:
        store: of the masks
        rows: the number of each image's mask there, int64 (n,)
    """

    store: MaskStore
    rows: Integers
    kind: ClassVar[str] = "mask"
    tests_some: ClassVar[bool] = True
    again: ClassVar[str] = "with another mask"

    @classmethod
    def of(cls, store: MaskStore) -> Self:
        """Return all masks of a store."""
        return cls(store, np.arange(len(store)))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, places: Indices) -> Self:
        """Return the masks of some of the images."""
        return replace(self, rows=self.rows[np.asarray(places, np.int64)])

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the masks of the images of several parts, one after the other."""
        if all(part.store is parts[0].store for part in parts):
            return cls(parts[0].store, np.concatenate([part.rows for part in parts]))
        stores = [part.store for part in parts]
        starts = np.cumsum([0, *map(len, stores)]).tolist()
        turns = list[int]()
        for store in stores:
            turns += store.turns or [1] * len(store)
        joined = replace(
            stores[0],
            masks=[store.masks[number] for store in stores for number in range(len(store))],
            names=Names.joined([store.names for store in stores]),
            turns=turns if any(store.turns for store in stores) else (),
        )
        rows = [part.rows + start for part, start in zip(parts, starts, strict=False)]
        return cls(joined, np.concatenate(rows))

    def reindexed(self, moved: Integers, count: int) -> Self:
        """Return the same masks, whose numbers mean other classes."""
        store = self.store
        order = moved if store.moved is None else moved[store.moved]
        return replace(self, store=replace(store, moved=order))

    def with_classes(self, known: MaskClasses) -> Self:
        """Return the same masks, whose numbers have these classes."""
        return replace(self, store=replace(self.store, known=known))

    def numbers(self, row: int) -> MaskNumbers:
        """Return the numbers of an image's mask, (rows, columns), as `MaskStore.numbers`."""
        return self.store.numbers(int(self.rows[row]))

    def truth(self, row: int, size: tuple[int, int]) -> Truth:
        """Return the class of each pixel of an image, as `MaskStore.truth`."""
        return self.store.truth(int(self.rows[row]), size)

    def batch(self) -> Integers:
        """Return which masks these are, int64 (n, 1): pixels are read by `cropped`."""
        return self.rows[:, None]

    def are_equal(self, one: int, other: int) -> bool:
        """Return whether two images have the same mask; one that cannot be read equals any."""
        try:
            return np.array_equal(self.numbers(one), self.numbers(other))
        except ImageError:  # it is reported where it is used
            return True

    def classes_of(self, row: int) -> tuple[int, ...]:
        """Return the classes of one image: none, as long as its pixels are not read."""
        return ()

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class: all of them, as long as none is read."""
        return [len(self)] * classes

    def content(self) -> bytes:
        """Return what a fingerprint has of them: which ones they are."""
        return self.rows.tobytes()

    def cropped(
        self, row: int, box: Box, size: tuple[int, int], shape: tuple[int, int]
    ) -> NDArray[np.int16]:
        """Return the classes of the nearest pixels, (rows, columns)."""
        left, top, right, bottom = map(round, box)  # as training cuts images
        sides = zip((top, left), (bottom, right), size, shape, strict=True)
        rows, columns = (
            np.clip(first + (np.arange(out) + 0.5) * (last - first) / out, 0, most - 1)
            for first, last, out, most in sides
        )
        whole = self.truth(row, shape)
        return whole[np.ix_(rows.astype(np.int64), columns.astype(np.int64))]

    @staticmethod
    def mirrored(targets: Tensor) -> Tensor:
        """Return classes of pixels with left and right exchanged."""
        return targets.flip(-1)


def masks_of(images: Images) -> MaskTargets:
    """Return the masks of images that have some."""
    assert isinstance(images.target, MaskTargets)
    return images.target


def read_numbers(data: bytes, name: str) -> MaskNumbers:
    """Return the number of each pixel of an image file, (rows, columns): what palettes index.

    Raises:
        ImageError: another format, damaged, too large, or colors.
    """
    with opened(data, name, formats=FORMATS) as header:
        image = header.image
        if image.mode not in ("1", "L", "P", "I", "I;16", "I;16B"):
            raise ImageError(
                f"a mask in colors ({image.mode}): store a class number per pixel, gray or palette"
            )
        with complaints_are_errors(image):
            image.load()
        numbers = np.asarray(image)
        depth = data[24] if image.format == "PNG" and image.mode == "L" else 8
        if depth in (2, 4):  # Pillow widens such grays to 8 bits
            numbers = numbers // (255 // (2**depth - 1))
        return _check_numbers(turn(numbers[..., None], header.orientation)[..., 0], name)


def _check_numbers(numbers: MaskNumbers, name: str) -> MaskNumbers:
    """Return numbers that can be those of a mask."""
    if numbers.ndim != 2 or not (numbers.dtype == bool or np.issubdtype(numbers.dtype, np.integer)):
        raise ImageError(
            f"{name}: {numbers.dtype} of shape {numbers.shape}; a mask is whole numbers, (rows, "
            "columns)"
        )
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < LARGEST:
        raise ImageError(f"{name}: class numbers must be from 0 to {LARGEST - 1:,}")
    return numbers.astype(np.uint16)
