"""`vitlab.duplicates`: near-duplicates of one set of images in another."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.duplicates.finding import Pairs, find
from vitlab.data.duplicates.signatures import signatures
from vitlab.data.open import Opened, open_images
from vitlab.data.settings import Columns
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.request import Given


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two sets of images, or one, and the pairs that were found.

    Attributes:
        train: the first set
        test: the second set; the first again if pairs within it were asked for
        pairs: numbers and scores
        damaged: messages about images that cannot be decoded
        seconds: that it took
    """

    train: Source
    test: Source
    pairs: Pairs
    damaged: list[str]
    seconds: float

    @property
    def within(self) -> bool:
        """Whether one set was compared with itself."""
        return self.train is self.test

    @property
    def images(self) -> int:
        """How many images were read."""
        return len(self.train) + (0 if self.within else len(self.test))


def duplicates(
    train: Given,
    test: Given | None = None,
    *,
    columns: Columns | None = None,
    workers: int | None = None,
) -> list[tuple[int, int, float]]:
    """Return the near-duplicates of test images among training images.

    Pictures are found again after resizing to half their size or more, re-compression, a crop of
    90% of each side, mirroring, and these together; see docs/duplicates.md for what was measured.
    Blank images and damaged ones are in no pair.

    Args:
        train: DATA as for training, a folder of images, a source, or a list of files; of data that
            comes in splits, its training images
        test: the same; of data that comes in splits, its test images. None compares the splits of
            `train`, or finds pairs within it, each once
        columns: which columns of a list or a table hold what; None to find them
        workers: processes that decode; None to choose

    Returns:
        (i, j, score) with i an index into the training images and j into the test images, in the
        order of the data (files of a folder by name, class by class), sorted by j, best first. The
        score is the correlation of details after alignment, from 0.93; 1 for the same bytes.

    Raises:
        DataError: no such data, or no images in it.
    """
    return compare(*sets(train, test, columns), workers=workers).pairs.tuples()


def sets(
    train: Given, test: Given | None = None, columns: Columns | None = None
) -> tuple[Source, Source | None]:
    """Return the two sets of images to compare; None for the first one with itself.

    Raises:
        DataError: no such data, or no images in it.
    """
    first = open_images(train, "optional", columns=columns)
    if test is not None:
        return _side(first, "train"), _side(open_images(test, "optional", columns=columns), "test")
    if first.unsplit is not None:
        return first.every(), None
    splits = first.splits()
    return splits.train, splits.test


def _side(opened: Opened, split: str) -> Source:
    """Return one split of data in splits, its training images if it lacks that; else everything."""
    if opened.unsplit is not None:
        return opened.every()
    return opened.parts.get(split, opened.parts["train"])


def compare(
    train: Source,
    test: Source | None = None,
    *,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Comparison:
    """Decode the images of one set or two, and find their pairs.

    Args:
        train: the first set
        test: the second set; None for pairs within the first
        workers: processes that decode; None to choose
        progress: called now and then with the number of images decoded
    """
    start = time.monotonic()
    signed = [signatures(train, workers=workers, progress=progress)]
    if test is not None:

        def onward(images: int) -> None:
            progress(len(train) + images)

        signed.append(signatures(test, workers=workers, progress=onward))
    pairs = find(signed[0], None if test is None else signed[1])
    bad = [message for each in signed for message in each.damaged.values()]
    return Comparison(train, test or train, pairs, bad, time.monotonic() - start)
