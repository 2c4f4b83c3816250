"""The learning rate as a function of the step."""

import math

from vitlab.recipes.schedule import Schedule


def warmup_steps(epoch: float, options: Schedule) -> int:
    """Return the number of warm-up steps, at `epoch` steps per epoch."""
    return math.ceil(options.warmup_steps or options.warmup * epoch)


def learning_rate(step: int, total: int, epoch: float, peak: float, options: Schedule) -> float:
    """Return the learning rate of step `step` (from 0) of `total`, at `epoch` steps per epoch.

    It rises linearly through the warm-up, reaches the peak with its last step, then falls by the
    schedule to `final_lr` times the peak, which the last step reaches (`rsqrt`: with a cooldown).
    """
    up = warmup_steps(epoch, options)
    if step < up:
        return peak * (step + 1) / up
    last = total - 1
    gone = min(1.0, (step - up) / (last - up)) if last > up else 1.0
    match options.schedule:
        case "cosine":
            left = 0.5 * (1 + math.cos(math.pi * gone))
        case "linear":
            left = 1 - gone
        case "constant":
            left = 1.0
        case "rsqrt":  # big_vision; Zhai et al., Scaling Vision Transformers
            left = 1 / math.sqrt(1 + (step - up) / options.timescale)
        case "steps":  # Kolesnikov et al., BiT
            left = 0.1 ** sum(step >= share * total for share in options.drops)
    if options.cooldown:
        left *= min(1.0, (last - step) / (options.cooldown * epoch))
    return peak * (options.final_lr + (1 - options.final_lr) * left)
