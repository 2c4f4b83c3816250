"""Images that a model has learned from: 8 bytes each, kept beside its weights.

An array of uint64 (n,), sorted; weights/seen_file.py has its file. The lowest bit says
whether the image was learned with a label; the others are those of `data.identities`. What
makes one model of others has the union. `UNIDENTIFIED` (data/contents.py), the hash of no image,
stands for all those of a training that ended before it had read them.
"""

import numpy as np
from numpy.typing import NDArray

Seen = NDArray[np.uint64]
NOTHING: Seen = np.empty(0, np.uint64)
LABELED = np.uint64(1)


def marked(identities: Seen, *, labeled: bool) -> Seen:
    """Return images, uint64 (n,), as seen with labels or without."""
    return np.unique(identities & ~LABELED | np.uint64(labeled))


def known(identities: Seen, seen: Seen, *, labeled: bool) -> NDArray[np.bool_]:
    """Return which images were learned from with labels, or without; bool (n,)."""
    return np.isin(identities & ~LABELED | np.uint64(labeled), seen)
