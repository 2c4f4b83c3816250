"""Mixup and CutMix: images of a batch mixed in pairs, and their labels with them.

As in timm (and A2 and DeiT III, which train with it) one weight, and one box, is drawn for a whole
batch. Partners are neighbors: image 0 with 1, 2 with 3, … (the order of a batch is random), so any
even stretch of a batch is mixed as it is within the whole: the result is the same if gradients are
accumulated in pieces, or a batch is shared among devices. The last image of an odd number is
unchanged.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.data.settings import Augment

STREAM = 1  # separates these random numbers from others drawn from a step's seed


@dataclass(frozen=True)
class Mix:
    """The mixing of the pairs of one batch.

    Attributes:
        share: weight of each image itself; its partner has the rest
        box: top, bottom, left and right edge of what the partner replaces (CutMix), or None (Mixup)
    """

    share: float
    box: tuple[int, int, int, int] | None

    def __call__(self, pixels: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Mix the pairs of a batch, or of any part of it that splits no pair, in place.

        Args:
            pixels: float (B, C, H, W)
            labels: int64 (B,), or float (B, classes) of images with several labels
            classes: their number

        Returns:
            float (B, C, H, W), and the share of each class as float (B, classes)
        """
        targets = dense(labels, classes)
        partners = neighbors(len(pixels), pixels.device)
        targets = targets * self.share + targets[partners] * (1 - self.share)
        if self.box is None:
            others = pixels.index_select(0, partners).mul_(1 - self.share)
            return pixels.mul_(self.share).add_(others), targets
        top, bottom, left, right = self.box
        hole = pixels[..., top:bottom, left:right]
        hole.copy_(hole.index_select(0, partners))
        return pixels, targets


def draw(options: Augment, seed: int, size: tuple[int, int]) -> Mix | None:
    """Draw the mixing of a batch; None if the recipe does not mix.

    Mixup (Zhang et al., 2018) draws the share from Beta(mixup, mixup); CutMix (Yun et al., 2019)
    from Beta(cutmix, cutmix), cuts a box of the rest of the area around a uniform place, and
    corrects the share where the border cuts the box. With both, a batch is cut with probability
    `mix_switch`.

    Args:
        options: strengths
        seed: the step's
        size: rows and columns of the images
    """
    if not options.mixup and not options.cutmix:
        return None
    generator = np.random.default_rng((seed, STREAM))
    switch, middle = generator.random(), generator.random(2)
    cut = options.cutmix and (not options.mixup or switch < options.mix_switch)
    strength = options.cutmix if cut else options.mixup
    share = float(generator.beta(strength, strength))
    if not cut:
        return Mix(share, None)
    edges: list[int] = []
    for length, at in zip(size, middle.tolist(), strict=True):
        cut_length, center = int(length * math.sqrt(1 - share)), int(length * at)
        edges += [max(0, center - cut_length // 2), min(length, center + (cut_length + 1) // 2)]
    top, bottom, left, right = edges
    share = 1 - (bottom - top) * (right - left) / math.prod(size)
    return Mix(share, (top, bottom, left, right))


def dense(labels: Tensor, classes: int) -> Tensor:
    """Return labels as float (B, classes): indices become one-hot, tables stay."""
    return F.one_hot(labels, classes).float() if labels.ndim == 1 else labels.float()


def neighbors(count: int, device: torch.device) -> Tensor:
    """Return the partner of each image, (count,); the last of an odd number is its own."""
    return (torch.arange(count, device=device) ^ 1).clamp(max=max(count - 1, 0))
