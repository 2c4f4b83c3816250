"""The file beside weights that lists the images that their model has learned from."""

from pathlib import Path

import numpy as np

from vitlab.files import SEEN, staged_file
from vitlab.models.seen import NOTHING, Seen


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
