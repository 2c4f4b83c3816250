"""A close look at two thumbnails: lay one upon the other, and measure how well they agree.

Shift and scale in both directions are refined by Gauss-Newton steps on the brightness (Lucas and
Kanade, 1981), from blurred to sharp. Agreement is the correlation of details: what a wide blur
removes from the overlap, so that light, contrast and large forms shared by many pictures count for
nothing. Other colors lower it.

How much agreement a copy can lose depends on the picture: a rich texture loses much of it when its
pixels are resampled or compressed, a drawn digit next to nothing, and two different digits may well
agree better than two copies of a meadow. So what is missing is measured in units of what a picture
loses by two further blurs. The thresholds were chosen on CIFAR-10 and on photographs of hands:
copies of 100 pixels miss less than 0.4 units, different hands at least 0.78.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from vitlab.data.duplicates.candidates import CENTER, parts

FLAT = 2.0  # levels: pictures with fewer details (root mean square) cannot be recognized by them
_POINTS = 24  # that the overlap is sampled at, in each direction
_FEW = 12  # of a first glance
PROMISING = 0.65  # agreement at first glance from which a pair is looked at again
_BLURS = (2, 2, 2, 1, 1, 1)  # before each refining step of the second look
_WIDE = 8  # blurs that remove all details
_LARGEST_STEP = 0.05
_SCALES = (0.8, 1.25)
_SHIFTS = (-0.25, 0.25)
_COLOR_FREE = 5.0  # levels of color difference that compression may cause
_COLOR_COST = 250.0  # levels of further difference that cost all agreement


@dataclass(frozen=True)
class Placement:
    """Placement of n test images on their training images: there = shift + scale * here.

    Places are shares of an image, across and down: both tensors are (2, n).
    """

    shift: Tensor
    scale: Tensor

    @staticmethod
    def of(views: Tensor) -> "Placement":
        """Return the placements of views: twice a part of `parts()`, plus 1 if mirrored."""
        low, high = torch.tensor(parts())[views // 2].view(-1, 2, 2).permute(1, 2, 0)
        mirrored = torch.stack([views % 2 == 1, torch.zeros_like(views, dtype=torch.bool)])
        low, high = torch.where(mirrored, 1 - high, low), torch.where(mirrored, 1 - low, high)
        scale = (high - low) / CENTER
        return Placement(low - scale * (1 - CENTER) / 2, scale)

    def overlap(self) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper edges of the overlap in the training image, (2, n)."""
        low, high = (((edge - self.shift) / self.scale).clamp(0, 1) for edge in (0, 1))
        return low, high

    def moved(self, step: Tensor) -> "Placement":
        """Return the placement after a step (n, 4): shift and scale about the middle, both ways."""
        limited = step.clamp(-_LARGEST_STEP, _LARGEST_STEP).view(-1, 2, 2)
        shift, scale = limited.permute(2, 1, 0)
        return Placement(
            (self.shift + shift - scale / 2).clamp(*_SHIFTS), (self.scale + scale).clamp(*_SCALES)
        )


def agreement(
    train: Tensor, test: Tensor, colors: tuple[Tensor, Tensor], views: Tensor
) -> tuple[Tensor, Tensor]:
    """Return how well pictures agree, and what is missing in units of what blurring costs.

    Args:
        train: brightness of the training images, uint8 (n, 32, 32)
        test: brightness of the test images
        colors: Cb and Cr of both, uint8 (n, 2, 8, 8)
        views: how the test images lie on the training images at first, int64 (n,)

    Returns:
        From 0 to 1 for the same, float32 (n,); from 0 for the same, float32 (n,)
    """
    a, b, place = train.float(), _seen(test, views), Placement.of(views)
    for blurs in _BLURS:
        place = refined(blurred(a, blurs), blurred(b, blurs), place, _POINTS)
    pair = _sampled(a, b, place, _POINTS)
    details = [_details(blurred(each, 2)) for each in pair]
    softer = [_details(blurred(each, 4)) for each in pair]
    costs = [1 - _cosine(*each) for each in zip(details, softer, strict=True)]
    tints = zip(colors[0].float().unbind(1), _seen(colors[1], views).unbind(1), strict=True)
    differences = [torch.subtract(*_sampled(*each, place, _FEW)) for each in tints]
    apart = torch.stack(differences).square().mean((0, 2, 3)).sqrt()
    score = _cosine(*details) - (apart - _COLOR_FREE).clamp_min(0) / _COLOR_COST
    return score.clamp(0, 1), (1 - score) / torch.maximum(*costs).clamp_min(1e-4)


