"""`vitlab finetune`: `vitlab train` with the recipe `finetune`."""

from typing import Any

from vitlab.commands.train import Train, begin, run, show
from vitlab.errors import OptionError
from vitlab.recipes.named import BACKBONE
from vitlab.recipes.pretext import named_task

__all__ = ["SUMMARY", "begin", "build", "run", "show"]

SUMMARY = "Fine-tune trained weights, test the model and write a report."


def build(given: dict[str, Any]) -> Train:
    """Return options that start from the recipe `finetune`, or from the run to continue.

    Raises:
        OptionError: as `vitlab train`, or objects are to be learned.
    """
    if given.get("task") == "detect":
        raise OptionError("objects are learned by vitlab train DATA --task detect --from WEIGHTS")
    if named_task(given).get("task") == "regress" and not given.get("resume"):
        given = {"weights": BACKBONE} | given
    return Train.built(given, "finetune")
