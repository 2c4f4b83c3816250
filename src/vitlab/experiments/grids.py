"""What a sweep tries if nothing else is asked for: the ViT paper's grids, or around a recipe's own.

The paper's learning rates are those of its Table 4; the shares of the training images that it held
out to choose among them are in its section B.1.1. It lists 0.06 for ImageNet without saying that
only ResNets and hybrids used it, as its text suggests: all models try it here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.errors import OptionError
from vitlab.recipes.recipe import Recipe

SHARE = 0.1  # held out of any other data
FACTORS = (0.3, 1.0, 3.0)  # of a recipe's own learning rate
DROPS = (1.4, 1.0, 0.6)  # of 1 - layer_decay: 0.65, 0.75, 0.85 around 0.75, as BEiT's appendix


@dataclass(frozen=True)
class PaperData:
    """A data set that the ViT paper fine-tuned on.

    Attributes:
        name: a pattern of its name, and nothing else's
        classes: their number
        share: of the training images that the paper held out
        rates: the learning rates that it tried, with SGD
    """

    name: str
    classes: int
    share: float
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)


PAPER = (
    PaperData(r"imagenet([-_]?1k|2012)?|ilsvrc[-_]?2012", 1000, 0.01, (0.003, 0.01, 0.03, 0.06)),
    PaperData(r"cifar[-_]?10", 10, 0.02),
    PaperData(r"cifar[-_]?100", 100, 0.02),
    PaperData(r"(oxford[-_]?)?(iiit[-_]?)?pets?", 37, 0.1),
    PaperData(r"(oxford[-_]?)?flowers?[-_]?(102)?", 102, 0.1),
)


def paper_data(data: str, classes: int) -> PaperData | None:
    """Return the paper's data set that some data is, by a part of its path and its classes."""
    parts = [part.lower() for part in re.split(r"[/\\]", data)]
    for each in PAPER:
        if each.classes == classes and any(re.fullmatch(each.name, part) for part in parts):
            return each
    return None


def default_grid(recipe: Recipe, known: PaperData | None) -> list[dict[str, float]]:
    """Return what to try: with SGD the paper's learning rates, with AdamW those around its own.

    With AdamW, 0.3, 1 and 3 times the recipe's learning rate, each with three layer decays if the
    recipe has one: its distance from 1 times 1.4, 1 and 0.6.

    Raises:
        OptionError: the paper has no grid for the data, or nobody for the optimizer.
    """
    how = recipe.optimizer
    if how.optimizer == "adamw":
        rates = [float(f"{how.lr * factor:.3g}") for factor in FACTORS]
        return grid_of(rates, _decays(how.layer_decay))
    if how.optimizer != "sgd":
        raise OptionError(
            f"there is no default grid for optimizer={how.optimizer}: name the rates, such as "
            f"--sweep {how.lr / 3:.2g} {how.lr:.2g} {how.lr * 3:.2g}"
        )
    if known is None:
        raise OptionError(
            f"the ViT paper has no grid for {recipe.data.data}: name the rates, such as --sweep "
            "0.001 0.003 0.01 0.03"
        )
    return grid_of(known.rates)


def grid_of(rates: Sequence[float], decays: Sequence[float] = ()) -> list[dict[str, float]]:
    """Return every learning rate with every layer decay, the lowest first.

    Args:
        rates: learning rates
        decays: layer decays; none for the recipe's own

    Raises:
        OptionError: no rates, a number twice, or one that cannot be.
    """
    if not rates:
        raise OptionError("the grid is empty: name learning rates, such as --sweep 0.003 0.01")
    for name, numbers in (("lr", rates), ("layer_decay", decays)):
        for number in numbers:
            Recipe().changed(**{name: number})
            if list(numbers).count(number) > 1:
                raise OptionError(f"the grid contains {name}={number:g} twice: name it once")
    if not decays:
        return [{"lr": rate} for rate in sorted(rates)]
    return [{"lr": r, "layer_decay": d} for r in sorted(rates) for d in sorted(decays)]


def _decays(own: float) -> tuple[float, ...]:
    if own == 1:
        return ()
    return tuple(dict.fromkeys(max(0.01, round(1 - (1 - own) * drop, 4)) for drop in DROPS))
