"""Augmentation operations on whole batches of uint8 images, each with Pillow's meaning.

Each image has its own operation and argument. Images with the same operation are changed together,
but nothing is computed across images: the result of each depends on it alone, to the bit. Values
stay whole numbers between operations, rounded or truncated as Pillow does. Any number of geometric
operations is one affine map and one resampling.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.augment.policy import Codes, Floats, Op, send
from vitlab.data.settings import Augment

BITS = (Op.INVERT, Op.POSTERIZE, Op.SOLARIZE, Op.SOLARIZE_ADD)  # one formula for all of these
ENHANCE = (Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS)  # and another for these
KINDS = np.arange(len(Op))  # the first of those with one formula; geometric ones are none here
KINDS[[*BITS]], KINDS[[*ENHANCE]], KINDS[Op.ROTATE :] = BITS[0], ENHANCE[0], Op.NONE


def photometric(pixels: Tensor, ops: Codes, arguments: Floats) -> Tensor:
    """Apply one operation per image.

    Args:
        pixels: uint8 (B, C, H, W), contiguous; may be changed in place
        ops: (B,), codes of `Op`; geometric ones and `NONE` are ignored here
        arguments: (B,)

    Returns:
        uint8 (B, C, H, W)
    """
    kinds = KINDS[ops]
    order = np.argsort(kinds, kind="stable")
    kinds, ops, arguments = kinds[order], ops[order], arguments[order]
    rows, codes = send(np.stack([order, ops]), pixels.device)
    factors = send(arguments.astype(np.float32), pixels.device).view(-1, 1, 1, 1)
    for kind in np.unique(kinds[kinds != Op.NONE]):
        first, end = np.searchsorted(kinds, [kind, kind + 1]).tolist()
        whole = end - first == len(pixels)
        part = pixels if whole else pixels.index_select(0, rows[first:end])
        if kind == BITS[0]:
            part = bits(part, ops[first:end], arguments[first:end])
        elif kind == ENHANCE[0]:
            part = enhance(part, codes[first:end], factors[first:end])
        else:
            part = ACTIONS[kind](part, factors[first:end])
        pixels = part if whole else pixels.index_copy_(0, rows[first:end], part)
    return pixels


def bits(pixels: Tensor, ops: Codes, arguments: Floats) -> Tensor:
    """Invert, posterize, solarize or solarize-add: one formula for all four.

    Values below a threshold are increased, up to 255; of the others some bits are flipped, then
    some are cleared.
    """
    number = arguments.astype(np.int16)
    solar, adding, posterize = ops == Op.SOLARIZE, ops == Op.SOLARIZE_ADD, ops == Op.POSTERIZE
    below = np.where(solar, number, np.where(adding, 128, 0))
    more = np.where(adding, number, 0)
    flipped = np.where(adding | posterize, 0, 255)
    mask = np.where(posterize, 255 & ~((1 << np.clip(8 - number, 0, 8)) - 1), 255)
    table = np.stack([below, more, flipped, mask]).astype(np.int16)
    low, plus, flips, keep = send(table, pixels.device)[..., None, None, None]
    values = pixels.short()
    raised = (values + plus).clamp_(max=255)
    return torch.where(values < low, raised, values.bitwise_xor(flips).bitwise_and_(keep)).byte()


def auto_contrast(pixels: Tensor, _: Tensor) -> Tensor:
    """Stretch each channel so that its minimum becomes 0 and its maximum 255."""
    low = pixels.amin((2, 3), keepdim=True).double()
    spread = pixels.amax((2, 3), keepdim=True) - low
    most = torch.full_like(spread, 255)  # dividing a Python number would multiply by a reciprocal
    scale = torch.where(spread > 0, most / spread, 1)
    offset = torch.where(spread > 0, -low * scale, 0)
    return pixels.double().mul_(scale).add_(offset).clamp_(0, 255).byte()


def equalize(pixels: Tensor, _: Tensor) -> Tensor:
    """Map each channel's values so that they become about equally frequent (Pillow's equalize)."""
    batch, channels, rows, columns = pixels.shape
    places = pixels.reshape(batch * channels, -1).long()  # of each value in all the tables
    places += 256 * torch.arange(batch * channels, device=pixels.device)[:, None]
    ones = torch.ones(1, dtype=torch.int32, device=pixels.device).expand(places.numel())
    counts = torch.zeros(batch * channels * 256, dtype=torch.int32, device=pixels.device)
    counts = counts.scatter_add_(0, places.view(-1), ones).view(batch, channels, 256)
    values = torch.arange(256, device=pixels.device, dtype=torch.int32)
    last = torch.where(counts > 0, values, 0).amax(
        -1, keepdim=True
    )  # the greatest value that occurs
    step = (rows * columns - counts.gather(-1, last.long())) // 255
    before = counts.cumsum(-1, dtype=torch.int32) - counts
    spread = ((step // 2 + before) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, spread, values).byte()
    return table.view(-1).index_select(0, places.view(-1)).view(pixels.shape)


def enhance(pixels: Tensor, codes: Tensor, factor: Tensor) -> Tensor:
    """Scale brightness, contrast or color by a factor: 0 removes it, 1 changes nothing.

    All three interpolate, or extrapolate, from an image without it: black, the mean brightness, or
    gray. Doing them together saves a GPU from launching many small kernels.
    """
    values, code = pixels.float(), codes.view(-1, 1, 1, 1)
    gray = luma(values)
    mean = gray.sum((1, 2, 3), dtype=torch.float64) / gray[0].numel()
    level = (mean + 0.5).floor_().float().view(-1, 1, 1, 1) * (code == Op.CONTRAST)
    return _blend(torch.where(code == Op.COLOR, gray, level), values, factor)


def sharpness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Interpolate between the smoothed image (0) and itself (1), or beyond; the border stays."""
    if min(pixels.shape[2:]) < 3:
        return pixels
    values = pixels.float()
    across = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    around = across[:, :, :-2] + across[:, :, 1:-1] + across[:, :, 2:]
    inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))
    smooth = ((around + 4 * values[inner]) / 13 + 0.5).floor()
    result = pixels.clone()
    result[inner] = _blend(smooth, values[inner], factor)
    return result


