"""The commands, one file each: options, what runs, how the result is printed.

A file ends with its `COMMAND`, which `command_table.py` names.

The options that several commands have are declared here, once, as classes to inherit from:
`WeightsOptions`, `ComputeOptions` and what it is made of, `FlipsOptions`, `PartsOptions`,
`PageOptions`; those of runs are `recipes.recipe.RunOptions`, those of data `data.settings.Columns`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.errors import OptionError
from vitlab.machine.open_files import check_open_files
from vitlab.machine.option_texts import DEVICE, WORKERS
from vitlab.options import Only, Options, argument, at_least, defaults, option, when
from vitlab.places import PART, On, check_page, is_folder
from vitlab.precision import Engine, Precision
from vitlab.progress import say
from vitlab.terminal import print_figures, print_rows, print_table
from vitlab.units import duration, percent, si
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

if TYPE_CHECKING:
    from vitlab.models.model import Model

WEIGHTS = "a run folder, a saved model, a weights file, or user/name on the Hugging Face Hub"
OUT = "a new .csv, .jsonl or .parquet file for a row per image"
REPLACE = "replace the file that --out names"
ON = (
    "ray: on a Ray cluster, that of RAY_ADDRESS or one on this machine, whose actors have a GPU or "
    "up to 4 cores each"
)
TIMEOUT = "seconds that a process of torchrun waits for the slowest, before giving up"
Split = Literal["auto", "train", "validation", "test", "all"]
COMPUTE = "device precision engine workers"  # the arguments of `Compute`
PARTS = "part_images shard on timeout"  # those of passes that fill a folder
PARTED = Only("with a folder as out", lambda options: bool(options.out and is_folder(options.out)))
FILED = Only("with a file as out", lambda options: bool(options.out and not is_folder(options.out)))


@dataclass(frozen=True, kw_only=True)
class WeightsOptions(Options):
    """A model, and what its file may not say."""

    weights: str = argument(WEIGHTS, check_weights)
    file: Stated = Stated()

    def load(self) -> "Model":
        """Load the model."""
        from vitlab.weights.load import load

        return load(self.weights, **self.file.arguments())


@dataclass(frozen=True, kw_only=True)
class DeviceOptions(Options):
    """Where to compute."""

    device: str = option("auto", DEVICE)


@dataclass(frozen=True, kw_only=True)
class WorkersOptions(Options):
    """How many processes decode."""

    workers: int | None = option(None, WORKERS, at_least(0), check=check_open_files)


@dataclass(frozen=True, kw_only=True)
class PrecisionOptions(DeviceOptions):
    """Where to compute, and in what precision."""

    precision: Literal["fp32", "bf16"] = option("fp32", "fp32, or bf16 autocast")


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Options):
    """What computes."""

    engine: Engine = option(
        "auto",
        "plain PyTorch, its packed form, compiled, onnxruntime, openvino; or auto: for many images "
        "the fastest that agrees with plain, found by measuring",
    )


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(EngineOptions, DeviceOptions):
    """Where, how and in what precision to compute."""

    precision: Precision = option(
        "auto",
        "fp32; bf16; or auto: bf16 for many images, where the device multiplies it faster and "
        "probabilities agree with those in fp32",
    )


@dataclass(frozen=True, kw_only=True)
class FlipsOptions(Options):
    """Mirror images."""

    flips: bool = option(False, "average the probabilities over each image and its mirror image")


@dataclass(frozen=True, kw_only=True)
class PartsOptions(Options):
    """A folder of parts, which several processes may share."""

    part_images: int = option(
        PART,
        "images of each file in the folder, rounded up to whole batches",
        at_least(1),
        only=PARTED,
    )
    shard: str = option(
        "",
        "every n-th file of the folder, for one of n independent processes: 0/8, 1/8, … 7/8 "
        "(empty: all files)",
        only=PARTED,
    )
    on: On = option("", ON)
    timeout: float = option(600.0, TIMEOUT, at_least(0))


@dataclass(frozen=True, kw_only=True)
class PageOptions(Options):
    """A page of the result, and what the user typed for it."""

    out: str | None = option(None, "write a page of the result: FILE.html")
    replace: bool = option(False, REPLACE, only=when("out"))
    command: str = ""

    def page(self) -> Path | None:
        """Return where the page goes, if there is to be one; refuse what cannot be written."""
        return None if self.out is None else check_page(self.out, replace=self.replace)


def say_skipped(*messages: str) -> None:
    """Report images that cannot be used."""
    say(*(f"skipped: {message}" for message in messages))


def refuse_besides(options: Options, names: str) -> None:
    """Refuse options that mean nothing of a run that answers with masks, boxes or numbers.

    Args:
        options: of a command
        names: of those that apply

    Raises:
        OptionError: another one is not at its default.
    """
    for name, default in defaults(type(options)).items():
        if name not in names.split() and getattr(options, name) != default:
            raise OptionError(
                f"{name} does not apply to a run of masks, boxes or numbers: leave it out; "
                f"what applies is {names}"
            )


def shown(result: dict[str, Any]) -> bool:
    """Print figures of masks, boxes or numbers, by class or target; return whether these are any.

    A mean of several runs is none.
    """
    if "runs" in result or not {"miou", "ap50", "targets"} & result.keys():
        return False
    print_figures(result)
    if "miou" in result:
        _show_worst(result["classes"])
    elif "ap50" in result:
        from vitlab.evaluation.figure_tables import table_of_boxes

        head, rows = table_of_boxes(result["classes"])
        print_table(head, rows[:20])
    else:
        from vitlab.evaluation.figure_tables import table_of_targets

        print_table(*table_of_targets(result["targets"]))
    return True


def _show_worst(classes: list[dict[str, Any]]) -> None:
    """Print the classes of pixels with the lowest IoU."""
    there = [each for each in classes if each["iou"] is not None]
    worst = sorted(there, key=lambda each: each["iou"])[:10]
    if len(worst) < len(classes):
        print(f"the {len(worst)} classes with the lowest IoU, of {len(classes):,}")
    rows = [(each["class"], percent(each["iou"]), f"{each['pixels']:,}") for each in worst]
    print_table(("class", "IoU", "true pixels"), rows)


def print_costs(plan: dict[str, Any]) -> bool:
    """Print what runs would cost, a line for each; return whether that is what was asked for."""
    if "at_once" not in plan:
        return False
    print_rows([{key: row[key] for key in row if key != "cells"} for row in plan["rows"]])
    runs = f"{plan['runs']} runs, {plan['at_once']} at once"
    print(f"{runs}: {si(plan['macs'])} multiply-adds, about {duration(plan['seconds'])}")
    return True
