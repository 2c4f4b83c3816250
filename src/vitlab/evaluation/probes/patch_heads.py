"""Linear heads on patch tokens: ridge in closed form and logistic regression, for segmentation.

A head is fitted to pixels: of each image some are drawn, always the same ones. A pixel's features
are the patch tokens bilinearly resized to the resized image, averaged over the windows that show
it: since a head is linear, its scores are then those that `evaluation.segmentation` gives to that
pixel, so that the fit minimizes the very loss of the pixels (DINOv2's linear protocol).

Ridge needs sums over the pixels alone (Gram matrices), so that its memory does not grow with the
images; logistic regression and the choice between heads keep pixels, up to a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch.nn import functional as F

from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.target import IGNORED
from vitlab.errors import DataError
from vitlab.evaluation.answers import Float32s, Integers, check_numbers
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.mask_figures import iou
from vitlab.evaluation.probes.blocks import Blocks, LinearHead
from vitlab.evaluation.probes.heads import PENALTIES, ROUGH, LogisticFits
from vitlab.evaluation.probes.ridge import RIDGES
from vitlab.evaluation.segmentation import Bad, Mapped, mapped
from vitlab.evaluation.temperature import temperature_of
from vitlab.models.config import ViTConfig
from vitlab.models.heads.segment import patch_features
from vitlab.models.model import Model
from vitlab.progress import Meter

PIXELS = 1024  # drawn of an image
# bytes and pixels of each kind (to fit, to choose) that are kept
KEPT = 2**27
ROWS = 40_000
SMALL = 1e-5  # added to standard deviations, as `heads.Blocks` does


class PixelSums:
    """Sums over pixels that a ridge regression needs: it is that of all pixels seen so far."""

    def __init__(self, width: int, classes: int) -> None:
        self.count = 0
        self.total = np.zeros(width)
        self.gram = np.zeros((width, width))
        self.by_class = np.zeros((width, classes))  # sums of the features of each class
        self.counts = np.zeros(classes)

    def add(self, x: Float32s, y: Integers) -> None:
        """Add pixels: features (n, width), classes (n,)."""
        own = np.eye(len(self.counts), dtype=np.float32)[y]
        self.count += len(y)
        self.total += x.sum(0, dtype=np.float64)
        self.gram += x.T @ x
        self.by_class += x.T @ own
        self.counts += own.sum(0, dtype=np.float64)

    def merged(self, other: "PixelSums") -> "PixelSums":
        """Return the sums over the pixels of both."""
        found = PixelSums(len(self.total), len(self.counts))
        for name, value in vars(self).items():
            setattr(found, name, value + getattr(other, name))
        return found

    def ridge(self, l2: float, own: slice) -> LinearHead:
        """Fit least squares to 1 for a pixel's class and -1 for the others, as `heads.ridge`.

        Args:
            l2: the penalty on the weights of standardized features, beside the sum over pixels
            own: the features to use
        """
        mean = self.total[own] / self.count
        gram = self.gram[own, own] - self.count * np.outer(mean, mean)
        std = np.sqrt(np.maximum(np.diag(gram), 0) / self.count) + SMALL
        middle = 2 * self.counts / self.count - 1
        sums = 2 * self.by_class[own] - self.total[own, None]  # of features times targets
        sums -= self.count * np.outer(mean, middle)
        gram = gram / np.outer(std, std) + l2 * np.eye(len(std))
        weights = np.linalg.solve(gram, sums / std[:, None]).T / std
        return LinearHead(weights, middle - weights @ mean, "ridge", l2)


@dataclass(frozen=True, eq=False)
class DrawnPixels:
    """Pixels drawn of images: their sums, and as many of them as are kept.

    Attributes:
        sums: of all
        x: features of those kept, (n, width)
        y: their classes, (n,)
    """

    sums: PixelSums
    x: Float32s
    y: Integers

    def merged(self, other: "DrawnPixels") -> "DrawnPixels":
        """Return the pixels of both."""
        x = np.concatenate([self.x, other.x])
        y = np.concatenate([self.y, other.y])
        return DrawnPixels(self.sums.merged(other.sums), x, y)

    def logistics(self, own: slice, device: torch.device) -> LogisticFits:
        """Return what fits logistic regressions to some features of those kept."""
        x = Blocks(np.ascontiguousarray(self.x[:, own]), device)
        every = np.ones((len(self.y), 1), np.bool_)
        return LogisticFits(x, self.y, len(self.sums.counts), every)


@dataclass(frozen=True, eq=False)
class FoundPatchHead:
    """The best head, fitted to all training images.

    Attributes:
        layers: whose tokens it sees, one after the other
        head: weights (classes, features) and bias
        miou: of the pixels drawn of the held-out training images, before the final fit
        tried: all that was tried, in order: `layers`, `head`, `l2`, `miou`
        bad: images that cannot be used
        pixels: that the final fit has seen
        held: images that it was chosen by
    """

    layers: tuple[int, ...]
    head: LinearHead
    miou: float
    tried: tuple[dict[str, Any], ...]
    bad: list[Bad]
    pixels: int
    held: int = 0


def features_at(found: Mapped, points: Integers, window: tuple[int, int]) -> Float32s:
    """Return the features of pixels of a resized image: (n, width), means over its windows.

    Args:
        found: maps of the windows
        points: rows and columns, (n, 2)
        window: rows and columns
    """
    total = np.zeros((len(points), found.maps.shape[1]), np.float32)
    count = np.zeros((len(points), 1), np.float32)
    for each, corner in zip(found.maps, found.corners, strict=True):
        local = points - corner
        inside = np.flatnonzero(((local >= 0) & (local < window)).all(1))
        if not len(inside):
            continue
        place = (2 * local[inside, ::-1] + 1) / np.array(window[::-1]) - 1  # x, y from -1 to 1
        grid = torch.from_numpy(place).to(each)[None, None]
        values = F.grid_sample(
            each[None], grid, mode="bilinear", padding_mode="border", align_corners=False
        )
        total[inside] += values[0, :, 0].T.cpu().numpy()
        count[inside] += 1
    return total / count


def drawn(found: Mapped, generator: np.random.Generator) -> tuple[Integers, Integers]:
    """Return pixels of a resized image that count, (n, 2), and their classes, (n,).

    The class is that of the nearest pixel of the mask.
    """
    truth = found.scene.truth
    sides = found.scene.pixels.shape[:2]
    assert truth is not None
    rows, columns = (
        ((np.arange(side) + 0.5) * own / side).astype(np.int64)
        for side, own in zip(sides, truth.shape, strict=True)
    )
    small = truth[np.ix_(rows, columns)]
    there = np.flatnonzero(small != IGNORED)
    chosen = generator.choice(there, min(PIXELS, len(there)), replace=False)
    points = np.stack(np.unravel_index(chosen, small.shape), 1).astype(np.int64)
    return points, small.ravel()[chosen].astype(np.int64)


def collected(
    model: Model,
    source: Images,
    layers: tuple[int, ...],
    scale: float,
    compute: Compute,
    seed: int,
    bad: list[Bad],
    title: str,
) -> DrawnPixels:
    """Draw pixels of images, and compute their features; the same for the same seed.

    Raises:
        DataError: no image can be used, or a feature is no number.
    """
    spec = model.config.images
    classes = len(source.classes)
    with borrowed(model, compute.where), Meter(len(source), title=title) as meter:
        make = partial(patch_features, model, layers=layers)
        sums: PixelSums | None = None
        kept: list[tuple[Float32s, Integers]] = []
        for done, found in enumerate(mapped(make, source, spec, scale, compute), 1):
            meter.images(done, len(source))
            if not isinstance(found, Mapped):
                bad.append(found)
                continue
            points, y = drawn(found, np.random.default_rng([seed, found.scene.index]))
            x = features_at(found, points, spec.size)
            sums = sums or PixelSums(x.shape[1], classes)
            sums.add(x, y)
            share = min(KEPT // (4 * x.shape[1]), ROWS) // len(source)
            kept.append((x[: max(1, share)], y[: max(1, share)]))
    if sums is None or not sums.count:
        raise DataError(f"{title}: no image can be used: {bad[0][1] if bad else 'no pixel counts'}")
    x, y = (np.concatenate(each) for each in zip(*kept, strict=True))
    check_numbers(x, "pixels a feature")
    return DrawnPixels(sums, x, y)


def layer_sets(model: Model, most: int) -> list[tuple[int, ...]]:
    """Return the layers whose tokens are tried: the last one, and the last few together."""
    last = model.last_layer
    if most == 1 or not isinstance(model.config, ViTConfig):
        return [(last,)]
    return [(last,), tuple(range(max(1, last - most + 1), last + 1))]


def find_patch_head(
    learn: DrawnPixels,
    held: DrawnPixels,
    sets: Sequence[tuple[int, ...]],
    by: str,
    device: torch.device,
    *,
    refit: bool,
) -> FoundPatchHead:
    """Choose a head by the mIoU of held-out pixels.

    Ridge says which layers; on these, logistic regression is tried too. Of equally good heads the
    first is taken: of fewer layers, and the strongest penalty. Ridge's scores become logits by the
    temperature of the held-out pixels.

    Args:
        learn: pixels to learn from; their features are those of the largest of the sets
        held: pixels to choose by
        sets: of layers, the smallest first
        by: auto, ridge or logistic
        device: where logistic regressions are fitted
        refit: whether the final fit is to both
    """
    width = learn.x.shape[1] // len(sets[-1])
    columns = {own: slice(width * (len(sets[-1]) - len(own)), None) for own in sets}
    tried = [
        _Trial.of(own, learn.sums.ridge(l2, columns[own]), held, columns[own])
        for own in sets
        for l2 in RIDGES
    ]
    best = max(tried, key=lambda each: each.miou)
    own = columns[best.layers]
    some = list[_Trial]()
    if by != "ridge":
        fits = learn.logistics(own, device)
        for l2 in PENALTIES:
            fits.fit(l2, ROUGH)
            some.append(_Trial.of(best.layers, fits.head(l2), held, own))
            if len(some) > 1 and some[-1].miou < some[-2].miou:
                break
        best = max([best, *some] if by == "auto" else some, key=lambda each: each.miou)
    head = best.head
    used = learn.merged(held) if refit else learn
    if head.by == "ridge":
        final = used.sums.ridge(head.l2, own)
        pixels = used.sums.count
        heat = temperature_of(head.logits(held.x[:, own]), SingleLabels(held.y))
        final = replace(final, weights=final.weights / heat, bias=final.bias / heat)
    else:
        final = head
        pixels = len(used.y)
        if refit:
            fits = used.logistics(own, device)
            fits.fit(head.l2)
            final = fits.head(head.l2)
    about = tuple(each.as_dict() for each in [*tried, *some])
    return FoundPatchHead(best.layers, final, best.miou, about, [], pixels)


class _Trial(NamedTuple):
    """A head that was tried, and the mIoU of held-out pixels."""

    layers: tuple[int, ...]
    head: LinearHead
    miou: float

    @classmethod
    def of(cls, layers: tuple[int, ...], head: LinearHead, held: DrawnPixels, own: slice) -> Self:
        """Try a head that sees some of the features."""
        guess = head.predict(held.x[:, own])
        classes = len(head.bias)
        columns = guess[guess == held.y], guess, held.y
        counts = np.stack([np.bincount(each, minlength=classes) for each in columns], 1)
        return cls(layers, head, float(np.nanmean(iou(counts.astype(np.float64)))))

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        about = {"head": self.head.by, "l2": self.head.l2, "miou": self.miou}
        return {"layers": [*self.layers]} | about