def blur(pixels: Tensor, radius: Tensor) -> Tensor:
    """Blur as Pillow approximates a Gaussian: three box filters with soft ends per direction."""
    weights = box_weights(radius.view(-1).double()).float().view(-1, 3, 1, 1, 1).unbind(1)
    values = pixels.float()
    for dim, pad in ((3, (2, 2, 0, 0)), (2, (0, 0, 2, 2))):
        length = values.shape[dim]
        for _ in range(3):
            padded = F.pad(values, pad, mode="replicate")
            values = values * weights[0]
            for k in (1, 2):
                both = padded.narrow(dim, 2 - k, length) + padded.narrow(dim, 2 + k, length)
                values += both.mul_(weights[k])
            values = values.add_(0.5).floor_()
    return values.clamp_(0, 255).byte()


def box_weights(radius: Tensor) -> Tensor:
    """Return weights of a box's center and its next two pixels either side: (B, 3) from (B,).

    The box has some whole pixels and a fraction of the next ones, so that its variance is a third
    of the squared radius (Gwosdek et al., 2011); two pixels are enough up to a radius of 2.4.
    """
    variance = radius**2 / 3
    whole = ((torch.sqrt(12 * variance + 1) - 1) / 2).floor()
    share = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    share = share / (6 * (variance - (whole + 1) ** 2))
    places = torch.arange(3, device=radius.device)
    box = (whole[:, None] + share[:, None] - places + 1).clamp(0, 1)
    return box / (2 * (whole + share) + 1)[:, None]


def hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Shift the hue, through Pillow's HSV of whole numbers; images without color stay."""
    if pixels.shape[1] != 3:
        return pixels
    values = pixels.float()
    top, low = values.amax(1, keepdim=True), values.amin(1, keepdim=True)
    spread = (top - low).clamp(min=1)
    red, green, blue = ((top - values) / spread).double().split(1, 1)  # as Pillow computes
    angle = torch.where(values[:, 1:2] == top, 2 + red - blue, 4 + green - red)
    angle = torch.where(values[:, :1] == top, blue - green, angle).float().double()
    angle = (((angle / 6 + 1) % 1).float().double() * 255).floor()
    angle = torch.where(top == low, 0, angle)
    saturation = (255 * (spread / top.clamp(min=1)).double()).floor() / 255
    angle = (angle + (turn.double() * 255).trunc()) % 256 * 6 / 255
    # sixths of the circle from where red, green and blue are full; half of it away they are lowest
    away = torch.arange(5, 0, -2, dtype=torch.float64, device=pixels.device).view(3, 1, 1)
    away = (away + angle) % 6
    share = torch.minimum(away, 4 - away).clamp(0, 1) * torch.where(top == low, 0, saturation)
    return (top.double() * (1 - share) + 0.5).floor().byte()


def luma(values: Tensor) -> Tensor:
    """Return the luma as Pillow computes it (ITU-R 601), in whole numbers: float32 (B, 1, H, W).

    One channel is its own luma; of any number but three it is the rounded mean.
    """
    if values.shape[1] == 1:
        return values
    if values.shape[1] != 3:
        return (values.sum(1, keepdim=True) / values.shape[1] + 0.5).floor()
    red, green, blue = values.split(1, 1)  # every sum below 2^24, so float32 is exact
    total = (red * 19595).add_(green * 38470).add_(blue * 7471).add_(32768)
    return total.div_(65536).floor_()


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """Return `start` at factor 0, `end` at 1, linear beyond; truncated to 0 … 255."""
    return (end - start).mul_(factor).add_(start).clamp_(0, 255).byte()


