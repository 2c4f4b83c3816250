"""The parts of a recipe that say where it starts, what is minimized and how.

Data and model have their own files.
"""

from dataclasses import dataclass
from typing import Literal

from vitlab.optim import table as optimizers
from vitlab.options import Only, Options, above, at_least, at_most, below, option, options_of, when
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Named

Tune = Literal["all", "attention", "ffn", "head", "last", "norms", "lora"]
LoRATargets = Literal["attention", "ffn", "all"]
LossName = Literal["softmax", "bce", "sigmoid", "l2", "huber", "gaussian"]


@dataclass(frozen=True, kw_only=True)
class Start(Options):
    """The weights that a run starts from, and which of them it trains."""

    weights: str = option(
        "",
        "weights to start from: a run folder, a saved model, a weights file, or user/name on the "
        "Hugging Face Hub (empty: random ones)",
        flag="from",
        check=check_weights,
    )
    weights_name: str = option("", options_of(Named)["name"].help, only=when("weights"))
    weights_part: str = option("", options_of(Named)["part"].help, only=when("weights"))
    weights_drop: tuple[str, ...] = option((), options_of(Named)["drop"].help, only=when("weights"))
    tune: Tune = option(
        "all",
        "what to train of them, always with the classifier: everything; attention (Three things, "
        "section 4) or the FFNs, each with the positions; only the classifier (head); the last "
        "blocks and the final norm; the norms; or low-rank matrices beside dense layers (LoRA)",
    )
    last_blocks: int = option(
        2, "how many of the last blocks are trained", at_least(1), only=when("tune", "last")
    )
    head_start: Literal["zero", "probe", "random"] = option(
        "zero",
        "where a new classifier starts: zero (ViT paper, section 3.2); probe: fitted to the frozen "
        "features of the training images first (Kumar et al., 2022; numbers: by ridge regression); "
        "or random",
    )
    lora_rank: int = option(8, "rank of LoRA's matrices", at_least(1), only=when("tune", "lora"))
    lora_alpha: float = option(
        16.0,
        "LoRA's product is multiplied by this, divided by the rank",
        above(0),
        only=when("tune", "lora"),
    )
    lora_targets: LoRATargets = option(
        "attention", "the dense layers that get LoRA's matrices", only=when("tune", "lora")
    )


@dataclass(frozen=True, kw_only=True)
class ObjectivePart(Options):
    """The training loss."""

    loss: LossName = option(
        "softmax",
        "softmax: cross-entropy; bce: one sigmoid per class, averaged over classes (A2); "
        "sigmoid: the same, summed over classes (ViT paper); with task=regress l2, huber or "
        "gaussian, which learns a deviation beside each number",
    )
    bce_threshold: float | None = option(
        None,
        "binarize mixed targets: shares of a class above this become 1, others 0 (0 reproduces "
        "A2; None keeps the shares)",
        at_least(0),
        below(1),
        only=when("loss", "bce", "sigmoid"),
    )
    label_smoothing: float = option(
        0.0,
        "share of the target that is spread over all classes",
        at_least(0),
        below(1),
        only=Only("without bce_threshold", lambda options: options.bce_threshold is None),
    )
    balance: Literal["none", "auto", "weights", "sampling", "focal"] = option(
        "none",
        "for uneven classes: weights: images of a rare class count more; sampling: every class is "
        "drawn equally often; focal: easy images count less; auto: weights if the "
        "largest class has at least 10 times the images of the smallest, else none",
    )
    weight_beta: float = option(
        1.0,
        "beta of the effective number of images that weights are inverse to (Cui et al., 2019); 1: "
        "their number itself; 0.9999 or 0.999: weights that differ less",
        at_least(0),
        at_most(1),
        only=when("balance", "weights"),
    )
    focal_gamma: float = option(
        2.0,
        "exponent of the focal loss: larger ones count easy images less (Lin et al., 2017)",
        above(0),
        only=when("balance", "focal"),
    )


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


ON = when("teacher")


@dataclass(frozen=True, kw_only=True)
class Distill(Options):
    """Distillation: a trained model whose predictions are learned beside the labels."""

    teacher: str = option(
        "",
        "weights of a model to learn from, anything that --from takes (empty: none)",
        check=check_weights,
    )
    distill: Literal["hard", "soft"] = option(
        "hard",
        "what to learn from the teacher: hard: its predicted class; soft: its probabilities",
        only=ON,
    )
    distill_token: bool = option(
        False,
        "learn the teacher's predictions with a second token, whose logits are averaged with the "
        "class token's in tests (DeiT)",
        only=ON,
    )
    distill_weight: float = option(
        0.5, "share of the loss that is the teacher's", above(0), at_most(1), only=ON
    )
    distill_temperature: float = option(
        3.0, "temperature of both models' logits", above(0), only=when("distill", "soft")
    )
