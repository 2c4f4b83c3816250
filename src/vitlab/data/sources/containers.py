"""Files that hold many images of a source: archives, and files of tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from vitlab.data.decode.stored import EncodedImage
from vitlab.data.target import Integers


@dataclass(frozen=True)
class CellFileImage(EncodedImage):
    """An image in a file of its own, which a cell of a table names."""


class Container(NamedTuple):
    """Files that together hold some images of a source.

    Attributes:
        files: their paths
        rows: of the images in the source
        places: what tells the images apart in the files, (n,)
        part: which part of the files' content they are, such as a column
    """

    files: Sequence[str]
    rows: slice
    places: Integers
    part: str = ""


@runtime_checkable
class Contained(Protocol):
    """A source whose images are in a few files."""

    def containers(self) -> list[Container]:
        """Return the files, each with its images; none whose state does not tell the images."""
