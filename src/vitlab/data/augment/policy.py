"""Augmentation policies: the sequence of operations of each image, from its own random numbers.

RandAugment (Cubuk et al., 2020) with the operations, ranges and magnitude noise of timm, with which
A2 was trained (Wightman et al., ResNet strikes back, 2021); 3-Augment (Touvron et al., DeiT III,
2022); color jitter; the gray, blurred and solarized views of BYOL and DINO. Everything is decided
on the CPU, so that all devices do the same, and the device never waits for a decision.
"""

from enum import IntEnum
from itertools import permutations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.draws import JITTER, RAND, THREE, has_chances
from vitlab.data.settings import Augment
from vitlab.on_device import sent

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


def send(decisions: NDArray[Any], device: torch.device) -> Tensor:
    """Copy decisions made on the CPU to a device, without waiting for the copy."""
    return sent(torch.from_numpy(decisions), device)


class Op(IntEnum):
    """An operation on an image; its one argument has Pillow's meaning."""

    NONE = 0
    AUTO_CONTRAST = 1
    EQUALIZE = 2
    INVERT = 3
    POSTERIZE = 4  # bits to keep
    SOLARIZE = 5  # values from here on are inverted
    SOLARIZE_ADD = 6  # added to values below 128
    COLOR = 7  # factor, 0: gray, 1: unchanged; so are the next three
    CONTRAST = 8
    BRIGHTNESS = 9
    SHARPNESS = 10
    BLUR = 11  # standard deviation in pixels
    HUE = 12  # turns of the color circle
    ROTATE = 13  # degrees, counter-clockwise; from here on operations are geometric
    SHEAR_X = 14  # columns per row
    SHEAR_Y = 15  # rows per column
    TRANSLATE_X = 16  # share of the width
    TRANSLATE_Y = 17


RANDAUGMENT = (
    Op.AUTO_CONTRAST, Op.EQUALIZE, Op.INVERT, Op.ROTATE, Op.POSTERIZE, Op.SOLARIZE,
    Op.SOLARIZE_ADD, Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS, Op.SHEAR_X, Op.SHEAR_Y,
    Op.TRANSLATE_X, Op.TRANSLATE_Y,
)  # fmt: skip
SOLARIZE_FROM, BLUR_RANGE = 128.0, (0.1, 2.0)  # of 3-Augment


def sequence(draws: Floats, options: Augment) -> tuple[Codes, Floats]:
    """Return the operations of each image in order, and their arguments: (B, L) and (B, L).

    First RandAugment's or 3-Augment's, then color jitter's, then gray, blur and solarize, each by
    its own chance; L is 0 if there are none.
    """
    chances = draws[:, RAND + 4 * options.rand_ops :]
    parts = [(np.empty((len(draws), 0), np.int64), np.empty((len(draws), 0)))]
    if options.rand_ops:
        parts.append(randaugment(draws[:, RAND:], options))
    if options.three_augment:
        parts.append(three_augment(draws[:, THREE]))
    if options.color_jitter or options.hue_jitter:
        ops, values = color_jitter(draws[:, JITTER], options)
        if options.jitter_probability < 1:
            ops = np.where(chances[:, :1] < options.jitter_probability, ops, Op.NONE)
        parts.append((ops, values))
    if has_chances(options):
        parts.append(by_chance(chances[:, 1:], options))
    all_ops, all_values = zip(*parts, strict=True)
    return np.concatenate(all_ops, 1), np.concatenate(all_values, 1)


def randaugment(draws: Floats, options: Augment) -> tuple[Codes, Floats]:
    """Draw `rand_ops` of the fifteen operations per image, each applied with some probability.

    Args:
        draws: uniform in [0, 1), (B, 4 * rand_ops) or wider
        options: their number, magnitude, its spread and limit, probability, direction

    Returns:
        Operations and arguments, (B, rand_ops) each.
    """
    own = draws[:, : 4 * options.rand_ops].reshape(len(draws), options.rand_ops, 4)
    which, applied, spread, sign = np.moveaxis(own, -1, 0)
    ops = np.array(RANDAUGMENT)[(which * len(RANDAUGMENT)).astype(np.int64)]
    # the draws are multiples of 2^-24: half a step up, none of them is 0
    normal = torch.special.ndtri(torch.from_numpy(spread + 2.0**-25)).numpy()
    magnitude = np.clip(options.rand_magnitude + options.rand_std * normal, 0.0, options.rand_limit)
    return (
        np.where(applied < options.rand_probability, ops, Op.NONE),
        argument(ops, magnitude / 10, np.where(sign < 0.5, -1.0, 1.0), options.rand_increasing),
    )


