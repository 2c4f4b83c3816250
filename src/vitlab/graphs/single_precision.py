"""Pillow's resizing inside a graph without double precision, which runtimes refuse or round.

`data/decode/crop_box.py` and `filters.py` compute a box and its filters in double precision; here
are the same numbers from whole numbers and single precision. Products are of so few bits that they
are exact, with or without fused multiply-adds, and what a sum rounds off is kept beside it.
"""

from dataclasses import dataclass

import torch
from torch import SymInt, Tensor

from vitlab.data.decode.filters import PART, SUPPORT
from vitlab.images import ImageSpec

NEAR = 2.0**7  # a distance's first part has steps of 1 / NEAR: its cube is exact
FAR = 2.0**18  # and the second part, what is left of it up to a hundred-thousandth of a pixel
HALF = 12  # bits of half a number
UNIT = 2.0**22  # Pillow's weights are whole numbers of its inverse


@dataclass(frozen=True)
class Edge:
    """A part of an image's side, as Pillow keeps it: in single precision.

    Attributes:
        first: in pixels
        length: in pixels
    """

    first: Tensor
    length: Tensor


def quotient(number: Tensor, by: Tensor | int) -> Tensor:
    """Divide whole numbers from 0 to 2**31, rounded down, also where a runtime rounds them.

    Args:
        number: int64
        by: int64, so large that the result is below 2**21
    """
    near = (number.float() / by).floor().long()
    rest = number - near * by
    return near - (rest < 0).long() + (rest >= by).long()


def half(number: Tensor) -> Tensor:
    """Return half of a whole number, rounded half to even."""
    return quotient(number + (number % 4 == 3).long(), 2)


def edges(rows: Tensor, columns: Tensor, spec: ImageSpec) -> tuple[Edge, Edge]:
    """Return the rows and the columns that are seen, as `crop.resized_box` does.

    Args:
        rows: of the image, int64
        columns: likewise
        spec: size, crop, fit, and how the offset is rounded
    """
    out = spec.size
    high, wide = (int(side / spec.crop + 1e-6) for side in out)
    tall = quotient(high * rows, columns)
    long = quotient(wide * columns, rows)
    if high != wide:
        tall = _share(2 * wide * rows, columns)
        long = _share(2 * high * columns, rows)
    crops = spec.fit == "crop"
    return (
        _middle(rows, tall.clamp(min=high) if crops else high, out[0], spec.center),
        _middle(columns, long.clamp(min=wide) if crops else wide, out[1], spec.center),
    )


def _share(twice: Tensor, by: Tensor) -> Tensor:
    """Return half of a quotient, rounded half to even."""
    whole = quotient(twice, by)
    odd = (whole * by != twice) | (whole % 4 == 3)
    return quotient(whole + odd.long(), 2)


def _middle(side: Tensor, whole: Tensor | int, kept: int, center: str) -> Edge:
    """Return where the central pixels of a resized side lie in the image."""
    spare = torch.as_tensor(whole) - kept
    start = quotient(spare, 2) if center == "floor" else half(spare)
    first, last = (_ratio((each * side).float(), whole) for each in (start, start + kept))
    return Edge(first, last - first)


def _ratio(number: Tensor, by: Tensor | int) -> Tensor:
    """Divide whole numbers below 2**24, rounded to nearest, also where a runtime is a bit off."""
    whole = torch.as_tensor(by).float()
    near = number / whole
    upper, lower = _halves(near)
    big, small = _halves(whole)
    rest = number - upper * big - upper * small - lower * big - lower * small
    return near + rest / whole


