"""The options of a recipe that concern its optimizer."""

from dataclasses import dataclass

from vitlab.optim import table as optimizers
from vitlab.options import Options, above, at_least, at_most, below, option, when


@dataclass(frozen=True, kw_only=True)
class Optimization(Options):
    """The optimizer; norms, biases, positions and the class token are not decayed."""

    optimizer: str = option("adamw", optimizers.about(), choices=lambda: optimizers.OPTIMIZERS)
    lr: float = option(1e-3, "peak learning rate", above(0))
    head_lr: float | None = option(
        None,
        "peak learning rate of the classifier, or of what a task trains beside the model, such as "
        "a projector (None: lr, as all else)",
        above(0),
    )
    head_first: float = option(
        0.0,
        "share of the run in which the head alone learns, or what a task trains beside the model",
        at_least(0),
        below(1),
        only=when("head_lr"),
    )
    weight_decay: float = option(
        0.05,
        "multiplied by the learning rate and subtracted from the weights; added to the gradient "
        "(L2) with sgd, adam and lars, to the normalized gradient with lamb and schedule-free",
        at_least(0),
    )
    betas: tuple[float, float] = option(
        (0.9, 0.999),
        "decay of the two moments",
        at_least(0),
        below(1),
        only=when("optimizer", *optimizers.users("betas")),
    )
    momentum: float = option(
        0.9,
        "momentum",
        at_least(0),
        below(1),
        only=when("optimizer", *optimizers.users("momentum")),
    )
    eps: float = option(
        1e-8,
        "added to the root of the second moment",
        above(0),
        only=when("optimizer", *optimizers.users("eps")),
    )
    clip: float = option(1.0, "largest norm of the whole gradient (0: no clipping)", at_least(0))
    layer_decay: float = option(
        1.0,
        "ratio of the learning rate of a block to that of the next one (BEiT; 1: all the same)",
        above(0),
        at_most(1),
    )
    rho: float = option(
        0.0,
        "radius of sharpness-aware minimization (SAM) around the optimizer (0: off)",
        at_least(0),
    )
    precondition_every: int = option(
        10,
        "steps between two matrix roots (shampoo) or rotations (soap)",
        at_least(1),
        only=when("optimizer", *optimizers.users("precondition_every")),
    )
