"""Images in memory, and the digits that come with the package."""

from dataclasses import dataclass
from importlib.resources import as_file, files
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.stored import PixelImage
from vitlab.data.holdout import hold_out
from vitlab.data.labels import Labels, SingleLabels
from vitlab.data.sources.request import Found, Part, Request
from vitlab.errors import DataError

DIGITS = "digits"


@dataclass(frozen=True)
class Arrays:
    """Pixels in memory, uint8 (n, rows, columns, channels).

    Raises:
        DataError: arrays that do not fit together.
    """

    images: NDArray[np.uint8]
    labels: Labels
    classes: tuple[str, ...]
    title: str = "image"
    in_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Check that images, labels and classes belong together."""
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise DataError("images must be uint8 of shape (n, rows, columns, channels)")
        if len(self.images) != len(self.labels):
            raise DataError(f"{len(self.images)} images have {len(self.labels)} labels")
        if self.classes and not self.labels.fit(len(self.classes)):
            raise DataError(f"labels must index {len(self.classes)} classes")

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> PixelImage:
        """Return the pixels of one image."""
        return PixelImage(self.images[index], self.name(index))

    def name(self, index: int) -> str:
        """Return the title and the number."""
        return f"{self.title} {index}"


def digits() -> Arrays:
    """Return the 1,797 scanned digits that scikit-learn ships, 8x8 gray.

    Source: UCI, optical recognition of handwritten digits.
    """
    with as_file(files("vitlab.data.sources") / "digits.npz") as file, np.load(file) as stored:
        gray, labels = stored["images"], stored["labels"]
    pixels = np.round(gray * (255 / 16)).astype(np.uint8)[..., None]
    return Arrays(pixels, SingleLabels(labels.astype(np.int64)), tuple("0123456789"), "digit")


def open_digits(request: Request) -> Found | None:
    """Open `digits`, with a fixed split; None for other names."""
    if request.data != DIGITS:
        return None
    own = digits()
    if request.labels == "ignored":
        return Found([Part(own)])
    splits = hold_out(own, 0.2, split_by="position")
    return Found([Part(splits.train, "train"), Part(splits.test, "test")], splits.notes)
