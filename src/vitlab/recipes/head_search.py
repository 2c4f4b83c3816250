"""The search space of `vitlab probe`, and the recipe of a run that fits a head without a step."""

from dataclasses import dataclass
from typing import Any, Literal

from vitlab.data.settings import Augment
from vitlab.errors import OptionError
from vitlab.options import Options, at_least, at_most, option, options_of
from vitlab.recipes.losses import Distill, ObjectivePart
from vitlab.recipes.model_part import model_part
from vitlab.recipes.named import BACKBONE
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.pretext import Pretext, named_task
from vitlab.recipes.recipe import NO_STEP, PROBE, Recipe
from vitlab.recipes.schedule import Average, Schedule
from vitlab.recipes.start import Start

INSTEAD = "is for training: vitlab probe fits a head to frozen features; use vitlab finetune"
TASKS = ("classify", "segment", "regress")  # what a fitted head can say
OF_STEPS = frozenset(
    name
    for kind in (Augment, Average, Distill, ObjectivePart, Optimization, Pretext, Schedule)
    for name in options_of(kind)
    if name not in ("task", "targets")
) | {"tune", "head_start", "lora_rank", "lora_alpha", "lora_targets"} | (
    frozenset(options_of(Recipe)) - {*NO_STEP, "seed", "precision"} | {"recipe"}
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HeadSearch(Options):
    """Which heads are tried."""

    by: Literal["auto", "logistic", "ridge", "means"] = option(
        "auto",
        "kind of head: logistic regression; ridge: least squares to 1 and -1; means: the nearest "
        "class mean (auto: the best of the three)",
    )
    layers: int = option(
        6,
        "how many of the last blocks are tried as the last one: the model ends after the best (1: "
        "all blocks stay)",
        at_least(1),
    )
    folds: int = option(
        5, "parts of the training images in cross-validation", at_least(2), at_most(100)
    )


@dataclass(frozen=True, kw_only=True)
class MaskOptions(Options):
    """How masks are read and what is segmented, with task=segment."""

    class_names: str = option(
        "",
        "task=segment: a file with the names of the classes in the masks, one per line or `number "
        "name` (default: classes.txt beside the masks, else their numbers)",
    )
    ignore: int | Literal["none"] | None = option(
        None,
        "task=segment: the number in masks that does not count, or none (default: 255; in ADE's "
        "layout 0)",
        at_least(0),
        at_most(65_535),
    )
    concat: int = option(
        4,
        "task=segment: how many of the last blocks' patch tokens are put together, and compared "
        "with those of the last one alone (1: the last one alone)",
        at_least(1),
    )
    scale: float = option(
        1.0,
        "task=segment: the shorter side that images are resized to, in sides of the model's input; "
        "windows slide over larger ones",
        at_least(1),
        at_most(32),
    )

    @property
    def number(self) -> int | None:
        """The number that does not count; -1 for the usual one."""
        return None if self.ignore == "none" else -1 if self.ignore is None else self.ignore


def probe_recipe(weights: str | None = None, **fields: Any) -> Recipe:
    """Return the recipe of a probe: data, weights, the model's fields, precision and seed.

    Args:
        weights: to take features of; None for those of `vitlab finetune`, empty for a model in hand
        fields: by their own names

    Raises:
        OptionError: an option of training, an unknown one, or an invalid value.
    """
    for name in fields:
        if name in OF_STEPS:
            raise OptionError(f"{name} {INSTEAD}")
    fields = named_task(fields)
    if (task := fields.get("task", "classify")) not in TASKS:
        raise OptionError(f"task must be {' or '.join(TASKS)} for a probe, not {task!r}")
    start = Start(weights=BACKBONE if weights is None else weights, tune="head")
    any_labels = ObjectivePart(loss="bce")  # what several labels need is said by the probe
    found = Recipe(
        recipe=PROBE, start=start, model=model_part(""), objective=any_labels, precision="fp32"
    )
    return found.changed(**fields)
