"""What the map and the list of likely label errors show: plain values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Spot:
    """One image of the map.

    Attributes:
        name: what its source calls it
        truth: its class, or its classes
        guess: the predicted class, or classes
        confidence: the highest probability of a class
        kind: number of its class; -1 where there may be several
        wrong: whether another class is predicted
        doubted: whether its label is likely wrong
        at: x and y, from 0 to 1, y downwards
        cell: column and row in the grid of pictures
    """

    name: str
    truth: str
    guess: str
    confidence: float
    kind: int
    wrong: bool
    doubted: bool
    at: tuple[float, float]
    cell: tuple[int, int]


@dataclass(frozen=True, eq=False)
class ImageMap:
    """What the map shows.

    Attributes:
        spots: the images
        sheet: their thumbnails in the cells of the grid, uint8 (rows * side, columns * side, 3)
        columns: of the grid
        rows: of the grid
        aspect: width of the points to their height
        of: test images that there are
        sampled: images that were chosen at random; all if there are few
    """

    spots: list[Spot]
    sheet: NDArray[np.uint8]
    columns: int
    rows: int
    aspect: float
    of: int
    sampled: int


@dataclass(frozen=True)
class Doubt:
    """An image whose label is likely wrong.

    Attributes:
        pixels: the image, uint8 (H, W) or (H, W, 3); None if it can no longer be read
        name: what its source calls it
        given: its label, or its labels
        better: what it likely is
        own: probability of the label; where there are several, of the one most in doubt
        other: probability of the likely class; None where there are several
    """

    pixels: NDArray[np.uint8] | None
    name: str
    given: str
    better: str
    own: float
    other: float | None


@dataclass(frozen=True)
class Doubts:
    """The section on labels.

    Attributes:
        shown: likeliest error first
        listed: how many labels are likely wrong
        expected: how many are estimated to be wrong in all
        images: that were looked at
        several: whether images have several labels
    """

    shown: list[Doubt]
    listed: int
    expected: float
    images: int
    several: bool


@dataclass(frozen=True, eq=False)
class Atlas:
    """The two sections.

    Attributes:
        doubts: the labels that are likely wrong
        image_map: the test images in the plane; None if they could not be placed
    """

    doubts: Doubts
    image_map: ImageMap | None
