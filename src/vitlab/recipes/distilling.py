"""The options of a recipe that concern learning from a teacher."""

from dataclasses import dataclass
from typing import Literal

from vitlab.options import Only, Options, above, at_most, option, when
from vitlab.weights.hub import check_weights

ON = when("teacher")


@dataclass(frozen=True, kw_only=True)
class Distill(Options):
    """A trained model whose answers are learned beside the labels."""

    teacher: str = option(
        "",
        "weights of a model to learn from, anything that --from takes (empty: none)",
        check=check_weights,
    )
    distill: Literal["hard", "soft", "features"] = option(
        "hard",
        "what is learned of the teacher: hard: its decision; soft: its probabilities; features: "
        "its tokens, by their cosine",
        only=ON,
    )
    distill_token: bool = option(
        False,
        "learn the teacher's answers by a token of their own, averaged with the class token's when "
        "tested (DeiT)",
        only=Only(
            "with a teacher and distill=hard or soft",
            lambda options: bool(options.teacher) and options.distill != "features",
        ),
    )
    distill_weight: float = option(
        0.5, "share of the loss that is the teacher's", above(0), at_most(1), only=ON
    )
    distill_temperature: float = option(
        3.0,
        "what both scores are divided by before soft answers are compared",
        above(0),
        only=when("distill", "soft"),
    )
    cache_teacher: Literal["auto", "no"] = option(
        "auto",
        "keep the teacher's answers where every epoch shows it the same pixels",
        only=ON,
    )
