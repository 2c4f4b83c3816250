"""`vitlab finetune`: `vitlab train` with the recipe `finetune`."""

from typing import Any

from vitlab.command_table import Command
from vitlab.commands.train import Train, begin, run, show
from vitlab.errors import OptionError
from vitlab.recipes.named import BACKBONE
from vitlab.recipes.pretext import named_task


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


COMMAND = Command(run, show=show, build=build, begin=begin)
