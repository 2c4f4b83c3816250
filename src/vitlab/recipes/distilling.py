"""The options of a recipe that concern learning from a teacher."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Options, above, at_most, option, when
from vitlab.weights.hub import check_weights

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
        3.0,
        "temperature of both models' logits",
        above(0),
        only=when("distill", "soft"),
    )
