"""The options of a recipe that concern its loss, and what a teacher adds to it."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Only, Options, above, at_least, at_most, below, option, when

LossName = Literal["softmax", "bce", "sigmoid", "l2", "huber", "gaussian"]


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


ON = when("teacher")


@dataclass(frozen=True, kw_only=True)
class Distill(Options):
    """Distillation: a trained model whose predictions are learned beside the labels."""

    teacher: str = option(
        "",
        "weights of a model to learn from, anything that --from takes (empty: none)",
        check="weights",
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
