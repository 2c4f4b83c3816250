"""Matching of learned queries with what is in an image, and the cross-entropy of their classes.

DETR's (Carion et al., 2020), for boxes and for masks: the queries and the objects of each image are
paired at the least cost; the loss of classes is the cross-entropy of all queries, those without an
object with weight 0.1. Losses are means over an image and then over images, where DETR's are over a
batch: so passes and processes add up to a batch.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab.on_device import sent

NOTHING, BAD = 0.1, 1e9  # weight of queries without object; cost of what is no number
Pairs = tuple[Tensor, Tensor, Tensor]
"""Numbers of images, of their queries and of their objects, int64 (pairs,) each."""


def paired(costs: Sequence[Tensor]) -> Pairs:
    """Pair queries and objects at the least cost, (queries, objects) of each image.

    No query has two objects.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    whole = torch.cat([*costs], 1)
    tables = whole.nan_to_num(BAD, BAD, -BAD).cpu().split([each.shape[1] for each in costs], 1)
    found = [linear_sum_assignment(each.numpy()) for each in tables]
    image = np.repeat(np.arange(len(found)), [len(rows) for rows, _ in found])
    sides = [np.concatenate([each[side] for each in found]) for side in (0, 1)]
    numbers, queries, own = (sent(torch.from_numpy(each), whole.device) for each in (image, *sides))
    return numbers, queries, own


def chances_of(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the probability that each query gives to each object's class.

    Args:
        scores: (B, queries, classes + 1)
        classes: of the objects, (B, objects), -1 for none

    Returns:
        (B, queries, objects).
    """
    own = classes.clamp(min=0)[:, None].expand(-1, scores.shape[1], -1)
    return scores.softmax(-1).gather(2, own)


def class_loss(scores: Tensor, classes: Tensor, pairs: Pairs) -> Tensor:
    """Return the cross-entropy of the queries' classes, given as `chances_of` takes them."""
    image, query, own = pairs
    nothing = scores.shape[-1] - 1
    weights = scores.new_ones(nothing + 1)
    weights[nothing] = NOTHING
    wanted = torch.full(scores.shape[:2], nothing, device=scores.device)
    wanted[image, query] = classes[image, own]
    table = F.cross_entropy(scores.transpose(1, 2), wanted, weights, reduction="none")
    return (table.sum(1) / weights[wanted].sum(1)).mean()


def shares_of(classes: Tensor) -> Tensor:
    """Return the share that each object of an image has in the image's figures, (B,)."""
    return 1 / (classes >= 0).sum(1).clamp(min=1)
