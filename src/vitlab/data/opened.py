"""Data that several runs of a process learn from: opened once, and each image decoded once."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitlab.data.composed import Relabeled
from vitlab.data.loading.cache import Decoded, cached
from vitlab.data.pretraining_images import open_images
from vitlab.data.settings import Data
from vitlab.data.sources.memory.given import Given
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source, Subset
from vitlab.data.sources.splits import Splits


class OpenedData:
    """What runs by name have opened, for the runs after them: `vitlab.train(..., opened=opened)`.

    A run has the same images, fingerprint and bits as without it. What changes on the disk after it
    was opened goes unnoticed; memory is held for as long as this object is.
    """

    def __init__(self) -> None:
        self._splits: dict[tuple[bool, Data], Splits] = {}
        self._decoded: dict[tuple[int, int], Decoded] = {}

    def splits(self, options: Data, unlabeled: bool) -> Splits:
        """Return all images of the data that the options name, opened now or before.

        Args:
            options: which data, and how to read it; which part of it a run uses plays no part
            unlabeled: whether to learn without labels

        Raises:
            DataError: the data cannot be used.
        """
        key = (
            unlabeled,
            replace(options, dev_share=0.0, fold="", train_images=0, drop_duplicates=False),
        )
        if key not in self._splits:
            self._splits[key] = open_splits(options.data, options, unlabeled)
        return self._splits[key]

    def cached(self, source: Source, channels: int) -> Source:
        """Return what `loading.cache.cached` does; no image is decoded a second time.

        Args:
            source: images of `splits`, or a part of them
            channels: that the model has
        """
        if source.in_memory:
            return source
        whole, numbers = _origin(source)
        decoded = self._decoded.setdefault((id(whole), channels), Decoded(whole, channels))
        return decoded.part(source, numbers) or cached(source, channels)


def open_splits(data: Given, options: Data, unlabeled: bool) -> Splits:
    """Open data to learn from, with labels or without.

    Args:
        data: as a user names it, or in memory
        options: how to read it
        unlabeled: whether to learn without labels

    Raises:
        DataError: the data cannot be used.
    """
    if unlabeled:
        return open_images(data, options)
    return open_data(data, options.test_fraction, columns=options)


def _origin(source: Source) -> tuple[Source, NDArray[np.int64]]:
    """Return the source that a part was taken from, and the numbers of its images there."""
    match source:
        case Subset(whole, indices):
            origin, numbers = _origin(whole)
            return origin, numbers[indices]
        case Relabeled(whole=whole):
            return _origin(whole)
    return source, np.arange(len(source))