def filter_units(size: int | SymInt, edge: Edge, out: int, interpolation: str) -> Tensor:
    """Return what `filters.filter_matrix` returns, (2, out, size).

    Weights are computed where they are not zero, and spread over the side. Exact for sides up to
    2**23 / out pixels, which are 37,000 for 224; beyond, a pixel may differ by a level.

    Args:
        size: pixels of the image's side
        edge: where the part that is seen begins and ends
        out: pixels of the result's side
        interpolation: bilinear or bicubic
    """
    reach = int(SUPPORT[interpolation])
    scale = edge.length / out
    step = torch.arange(out).float()[:, None] + 0.5
    begin = (edge.first + step * scale - reach * scale.clamp(min=1) - 1).floor()
    width = 2 * reach * ((size + out - 1) // out) + 4  # pixels that a filter sees, at most
    place = begin + torch.arange(width).float()  # a SymInt too
    near, middle, rest = _distances(place, step, edge, out)
    whole, part = _weights(near, middle, rest, cubic=interpolation == "bicubic")
    seen = (place >= 0) & (place < size) & (near < reach)
    units = _divide_by_sum(whole * seen, part * seen)
    ends = torch.zeros_like(units[:, :1])
    own = torch.arange(size) - begin.long()  # type: ignore[arg-type]
    spread = torch.cat([ends, units, ends], 1).gather(1, (own + 1).clamp(0, width + 1))
    coarse = (spread / PART + 0.5).floor()
    return torch.stack([coarse, spread - coarse * PART])


def _distances(place: Tensor, step: Tensor, edge: Edge, out: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return how far pixels are from the centers of filters, in the filters' own steps.

    That is |(place + 0.5 - first) * out - step * length| / max(length, out).

    Args:
        place: numbers of pixels, (out, pixels)
        step: of each filter, its number and a half, (out, 1)
        edge: the part that is seen
        out: filters

    Returns:
        Three parts: in steps of 1 / NEAR, what is left in steps of 1 / FAR, and what is below.
    """
    pixel = edge.first.floor()
    first, little = _halves(edge.first - pixel)
    length, short = _halves(edge.length)
    whole = (place - pixel + 0.5) * out
    lost = torch.zeros_like(whole)
    for part in (step * length, first * out, little * out, step * short):
        whole, more = _sum(whole, -part)
        lost = lost + more
    whole, lost = _sum(whole, lost)
    sign = torch.where(whole < 0, -1.0, 1.0)
    whole = whole * sign
    lost = lost * sign
    wide = edge.length.clamp(min=out)
    upper, lower = _halves(wide)
    near = (whole / wide * NEAR).floor() / NEAR
    whole = whole - near * upper - near * lower
    middle = (whole / wide * FAR).floor() / FAR
    whole = whole - middle * upper - middle * lower
    return near, middle, (whole + lost) / wide


def _weights(near: Tensor, middle: Tensor, rest: Tensor, *, cubic: bool) -> tuple[Tensor, Tensor]:
    """Return `filters.kernel` of distances in three parts: whole UNITs, and a part of one.

    The filter is a polynomial, and its Taylor series at `near` is all of it.
    """
    value, slope, bend, twist = _series(near, cubic=cubic)
    steep = (slope * NEAR).floor() / NEAR
    square = middle * middle
    coarse = (square * UNIT * 8).floor() / (UNIT * 8)
    terms = (steep * middle * UNIT, ((slope - steep) * middle + bend * coarse) * UNIT)
    far = middle + rest
    small = slope * rest + bend * (square - coarse + (middle + far) * rest)
    small = small + twist * far * far * far
    whole = value * UNIT + terms[0].floor() + terms[1].floor()
    part = terms[0] - terms[0].floor() + (terms[1] - terms[1].floor()) + small * UNIT
    return whole + part.floor(), part - part.floor()


def _series(x: Tensor, *, cubic: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return value, slope, and the second and third derivative over 2 and 6, all of them exact."""
    none = torch.zeros_like(x)
    if not cubic:
        return 1 - x, none - 1, none, none
    inner = x < 1
    return (
        torch.where(inner, (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5),
        torch.where(inner, (4.5 * x - 5) * x, ((3 * x - 10) * x + 8) * -0.5),
        torch.where(inner, 4.5 * x - 2.5, 2.5 - 1.5 * x),
        torch.where(inner, none + 1.5, none - 0.5),
    )


def _divide_by_sum(whole: Tensor, part: Tensor) -> Tensor:
    """Divide weights by the sum of their row, and round them to UNITs, half away from zero."""
    sign = torch.where(whole < 0, -1.0, 1.0)
    coarse = (whole / PART).floor()
    sums = [each.sum(1, keepdim=True) for each in (coarse, whole - coarse * PART, part)]
    high = sums[0] * (PART / UNIT)
    total, lost = _sum(high, sums[1] / UNIT)
    lost = lost + sums[2] / UNIT
    upper, lower = _halves(total)
    whole = whole * sign
    near = (whole / total + 0.5).floor()
    big = (near / PART).floor() * PART
    rest = whole - big * upper - (near - big) * upper - big * lower - (near - big) * lower
    rest = rest + (part * sign - near * lost)
    return (near + (rest / total + 0.5).floor()) * sign


def _halves(number: Tensor) -> tuple[Tensor, Tensor]:
    """Split numbers into two of at most HALF bits (Dekker, 1971)."""
    big = number * (2.0**HALF + 1)
    upper = big - (big - number)
    return upper, number - upper


def _sum(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Add numbers; return the sum, and what it has rounded off (Knuth, 1969)."""
    both = one + other
    added = both - one
    return both, (one - (both - added)) + (other - added)
