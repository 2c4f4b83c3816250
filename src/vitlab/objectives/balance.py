"""Uneven classes: whether they are weighted or sampled, and by what weights."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vitlab.data.target import Target
from vitlab.errors import OptionError
from vitlab.recipes.losses import ObjectivePart

UNEVEN = 10.0
"""Largest over smallest class from which `balance=auto` weighs: the mildest imbalance of the
long-tailed CIFAR sets of Cui et al. (2019). Below it a run stays what it is without the option."""


def imbalance(counts: Sequence[int]) -> float:
    """Return how many times the smallest class, of those with images, goes into the largest."""
    some = [count for count in counts if count]
    return max(some) / min(some)


def decided(
    options: ObjectivePart,
    labels: Target,
    classes: int,
    own: bool = False,
    steps: bool = True,
) -> tuple[ObjectivePart, list[str]]:
    """Decide what `balance=auto` leaves to the data, and say so in one line if classes are uneven.

    Args:
        options: of the recipe
        labels: of the training images
        classes: their number
        own: whether a function of the user's own takes the place of the loss
        steps: whether there is a loss at all; a probe fits its head in closed form

    Returns:
        The options without `auto`, and lines for the user.

    Raises:
        OptionError: sampling by class where images have several; weights in a loss of one's own.
    """
    if own and options.balance in ("weights", "focal"):
        raise OptionError(
            f"balance={options.balance} changes the recipe's loss, which a loss of your own "
            "replaces: set balance=none or balance=sampling"
        )
    if labels.several and options.balance == "sampling":
        raise OptionError(
            "balance=sampling draws images by their class, but these have several: use --balance "
            "weights, where classes are rare, or --balance focal, where most images are easy"
        )
    # the yes and no of a class are uneven by nature
    ratio = 1.0 if labels.several or own else imbalance(labels.counts(classes))
    balance, lines = options.balance, list[str]()
    found = f"the largest class has {ratio:,.0f} times the images of the smallest"
    if balance == "auto":
        balance = "none" if ratio < UNEVEN else "weights"
        lines = [f"{found}: images are weighted by their class (--balance weights)"]
    elif balance == "none":
        command = "" if steps else "vitlab finetune with "
        lines = [f"{found}: {command}--balance weights, sampling or focal would make up for it"]
    return replace(options, balance=balance), lines if ratio >= UNEVEN else []


def class_weights(labels: Target, classes: int, beta: float = 1.0) -> NDArray[np.float32]:
    """Return how much an image counts for its class.

    The weight is inverse to the number n of images of the class or, with beta below 1, to their
    effective number (1 - beta^n) / (1 - beta) (Cui et al., 2019, eq. 2). The mean weight of the
    training images is 1, so that learning rates keep their meaning; with beta 1, the weights are
    those that scikit-learn calls balanced: images / (classes * n).

    Args:
        labels: of the training images
        classes: their number
        beta: in [0, 1]; 0 weighs all images alike

    Returns:
        One class per image: (classes,), 0 for a class without images. Several: (2, classes), the
        weights of "no" and of "yes", each class being a question of its own.
    """
    yes = np.array(labels.counts(classes), np.float64)
    if labels.several:
        table = np.stack([len(labels) - yes, yes])
        return np.stack([_inverse(each, beta) for each in table.T], axis=1).astype(np.float32)
    return _inverse(yes, beta).astype(np.float32)


def _inverse(counts: NDArray[np.float64], beta: float) -> NDArray[np.float64]:
    """Return weights of groups of so many images, whose mean over all images is 1."""
    effective = counts if beta == 1 else -np.expm1(counts * np.log(beta)) if beta else counts > 0
    weights = np.divide(1.0, effective, out=np.zeros_like(counts), where=counts > 0)
    return weights * (counts.sum() / (weights * counts).sum())
