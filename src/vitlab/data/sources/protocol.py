"""A source: labeled images by number."""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.stored import StoredImage
from vitlab.data.labels import Labels


@runtime_checkable
class Source(Protocol):
    """Labeled images by number. Cheap to pickle: each worker process gets a copy."""

    @property
    def in_memory(self) -> bool:
        """Whether the images are pixels in memory, so that no process is needed to decode them."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order that the labels index."""

    @property
    def labels(self) -> Labels:
        """The labels of all images."""

    def __len__(self) -> int:
        """Return the number of images."""

    def image(self, index: int) -> StoredImage:
        """Return one image, not yet decoded; may raise `ImageError`."""

    def name(self, index: int) -> str:
        """Return what to call an image in a message."""


@dataclass(frozen=True)
class Derived:
    """What a source made from another one passes on unchanged; a subclass gives the images."""

    whole: Source

    @property
    def in_memory(self) -> bool:
        """As the whole source."""
        return self.whole.in_memory

    @property
    def classes(self) -> tuple[str, ...]:
        """As the whole source."""
        return self.whole.classes

    @property
    def labels(self) -> Labels:
        """As the whole source."""
        return self.whole.labels

    def __len__(self) -> int:
        return len(self.whole)

    def name(self, index: int) -> str:
        """As the whole source."""
        return self.whole.name(index)


@dataclass(frozen=True)
class Subset(Derived):
    """Some images of another source, by their numbers there."""

    indices: NDArray[np.int64]

    @cached_property
    def labels(self) -> Labels:
        """The labels of these images."""
        return self.whole.labels.take(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, index: int) -> StoredImage:
        """Return the image that the whole source has there."""
        return self.whole.image(int(self.indices[index]))

    def name(self, index: int) -> str:
        """Return the name that the whole source has for it."""
        return self.whole.name(int(self.indices[index]))


def counts(source: Source) -> dict[str, int]:
    """Count the images of each class."""
    return dict(zip(source.classes, source.labels.counts(len(source.classes)), strict=True))