ACTIONS: dict[int, Callable[[Tensor, Tensor], Tensor]] = {
    Op.AUTO_CONTRAST: auto_contrast,
    Op.EQUALIZE: equalize,
    Op.SHARPNESS: sharpness,
    Op.BLUR: blur,
    Op.HUE: hue,
}


def affine(draws: Tensor, options: Augment, rows: int, columns: int) -> Tensor:
    """Flip, rotate, translate, scale and shear by six draws per image, (B, 6) or wider.

    Returns:
        The map from output to input coordinates, as `affine_grid` expects it: (B, 2, 3).
    """
    flip, *spread = draws[:, :6].double().unbind(1)
    turn, right, down, zoom, shear = (2 * each - 1 for each in spread)  # uniform in [-1, 1)
    angle = turn * math.radians(options.rotate)
    slant = torch.tan(shear * math.radians(options.shear))
    scale = torch.exp(zoom * math.log1p(options.zoom))
    mirror = torch.where((flip < 0.5) & options.flip, -1.0, 1.0)
    cos, sin = angle.cos() / scale, angle.sin() / scale
    # in pixels: mirror the columns, slant along them, then turn and zoom
    xx, xy = mirror * cos, slant * cos - sin
    yx, yy = mirror * sin, slant * sin + cos
    aspect = rows / columns  # [-1, 1] spans the columns in x, the rows in y
    theta = torch.stack(
        [xx, xy * aspect, 2 * options.shift * right, yx / aspect, yy, 2 * options.shift * down]
    )
    return theta.view(2, 3, -1).permute(2, 0, 1).float()


def compose(ops: Codes, arguments: Floats, rows: int, columns: int) -> Floats:
    """Compose the geometric operations of each image, in their order, into one map.

    Args:
        ops: (B, L), codes of `Op`; those that change values are ignored
        arguments: (B, L), with Pillow's meaning
        rows: height in pixels
        columns: width in pixels

    Returns:
        The map from output to input coordinates in units of half a side: (B, 3, 3).
    """
    whole = np.broadcast_to(np.eye(3), (len(ops), 3, 3))
    for op, argument in zip(ops.T, arguments.T, strict=True):
        if (op >= Op.ROTATE).any():
            whole = whole @ _matrices(op, argument, rows / columns)
    return np.asarray(whole)


def _matrices(ops: Codes, arguments: Floats, aspect: float) -> Floats:
    """Return one map per image, (B, 3, 3). Pillow shears about the top left, (-1, -1) here."""
    turned, x, y, right, down = (
        np.where(ops == op, arguments, 0.0)
        for op in (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y)
    )
    x, y, angle = x * aspect, y / aspect, np.radians(turned)
    cos, sin = np.cos(angle), np.sin(angle)
    zero, one = np.zeros_like(x), np.ones_like(x)
    rows = [
        [cos, x - sin * aspect, x + 2 * right],
        [y + sin / aspect, cos, y + 2 * down],
        [zero, zero, one],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


def sample(pixels: Tensor, theta: Tensor, fill: Tensor, interpolation: str) -> Tensor:
    """Resample images by maps from output to input coordinates.

    Coordinates outside the image give the fill color; at the border, the outermost pixels are
    repeated. Both are as in Pillow, which truncates interpolated values where this rounds. The
    cubic of "bicubic" is PyTorch's, a little softer (a = -0.75) than Pillow's here (a = -1).

    Args:
        pixels: uint8 (B, C, H, W)
        theta: (B, 2, 3), as for `affine_grid`
        fill: one value per channel, (C,)
        interpolation: bilinear or bicubic

    Returns:
        uint8 (B, C, H, W)
    """
    rows, columns = pixels.shape[2:]
    x = (torch.arange(columns, device=theta.device) * 2 + 1) / columns - 1
    y = ((torch.arange(rows, device=theta.device) * 2 + 1) / rows - 1)[:, None]
    entry = theta[..., None, None]  # (B, 2, 3, 1, 1)
    # `affine_grid` without a matrix product, which may be imprecise on a GPU (TF32)
    sources = [entry[:, i, 0] * x + entry[:, i, 1] * y + entry[:, i, 2] for i in (0, 1)]
    grid = torch.stack(sources, -1)  # (B, H, W, 2)
    moved = F.grid_sample(pixels.float(), grid, interpolation, "border", align_corners=False)
    inside = (grid.abs() <= 1).all(-1)[:, None]
    return torch.where(inside, (moved + 0.5).clamp_(0, 255).byte(), fill.view(1, -1, 1, 1))
