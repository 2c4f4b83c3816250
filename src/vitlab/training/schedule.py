"""The learning rate as a function of the step."""

import math

from vitlab.training.recipe import Schedule


def learning_rate(step: int, total: int, warmup: float, peak: float, how: Schedule) -> float:
    """What step number `step` (from 0) of `total` is taken with.

    Up linearly over `warmup` steps, reaching the peak at their end, then down by the shape in
    `how` to `final_lr` times the peak, which the last step reaches.
    """
    if step < warmup:
        return peak * (step + 1) / math.ceil(warmup)
    span = total - 1 - math.ceil(warmup)
    gone = min(1.0, (step - math.ceil(warmup)) / span) if span > 0 else 1.0
    match how.schedule:
        case "cosine":
            left = 0.5 * (1 + math.cos(math.pi * gone))
        case "linear":
            left = 1 - gone
        case "constant":
            left = 1.0
    return peak * (how.final_lr + (1 - how.final_lr) * left)