def argument(ops: Codes, level: Floats, sign: Floats, increasing: bool) -> Floats:
    """Return the argument of each operation at a level; 1 is the usual maximum.

    Args:
        ops: codes of RandAugment's operations, any shape
        level: 0 or more, the same shape
        sign: -1 or 1, for operations with a direction
        increasing: a higher level always changes an image more

    Returns:
        Arguments of the same shape.
    """
    bits, threshold = np.trunc(level * 4), np.minimum(256, np.trunc(level * 256))
    factor = 0.1 + 1.8 * level
    if increasing:
        bits, threshold = 4 - bits, 256 - threshold
        factor = np.maximum(0.1, 1 + sign * 0.9 * level)
    table = dict.fromkeys((Op.COLOR, Op.CONTRAST, Op.BRIGHTNESS, Op.SHARPNESS), factor) | {
        Op.POSTERIZE: bits,
        Op.SOLARIZE: threshold,
        Op.SOLARIZE_ADD: np.minimum(128, np.trunc(level * 110)),
        Op.ROTATE: sign * 30 * level,
        Op.SHEAR_X: sign * 0.3 * level,
        Op.SHEAR_Y: sign * 0.3 * level,
        Op.TRANSLATE_X: sign * 0.45 * level,
        Op.TRANSLATE_Y: sign * 0.45 * level,
    }
    return np.select([ops == op for op in table], [*table.values()], 0.0)


def three_augment(draws: Floats) -> tuple[Codes, Floats]:
    """Draw gray, solarize or blur, one per image: (B, 1) and (B, 1) from draws (B, 2)."""
    which = (draws[:, :1] * 3).astype(np.int64)
    low, high = BLUR_RANGE
    ops = np.array([Op.COLOR, Op.SOLARIZE, Op.BLUR])[which]
    radius = low + (high - low) * draws[:, 1:]
    return ops, np.choose(which, [np.zeros_like(radius), SOLARIZE_FROM, radius])


def color_jitter(draws: Floats, options: Augment) -> tuple[Codes, Floats]:
    """Draw brightness, contrast and color factors, and a hue shift, in random order.

    Args:
        draws: uniform in [0, 1), (B, 5): the order, then each one's argument
        options: the spread of the three factors, uniform in [1 - spread, 1 + spread] and not below
            0, and of the color factor, if it has another; the hue's, uniform in [-hue, hue]
    """
    spread, color, hue = options.color_jitter, options.saturation_jitter, options.hue_jitter
    spreads = {Op.COLOR: spread if color is None else color}
    spreads |= dict.fromkeys((Op.CONTRAST, Op.BRIGHTNESS), spread)
    ranges = {op: (max(0.0, 1 - own), 1 + own) for op, own in spreads.items() if spread}
    if hue:
        ranges[Op.HUE] = (-hue, hue)
    low, high = np.array([*ranges.values()]).T
    orders = np.array(list(permutations(range(len(ranges)))))
    order = orders[(draws[:, 0] * len(orders)).astype(np.int64)]
    values = low + (high - low) * draws[:, 1 : 1 + len(ranges)]
    return np.array([*ranges])[order], np.take_along_axis(values, order, 1)


def by_chance(draws: Floats, options: Augment) -> tuple[Codes, Floats]:
    """Draw gray, blur and solarize, in this order, each with its probability.

    As in BYOL (Grill et al., 2020, appendix B) and DINO (Caron et al., 2021): the blur's standard
    deviation is uniform in 0.1 to 2 pixels, values from 128 on are inverted.

    Args:
        draws: uniform in [0, 1), (B, 4): gray, blur, its radius, solarize
        options: the three probabilities

    Returns:
        Operations and arguments, (B, 3) each.
    """
    low, high = BLUR_RANGE
    wanted = np.array([options.grayscale, options.blur, options.solarize])
    ops = np.where(draws[:, [0, 1, 3]] < wanted, [Op.COLOR, Op.BLUR, Op.SOLARIZE], Op.NONE)
    values = np.zeros(ops.shape)
    values[:, 1] = low + (high - low) * draws[:, 2]
    values[:, 2] = SOLARIZE_FROM
    return ops, values
