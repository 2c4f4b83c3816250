"""Data opened once for several runs."""

from dataclasses import replace

from vitlab.data.images import Images
from vitlab.data.loading.cache import PixelCache, cached
from vitlab.data.open_splits import open_to_learn, with_identities
from vitlab.data.settings import Data
from vitlab.data.sources.request import MaskReading, TargetKind
from vitlab.data.splits import Splits


class OpenedData:
    """Data opened once for several runs: `vitlab.train(..., opened=opened)`.

    A run has the same images, fingerprint and bits as without it. What changes on the disk after it
    was opened goes unnoticed; memory is held for as long as this object is.
    """

    def __init__(self) -> None:
        self._splits: dict[tuple[TargetKind, Data, MaskReading | None], Splits] = {}
        self._decoded: dict[tuple[int, int], PixelCache] = {}

    def splits(
        self, options: Data, target: TargetKind = "label", masks: MaskReading | None = None
    ) -> Splits:
        """Return all images of the data that the options name, opened now or before.

        Args:
            options: which data, and how to read it; which part of it a run uses plays no part
            target: what is learned of each image
            masks: how these are read

        Raises:
            DataError: the data cannot be used.
        """
        key = (
            target,
            replace(options, dev_share=0.0, fold="", train_images=0, drop_duplicates=False),
            masks,
        )
        if key not in self._splits:
            splits = open_to_learn(options.data, target, options, masks)
            self._splits[key] = with_identities(splits)
        return self._splits[key]

    def cached(self, source: Images, channels: int) -> Images:
        """Cache images as `loading.cache.cached`, without decoding any a second time.

        Args:
            source: images of `splits`, or a part of them
            channels: that the model has
        """
        if source.in_memory:
            return source
        store = source.store
        decoded = self._decoded.setdefault((id(store), channels), PixelCache(store, channels))
        return decoded.part(source) or cached(source, channels)
