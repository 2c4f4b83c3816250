"""A store whose images are altered once they are decoded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import StoredImage
from vitlab.data.identifier import Identifier, Identities
from vitlab.data.identities import identify_in_store, recall_in_store
from vitlab.data.mark_hash import MarkHash
from vitlab.data.stores import Store, read_ahead_in
from vitlab.data.target import Integers


@dataclass(frozen=True, eq=False)
class Altered:
    """A store whose images pass through a function once they are decoded.

    Attributes:
        whole: the store
        change: takes and returns pixels (rows, columns, channels); a function of a module, so that
            worker processes can receive it
    """

    whole: Store
    change: Callable[[Pixels], Pixels]

    @property
    def in_memory(self) -> bool:
        """As the whole store."""
        return self.whole.in_memory

    def __len__(self) -> int:
        return len(self.whole)

    def image(self, number: int) -> "AlteredImage":
        """Return the image, to be changed when it is decoded."""
        image = self.whole.image(number)
        return AlteredImage(image, image.name, self.change)

    def name(self, number: int) -> str:
        """As the whole store."""
        return self.whole.name(number)

    def read_ahead(self, numbers: Integers) -> None:
        """As the whole store."""
        read_ahead_in(self.whole, numbers)


@dataclass(frozen=True)
class AlteredImage(StoredImage):
    """A stored image, and what happens to its pixels before a box is cut from them."""

    stored: StoredImage
    name: str
    change: Callable[[Pixels], Pixels]

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels after the change."""
        empty = np.broadcast_to(np.uint8(0), self.stored.shape())
        rows, columns, channels = self.change(empty).shape
        return rows, columns, channels

    def decode(self, channels: int) -> Pixels:
        """Return the whole image, changed."""
        return self.change(self.stored.decode(channels))

    def content(self) -> bytes:
        """Return the stored bytes."""
        return self.stored.content()


def identify_altered(store: Altered, numbers: Integers) -> Identities:
    """Return what identifies some images before they are altered, uint64 (n,)."""
    return identify_in_store(store.whole, numbers)


def recall_altered(store: Altered, numbers: Integers, files: MarkHash) -> Identities | None:
    """Return the same where all are remembered; else None."""
    return recall_in_store(store.whole, numbers, files)


AS_STORED = Identifier(identify_altered, recall_altered)
