"""A batch: images that go through the model together, with labels, draws and numbers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from vitlab.models.packed import Packed

COMPUTED = ("images", "labels")  # on the training device
TENSORS = (*COMPUTED, "draws", "indices")


@dataclass(frozen=True)
class Batch:
    """Images that go through the model together, without those that cannot be decoded.

    Attributes:
        images: uint8 (B, H, W, C), or packed where each has its own size
        labels: int64 (B,); float32 (B, classes), 0 or 1, where images have several; int16 (B, H, W)
            where each pixel has one
        draws: float32 (B, `draws_needed`), random numbers for `augment`; (B, 0) in evaluation
        indices: int64 (B,), which images of the source these are
        bad: index and message of each image that could not be decoded
        total: images of the whole batch, where this is the slice of one of several processes
        views: further crops of the same images, of one size each
    """

    images: Tensor | Packed
    labels: Tensor
    draws: Tensor
    indices: Tensor
    bad: list[tuple[int, str]] = field(default_factory=list)
    total: int = 0
    views: tuple["Batch", ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Batch":
        """Return the same batch on another device; draws and indices, for the host, stay there."""
        later = device.type == "cuda"  # Apple's GPU may copy what is freed
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=later), COMPUTED)

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory, from which a copy to a GPU does not wait for it.

        PyTorch's `DataLoader` asks for it.
        """
        return self._mapped(lambda tensor: tensor.pin_memory(), COMPUTED)

    def pieces(self, size: int) -> Iterator["Batch"]:
        """Split the batch into pieces of at most `size` images, for gradient accumulation.

        An even number where possible, so that neighbors, which are mixed, stay together.
        """
        if size < len(self):
            size = max(1, size - size % 2)
        for first in range(0, len(self), size):
            yield self._mapped(itemgetter(slice(first, first + size)))

    def _mapped(self, change: Callable[[Any], Any], fields: tuple[str, ...] = TENSORS) -> "Batch":
        """Return this batch with some of its tensors changed, and everything else as it is."""
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in fields}
        views = tuple(view._mapped(change, fields) for view in self.views)
        return replace(self, **changed, views=views)
