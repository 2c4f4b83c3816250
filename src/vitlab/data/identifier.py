"""An identifier: what computes, or remembers, hashes that identify images of a kind of store."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitlab.data.mark_hash import MarkHash
from vitlab.data.target import Integers

Identities = NDArray[np.uint64]


class Identifier(NamedTuple):
    """Two functions of a store and the numbers of some of its images.

    Attributes:
        identify: return 8 bytes for each, uint64 (n,), remembered or read now
        recall: return them where all are remembered, else None, and read no image; the mark gets
            what the system says of the files
    """

    identify: Callable[[Any, Integers], Identities]
    recall: Callable[[Any, Integers, MarkHash], Identities | None]
