"""What was computed from weights, kept until they change."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")
MOST = 256  # entries, the oldest of which goes first


class Kept(Generic[Made]):
    """Results of a computation on weights, each kept for as long as the weights are what they were.

    An entry holds the tensors it was made from, with their storage and version: PyTorch counts
    how often a tensor was changed in place. Writing to a tensor's `.data` is not counted, so
    whoever may have done so calls `clear`.
    """

    def __init__(self) -> None:
        self.entries: dict[Hashable, tuple[Made, list[tuple[Tensor, int, int]]]] = {}

    def get(self, key: Hashable, weights: list[Tensor], make: Callable[[], Made]) -> Made:
        """Return what `make` returns for a key, made again only if the weights changed.

        Where gradients should reach the weights, and where nothing can be kept (tensors without a
        version, a program being traced), it is made each time.

        Args:
            key: what else it depends on
            weights: that it is made from
            make: computes it
        """
        learning = torch.is_grad_enabled() and any(weight.requires_grad for weight in weights)
        traced = torch.compiler.is_compiling() or any(each.is_inference() for each in weights)
        if learning or traced:
            return make()
        state = [(weight, weight.data_ptr(), weight._version) for weight in weights]
        if (entry := self.entries.get(key)) is not None and _same(entry[1], state):
            return entry[0]
        with torch.inference_mode(False), torch.no_grad():  # also of use in training
            made = make()
        while len(self.entries) >= MOST:
            del self.entries[next(iter(self.entries))]
        self.entries[key] = made, state
        return made

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()


def _same(before: list[tuple[Tensor, int, int]], now: list[tuple[Tensor, int, int]]) -> bool:
    pairs = zip(before, now, strict=True)
    return all(old[0] is new[0] and old[1:] == new[1:] for old, new in pairs)