def glance(train: Tensor, test: Tensor, views: Tensor) -> Tensor:
    """Return a rough agreement, at a tenth of the cost; arguments as `agreement`, (n,)."""
    a, b = blurred(train.float(), 2), blurred(_seen(test, views), 2)
    place = refined(a, b, Placement.of(views), _FEW)
    return _cosine(*map(_centered, _sampled(_details(a), _details(b), place, _FEW)))


def _seen(pictures: Tensor, views: Tensor) -> Tensor:
    """Return pictures as floats, mirrored where their view is."""
    mirrored = (views % 2 == 1).view(-1, *[1] * (pictures.ndim - 1))
    return torch.where(mirrored, pictures.flip(-1), pictures).float()


def refined(a: Tensor, b: Tensor, place: Placement, points: int) -> Placement:
    """Return the placement of pictures b on pictures a, float32 (n, 32, 32), after one step."""
    first, second = map(_standard, _sampled(a, b, place, points))
    low, high = place.overlap()
    x, y = _points(low, high, points)
    slopes = torch.stack(torch.gradient(second, dim=(2, 1)))
    across, down = slopes * (points / (place.scale * (high - low)))[..., None, None]
    slopes = torch.stack(
        [across, across * (x[:, None, :] - 0.5), down, down * (y[:, :, None] - 0.5)], 1
    ).flatten(2)
    slopes = slopes - slopes.mean(2, keepdim=True)
    square = slopes @ slopes.transpose(1, 2)
    damping = 1e-2 * square.diagonal(dim1=1, dim2=2) + 1e-8
    wanted = slopes @ (first - second).flatten(1)[..., None]
    step = torch.linalg.solve(square + torch.diag_embed(damping), wanted)
    return place.moved(step[..., 0])


def richness(luma: Tensor) -> Tensor:
    """Return the root mean square of the details of pictures, in levels; uint8 (n, 32, 32)."""
    return _details(blurred(luma.float(), 2)).square().mean((1, 2)).sqrt()


def blurred(pictures: Tensor, times: int) -> Tensor:
    """Return pictures (n, S, S) after so many binomial blurs of 3x3 points."""
    blur = _blur(pictures.shape[-1], times)
    return blur @ pictures @ blur.T


@cache
def _blur(side: int, times: int) -> Tensor:
    """Return the matrix that blurs along one direction; edges repeat themselves."""
    once = np.eye(side) / 2 + (np.eye(side, k=1) + np.eye(side, k=-1)) / 4
    once[0, 0] = once[-1, -1] = 0.75
    return torch.from_numpy(np.linalg.matrix_power(once, times)).float()


def _details(pictures: Tensor) -> Tensor:
    """Return the details of pictures, which a wide blur removes, with mean 0."""
    return _centered(pictures - blurred(pictures, _WIDE))


def _centered(pictures: Tensor) -> Tensor:
    """Return pictures of mean 0."""
    return pictures - pictures.mean((1, 2), keepdim=True)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of details (n, H, W); less where there are nearly none."""
    least = FLAT * a.shape[-1]
    lengths = [each.flatten(1).norm(dim=1).clamp_min(least) for each in (a, b)]
    return (a * b).sum((1, 2)) / (lengths[0] * lengths[1])


def _standard(pictures: Tensor) -> Tensor:
    """Return pictures of mean 0 and length 1."""
    centered = _centered(pictures)
    return centered / centered.flatten(1).norm(dim=1).clamp_min(1e-3)[:, None, None]


def _sampled(a: Tensor, b: Tensor, place: Placement, points: int) -> tuple[Tensor, Tensor]:
    """Return the overlap of pictures (n, S, S) at `points` points of each in both directions."""
    here = _points(*place.overlap(), points)
    return _at(a, here), _at(b, place.shift[..., None] + place.scale[..., None] * here)


def _points(low: Tensor, high: Tensor, points: int) -> Tensor:
    """Return evenly spaced points between edges (2, n): across and down, (2, n, points)."""
    return low[..., None] + (torch.arange(points) + 0.5) / points * (high - low)[..., None]


def _at(pictures: Tensor, places: Tensor) -> Tensor:
    """Interpolate pictures (n, S, S) linearly at the crossings of places, shares (2, n, points)."""
    side = pictures.shape[-1]
    pixels = (places * side - 0.5).clamp(0, side - 1)
    x, y = (1 - (pixels[..., None] - torch.arange(side)).abs()).clamp_min(0)
    return y @ pictures @ x.transpose(1, 2)
