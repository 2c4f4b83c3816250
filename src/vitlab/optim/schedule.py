"""The learning rate as a function of the step."""

import math

from vitlab.recipes.parts import Schedule

STAIRS = (0.3, 0.6, 0.9)  # BiT's hyper-rule: a tenth after each of these shares of a run


def warmup_steps(epoch: float, how: Schedule) -> int:
    """Steps on the way up, at `epoch` steps an epoch."""
    return math.ceil(how.warmup_steps or how.warmup * epoch)


def learning_rate(step: int, total: int, epoch: float, peak: float, how: Schedule) -> float:
    """What step number `step` (from 0) of `total` is taken with, at `epoch` steps an epoch.

    Up linearly through the warm-up, reaching the peak with its last step, then down by the shape
    in `how` to `final_lr` times the peak, which the last step reaches (`rsqrt` with a cooldown).
    """
    up = warmup_steps(epoch, how)
    if step < up:
        return peak * (step + 1) / up
    last = total - 1
    gone = min(1.0, (step - up) / (last - up)) if last > up else 1.0
    match how.schedule:
        case "cosine":
            left = 0.5 * (1 + math.cos(math.pi * gone))
        case "linear":
            left = 1 - gone
        case "constant":
            left = 1.0
        case "rsqrt":  # big_vision; Zhai et al., Scaling Vision Transformers
            left = 1 / math.sqrt(1 + (step - up) / how.timescale)
        case "steps":  # Kolesnikov et al., BiT
            left = 0.1 ** sum(step >= share * total for share in STAIRS)
    if how.cooldown:
        left *= min(1.0, (last - step) / (how.cooldown * epoch))
    return peak * (how.final_lr + (1 - how.final_lr) * left)
