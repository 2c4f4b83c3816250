"""Hash of what the system says of the files of a data set: computes its `DataMark`."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from vitlab.data.data_mark import DataMark
from vitlab.data.hashes import DIGEST
from vitlab.data.images import Images
from vitlab.data.target import Integers


class MarkHash:
    """Hashes what the system says of the files of a data set, a part after the other.

    Args:
        source: whose classes and labels count

    Attributes:
        is_whole: whether every image is in a file of which something is said
    """

    def __init__(self, source: Images) -> None:
        self.is_whole = True
        labels = repr(source.classes).encode(errors="surrogateescape") + source.target.content()
        self._names = blake2b(labels, digest_size=DIGEST)
        self._sizes = blake2b(digest_size=DIGEST)
        self._times = blake2b(digest_size=DIGEST)

    def add(self, names: Iterable[bytes], sizes: Integers, times: Integers) -> None:
        """Add files: their names, sizes in bytes and times in nanoseconds."""
        self._names.update(b"".join(name + b"\0" for name in names))
        self._sizes.update(sizes.tobytes())
        self._times.update(times.tobytes())

    def add_places(self, places: NDArray[np.int64]) -> None:
        """Add where images are in the file that was added last."""
        self._names.update(places.tobytes())

    @property
    def mark(self) -> DataMark | None:
        """The mark of all that was added; None where something is missing."""
        if not self.is_whole:
            return None
        return DataMark(self._names.hexdigest() + self._sizes.hexdigest(), self._times.hexdigest())
