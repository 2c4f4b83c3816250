"""`vitlab finetune`: `vitlab train` with the recipe `finetune`."""

from typing import Any

from vitlab.commands import train
from vitlab.commands.train import Train

SUMMARY = "Fine-tune trained weights, test the model and write a report."


def build(given: dict[str, Any]) -> Train:
    """Return options that start from the recipe `finetune`, or from the run to continue."""
    return train.build(given, "finetune")


def begin(options: Train) -> None:
    """Refuse a folder in the way and missing packages; say what begins."""
    train.begin(options)


def run(options: Train) -> dict[str, Any]:
    """Train; of several processes only the first one has a result to print."""
    return train.run(options)


def show(result: dict[str, Any]) -> None:
    """Print the test figures."""
    train.show(result)
