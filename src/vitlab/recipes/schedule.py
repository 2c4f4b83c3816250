"""The options of a recipe that concern the learning rate over a run, and the average of weights."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Only, Options, above, at_least, at_most, below, option, when


@dataclass(frozen=True, kw_only=True)
class Schedule(Options):
    """The learning rate over a run: linearly up, then down."""

    schedule: Literal["cosine", "linear", "constant", "rsqrt", "steps"] = option(
        "cosine",
        "shape after the warm-up; rsqrt: reciprocal square root; steps: three tenfold drops",
    )
    drops: tuple[float, float, float] = option(
        (0.3, 0.6, 0.9),
        "shares of the run after which the rate drops tenfold (BiT)",
        above(0),
        below(1),
        only=when("schedule", "steps"),
    )
    warmup: float = option(0.0, "epochs of warm-up", at_least(0), only=when("warmup_steps", 0))
    warmup_steps: int = option(
        0, "steps of warm-up, in place of epochs (0: use warmup)", at_least(0)
    )
    final_lr: float = option(
        0.0,
        "learning rate at the end, as a share of the peak",
        at_least(0),
        at_most(1),
        only=Only(
            "with a schedule other than constant, or a cooldown",
            lambda options: options.schedule != "constant" or options.cooldown > 0,
        ),
    )
    timescale: int = option(
        10_000,
        "steps after the warm-up at which rsqrt has fallen to 0.71 of the peak",
        above(0),
        only=when("schedule", "rsqrt"),
    )
    cooldown: float = option(
        0.0, "epochs at the end over which the rate falls linearly to final_lr", at_least(0)
    )


@dataclass(frozen=True, kw_only=True)
class Average(Options):
    """An average of the weights over the run, evaluated and saved in place of the last ones."""

    ema: float = option(
        0.0, "decay of an exponential moving average of the weights (0: off)", at_least(0), below(1)
    )
    ema_warmup: bool = option(
        True,
        "let the decay grow to its value, so that the random start is forgotten; off: the same "
        "decay from the first step (Polyak averaging; ViT paper, Table 2: 0.9999)",
        only=when("ema"),
    )
