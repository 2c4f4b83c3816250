"""The loss between student and teacher over pairs of views, and figures."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

UNIFORM = 0.02  # nats below those of uniform answers: all prototypes alike
ONE = 0.05  # share of the entropy of uniform answers, of the mean answer: one prototype for all
CLOSE = 0.02  # of the spread of features in random directions


def between_views(taught: Tensor, logs: Tensor) -> Tensor:
    """Return the mean cross-entropy over all pairs of different views (DINO, equation 3).

    Args:
        taught: the teacher's probabilities on the large views, (T, B, prototypes)
        logs: the student's log-probabilities on all views, the large ones first: (V, B, prototypes)
    """
    table = torch.einsum("tbk,vbk->tv", taught, logs)
    pairs = table.numel() - len(taught)
    return (table.diagonal().sum() - table.sum()) / (pairs * taught.shape[1])


def figures_of(taught: Tensor, logs: Tensor, features: Tensor) -> dict[str, Tensor]:
    """Return the means of the figures over a pass.

    Args:
        taught: the teacher's probabilities on both large views, (2, B, prototypes)
        logs: the student's log-probabilities, (views, B, prototypes)
        features: of the teacher, (2 * B, F)
    """
    sure = entropy(taught)
    across = -(taught * logs[:2].flip(0)).sum(-1)
    each = [spread(part) for part in features.chunk(2)]
    return {
        "teacher_entropy": sure.mean(),
        "mean_entropy": entropy(taught.mean((0, 1))),
        "disagreement": (across - sure).mean(),
        "feature_spread": torch.stack(each).mean(),
    }


def entropy(chances: Tensor) -> Tensor:
    """Return the entropy of probabilities in nats: (…, K) -> (…)."""
    return -torch.special.xlogy(chances, chances).sum(-1)


def spread(features: Tensor) -> Tensor:
    """Return how far features of length 1 are spread: 0 if all are one, 1 in random directions.

    The root mean square over the channels of each one's deviation over the images, times the root
    of their number (Chen and He, SimSiam, 2021, section 4.1, figure 2).

    Args:
        features: float32 (B, D)
    """
    unit = F.normalize(features, dim=-1)
    return ((unit - unit.mean(0)) ** 2).sum(-1).mean().sqrt()


def collapse(means: dict[str, float], prototypes: int, centering: str) -> list[str]:
    """Return what to tell of a teacher that tells images no longer apart; one line each.

    Args:
        means: of the task's figures
        prototypes: how many answers there are
        centering: how the teacher is kept from collapsing
    """
    most = math.log(prototypes)
    found = []
    other = "centering=sinkhorn" if centering == "mean" else "a lower lr"
    if means["teacher_entropy"] > most - UNIFORM:
        found.append(
            "the teacher has collapsed to uniform answers: try a lower --teacher-temperature, or "
            "a lower lr"
        )
    if means["mean_entropy"] < ONE * most:
        found.append(
            "the teacher has collapsed to one answer for all images: try a higher "
            f"--teacher-temperature, or {other}"
        )
    if means["feature_spread"] < CLOSE:
        found.append(
            "the teacher's features have collapsed, they are the same for all images: try a lower "
            "lr, or a longer warm-up"
        )
    return found
