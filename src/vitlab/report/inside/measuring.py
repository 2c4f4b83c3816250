"""Measuring a model's weights and all images together, each part noted if it fails."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitlab import inspect
from vitlab.errors import OptionError
from vitlab.inspect.look import Look, attention_bytes
from vitlab.inspect.weights import first_kernel
from vitlab.models.model import Model
from vitlab.report.inside.looked import Floats, Looked
from vitlab.units import si

FILTERS = 28  # as in the ViT paper
MOST = 2**32  # bytes of an image's attention maps


def tried(found: Looked, name: str, what: Callable[[], Tensor]) -> Floats | None:
    """Return an array, or None and a note of why it has no meaning here."""
    try:
        result: Floats = what().float().cpu().numpy()
    except OptionError as error:
        found.lacks(name, str(error))
        return None
    return result


def look_at_weights(model: Model, found: Looked) -> None:
    """Look at what needs no image: filters and positions."""
    kernel = first_kernel(model)
    count = min(FILTERS, len(kernel), kernel[0].numel())
    found.filters = tried(found, "filters", lambda: inspect.embedding_filters(model, count))
    found.positions = tried(found, "positions", lambda: inspect.position_similarity(model))


class Sums:
    """What is measured of all images, of which nothing but sums is kept.

    Args:
        found: gets the means, and notes of what is missing
    """

    def __init__(self, found: Looked) -> None:
        self.found, self._sums = found, dict[str, NDArray[np.float64]]()
        self._wanted: dict[str, Callable[[Look], dict[str, Tensor]]] = {
            "attention distance": _distances,
            "attention entropy": lambda seen: {"entropy": inspect.attention_entropy(roomy(seen))},
            "token norms": _norms,
            "token similarity": lambda seen: {"alike": inspect.token_similarity(seen).mean(0)},
        }

    def add(self, seen: Look) -> None:
        """Measure a pass of some images."""
        found = self.found
        for name, measure in list(self._wanted.items()):
            try:
                parts = measure(seen)
            except OptionError as error:
                found.lacks(name, str(error))
                del self._wanted[name]
                continue
            for field, value in parts.items():
                part: Floats = value.float().cpu().numpy()
                if field == "longest":
                    found.longest = np.maximum(
                        part, part if found.longest is None else found.longest
                    )
                else:
                    own = part.astype(np.float64) * len(seen.images)
                    self._sums[field] = own + self._sums.get(field, 0)
        found.count += len(seen.images)

    def close(self) -> None:
        """Write down the means."""
        found = self.found
        for field, total in self._sums.items():
            setattr(found, field, (total / found.count).astype(np.float32))
        if found.alike is not None and not np.isfinite(found.alike).any():
            found.alike = None  # a single patch has none to be alike to


def roomy(seen: Look) -> Look:
    """Return a pass with its attention kept, which fits into memory one image at a time.

    Raises:
        OptionError: it does not, and it says how large it is; or there is none.
    """
    size = attention_bytes(seen.model, seen.images)
    if size > MOST:
        tokens = seen.layers[-1].shape[1]
        raise OptionError(
            f"the attention maps of {tokens:,} tokens take {si(size)}B of memory per image, more "
            f"than {si(MOST)}B: pass a smaller --image-size"
        )
    return seen.kept()


def _distances(seen: Look) -> dict[str, Tensor]:
    room = roomy(seen)
    return {
        "distance": inspect.attention_distance(room),
        "among": inspect.attention_distance(room, among_patches=True),
        "elsewhere": inspect.attention_elsewhere(room),
    }


def _norms(seen: Look) -> dict[str, Tensor]:
    """Return the mean and the largest length of patches, (layers + 1,) each."""
    patches = inspect.token_norms(seen)[:, :, getattr(seen.model.config, "prefix", 0) :]
    return {"norms": patches.mean((0, 2)), "longest": patches.amax((0, 2))}
