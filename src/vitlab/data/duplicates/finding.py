"""Near-duplicates: the pairs of images of two data sets that show the same picture.

Nobody has published the detector with which the papers cleaned their training sets (BiT, appendix
C; ViT, section 4.1). This one was chosen and measured here: docs/duplicates.md.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.duplicates.alignment import FLAT, PROMISING, agreement, glance, richness
from vitlab.data.duplicates.candidates import Candidates, Cells
from vitlab.data.duplicates.signatures import Signatures, signatures
from vitlab.data.images import Images
from vitlab.data.open import Opened, open_images
from vitlab.data.open_splits import split_opened
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given
from vitlab.data.target import Integers
from vitlab.progress import named_if_slow

_ALLOWED = 43.0  # units that a pair may miss, times the shorter side in pixels: 1.34 at 32 pixels
_LEAST, _MOST = 0.5, 3.0  # units that a pair may always miss, and at most
_SURE = 0.93  # least agreement: small things on a plain sky miss few units, whatever they are
SMALL = 12  # pixels: of smaller pictures only exact copies are recognized
_BATCH = 2048


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of near-duplicates, by test image, best first.

    Attributes:
        train: numbers of training images, int64 (m,)
        test: numbers of test images, int64 (m,)
        scores: agreement of their details, float64 (m,); 1 for the same bytes
        exact: whether the stored bytes are the same, bool (m,)
        flat: how many images of either set are too empty to be recognized, and are left out
    """

    train: Integers
    test: Integers
    scores: NDArray[np.float64]
    exact: NDArray[np.bool_]
    flat: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.train)

    def tuples(self) -> list[tuple[int, int, float]]:
        """Return (train, test, score) of each pair."""
        return list(zip(self.train.tolist(), self.test.tolist(), self.scores.tolist(), strict=True))


@named_if_slow("looking for near-duplicates")
def find(train: Signatures, test: Signatures | None = None) -> Pairs:
    """Return the near-duplicates of test images among training images.

    A picture is found again after resizing (to half its size at least), re-compression, a crop of
    90% of its sides at any place, mirroring, and these together. Images with next to no details,
    such as blank pages, are left out: each would match all others. Of images whose shorter side is
    below 12 pixels only exact copies are found.

    Args:
        train: signatures of the training images
        test: signatures of the test images; None for pairs within the first set, each once
    """
    within = test is None
    test = train if test is None else test
    known, asked = _recognizable(train), _recognizable(test)
    flat = tuple(
        len(images) - len(images.damaged) - len(own)
        for images, own in ((train, known), (test, asked))
    )
    found = [_same_bytes(train, test, known, asked)]
    known, asked = (
        own[images.rows["sides"][own] >= SMALL] for images, own in ((train, known), (test, asked))
    )
    if len(known) and len(asked):
        cells = Cells(train.rows["luma"], known)
        for candidates in cells.candidates(test.rows["luma"], asked):
            found.append(_confirmed(train, test, candidates, within))
    i, j, scores, exact = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.lexsort((i, -scores, ~exact, j))
    if within:
        order = order[i[order] < j[order]]
    _, first = np.unique(np.stack([i, j])[:, order], axis=1, return_index=True)
    once = order[np.sort(first)]
    return Pairs(i[once], j[once], scores[once], exact[once], flat)


_Found = tuple[Integers, Integers, NDArray[np.float64], NDArray[np.bool_]]


def _recognizable(images: Signatures) -> Integers:
    """Return the images that are neither damaged nor flat."""
    rich = [torch.zeros(0)]
    for at in range(0, len(images), _BATCH):
        rich.append(richness(_tensor(images, "luma", slice(at, at + _BATCH))))
    return np.flatnonzero((torch.cat(rich) >= FLAT).numpy() & (images.rows["sides"] > 0))


def _same_bytes(train: Signatures, test: Signatures, known: Integers, asked: Integers) -> _Found:
    """Return the pairs of equal checksums among some images."""
    digests, wanted = train.rows["digests"], test.rows["digests"][asked]
    order = known[np.argsort(digests[known], kind="stable")]
    first = np.searchsorted(digests[order], wanted, "left")
    count = np.searchsorted(digests[order], wanted, "right") - first
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    i = order[np.repeat(first, count) + within]
    return i, np.repeat(asked, count), np.ones(len(i)), np.ones(len(i), bool)


def _confirmed(train: Signatures, test: Signatures, found: Candidates, within: bool) -> _Found:
    """Return the candidates that stand up to a close look."""
    i, j, guesses = (each[found[0] < found[1]] for each in found) if within else found
    views = torch.from_numpy(guesses)
    scores, missing = np.zeros(len(i)), np.full(len(i), np.inf)
    sides = np.minimum(train.rows["sides"][i], test.rows["sides"][j]).astype(np.float64)
    allowed = np.clip(_ALLOWED / sides, _LEAST, _MOST)
    for view in views.unbind(1):
        left = np.flatnonzero((missing > allowed) & (view >= 0).numpy())
        for at in range(0, len(left), _BATCH):
            each = left[at : at + _BATCH]
            again = glance(
                _tensor(train, "luma", i[each]), _tensor(test, "luma", j[each]), view[each]
            )
            each = each[(again > PROMISING).numpy()]
            luma, chroma = (
                (_tensor(train, kind, i[each]), _tensor(test, kind, j[each]))
                for kind in ("luma", "chroma")
            )
            score, lost = agreement(*luma, chroma, view[each])
            scores[each], missing[each] = score.numpy(), lost.numpy()
    good = (missing <= allowed) & (scores >= _SURE)
    return i[good], j[good], scores[good], np.zeros(int(good.sum()), bool)


def _tensor(images: Signatures, kind: str, rows: Integers | slice) -> Tensor:
    return torch.from_numpy(np.asarray(images.rows[kind][rows]))


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

    train: Images
    test: Images
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
        columns: the columns of a list or a table; None to find them
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
) -> tuple[Images, Images | None]:
    """Return the two sets of images to compare; None for the first one with itself.

    Raises:
        DataError: no such data, or no images in it.
    """
    first = open_images(train, "optional", columns=columns)
    if test is not None:
        return _side(first, "train"), _side(open_images(test, "optional", columns=columns), "test")
    if first.unsplit is not None:
        return first.every(), None
    splits = split_opened(first)
    return splits.train, splits.test


def _side(opened: Opened, split: str) -> Images:
    """Return one split of data in splits, its training images if it lacks that; else everything."""
    if opened.unsplit is not None:
        return opened.every()
    return opened.parts.get(split, opened.parts["train"])


def compare(
    train: Images,
    test: Images | None = None,
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
        more = signatures(test, workers=workers, progress=lambda n: progress(len(train) + n))
        signed.append(more)
    pairs = find(*signed)
    bad = [message for each in signed for message in each.damaged]
    return Comparison(train, test or train, pairs, bad, time.monotonic() - start)
