"""Images that a model has learned from: 8 bytes each, kept beside its weights.

An array of uint64 (n,), sorted. The lowest bit says whether the image was learned with a label; the
others are those of `data.holdout.identities`. What makes one model of others has the union.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vitlab.files import SEEN, staged_file

Seen = NDArray[np.uint64]
NOTHING: Seen = np.empty(0, np.uint64)
LABELED = np.uint64(1)


def marked(identities: Seen, *, labeled: bool) -> Seen:
    """Return images, uint64 (n,), as seen with labels or without."""
    return np.unique(identities & ~LABELED | np.uint64(labeled))


def known(identities: Seen, seen: Seen, *, labeled: bool) -> NDArray[np.bool_]:
    """Return which images were learned from with labels, or without; bool (n,)."""
    return np.isin(identities & ~LABELED | np.uint64(labeled), seen)


def read_seen(folder: Path) -> Seen:
    """Return what a folder of weights says that its model has seen; nothing if it does not say."""
    try:
        found = np.load(folder / SEEN, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return NOTHING
    return found if found.dtype == np.uint64 and found.ndim == 1 else NOTHING


def write_seen(seen: Seen, folder: Path, name: str = SEEN) -> None:
    """Write it into a folder of weights, or beside a file of them."""
    if len(seen):
        with staged_file(folder / name) as draft, draft.open("wb") as file:
            np.save(file, seen)
