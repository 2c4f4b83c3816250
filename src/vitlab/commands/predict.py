"""`vitlab predict`."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from vitlab.command_table import Command
from vitlab.commands import (
    COMPUTE,
    FILED,
    ON,
    OUT,
    PARTED,
    PARTS,
    REPLACE,
    TIMEOUT,
    ComputeOptions,
    FlipsOptions,
    PartsOptions,
    WeightsOptions,
    refuse_besides,
    say_skipped,
)
from vitlab.data.exists import check_each
from vitlab.data.settings import Columns
from vitlab.errors import OptionError, one_line
from vitlab.files import head_of
from vitlab.machine.open_files import check_open_files
from vitlab.options import argument, at_least, option, options_of
from vitlab.packages import check_installed
from vitlab.places import On, check_file, check_new_folder, check_parts, is_folder
from vitlab.terminal import print_figures

SHOWN = 5  # classes of a mask that a line names


@dataclass(frozen=True, kw_only=True)
class Predict(ComputeOptions, PartsOptions, FlipsOptions, WeightsOptions):
    """A model, images, and where to compute."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset(options_of(Columns)) - {
        "path_column", "images", "allow_outside", "cache_data",
    }  # fmt: skip

    paths: tuple[str, ...] = argument(
        "any DATA of `vitlab train`, labels or not: image files, folders, glob patterns, lists, "
        "tables, tar shards; - for paths on standard input, one per line",
        check_each,
    )
    columns: Columns = Columns()
    top: int = option(5, "number of classes to print", at_least(1))
    out: str | None = option(
        None,
        f"{OUT}; or (a name without an ending) a folder of such files, which several processes can "
        "share; of a run that segments or detects, a new folder for masks or pictures with boxes",
    )
    replace: bool = option(False, REPLACE, only=FILED)
    format: Literal["parquet", "csv", "jsonl"] = option(
        "parquet", "of the files in the folder", only=PARTED
    )
    on: On = option("", ON, only=PARTED)
    timeout: float = option(600.0, TIMEOUT, at_least(0), only=PARTED)
    workers: int | None = option(
        None,
        "processes that decode images (None: 0; with a folder as out, one per core, at most eight)",
        at_least(0),
        check=check_open_files,
    )


def begin(options: Predict) -> None:
    """Refuse a place that rows, or masks, cannot be written to."""
    if kind := head_of(options.weights):
        out = " out" * (kind != "numbers")
        refuse_besides(options, f"weights paths{out} device workers columns")
        if options.out is not None:
            if not is_folder(options.out):
                raise OptionError(
                    f"{kind} need a folder: name --out without an ending, not {options.out}"
                )
            check_new_folder(options.out)
        return
    if options.out is not None and is_folder(options.out):
        if options.format == "parquet":
            check_installed("pyarrow", "a folder of Parquet files", "pass --format csv")
        check_parts(options.out)
    elif options.out is not None:
        check_file(options.out, replace=options.replace)


def run(options: Predict) -> dict[str, Any]:
    """Classify, segment, detect or regress; images that cannot be decoded go to stderr."""
    if head_of(options.weights):
        return _within(options)
    from vitlab.evaluation.classification import (
        answers_of,
        classify_into,
        classify_shards,
        unlabeled,
    )
    from vitlab.evaluation.compute import Compute
    from vitlab.progress import Meter, say

    parted = bool(options.out and is_folder(options.out))
    file = None if parted else _file(options)
    model, flips = options.load(), options.flips
    if model.config.classes and not model.config.labels:
        say("the weights do not name their classes, so numbers are shown: --labels names them")
    result: dict[str, Any] = {"model": model.config.name, "temperature": model.temperature}
    how: dict[str, Any] = {"top": options.top, "flips": flips}
    if parted:
        how |= options.values(PARTS) | {"ending": options.format}
        folder = Path(options.out or "").expanduser()
        images = partial(unlabeled, model, options.paths, options.columns)
        found = classify_shards(folder, model, images, Compute(**options.values(COMPUTE)), **how)
        return found and result | found
    source = unlabeled(model, options.paths, options.columns)
    compute = Compute(**options.values(COMPUTE) | {"workers": options.workers or 0})
    if file is not None:
        with Meter(0, title="predicting") as meter:
            how |= {"warn": say_skipped, "progress": meter.images}
            return result | classify_into(file, model, source, compute, **how) | {"file": str(file)}
    form = compute.fast(model, source, 1 + flips)
    answers = answers_of(form, source, compute, options.top, flips)
    damaged = [each.error for each in answers if each.error]
    say_skipped(*damaged)
    if damaged:
        say(f"{len(damaged):,} of {len(answers):,} images cannot be read")
    result |= {"images": len(answers) - len(damaged), "damaged": len(damaged), **form.about}
    return result | {"predictions": [each.as_dict() for each in answers]}


def _within(options: Predict) -> dict[str, Any]:
    """Answer with masks, boxes or numbers."""
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.detection import find_objects
    from vitlab.evaluation.estimates import estimate
    from vitlab.evaluation.segmentation import write_masks

    run, kind = options.weights, head_of(options.weights)
    place = Path(options.out).expanduser() if options.out else None
    how = Compute(options.device, workers=options.workers or 0), options.columns
    if kind == "numbers":
        found, key = estimate(run, options.paths, *how), "estimates"
    else:
        find, key = (write_masks, "masks") if kind == "masks" else (find_objects, "detections")
        found = find(run, options.paths, place, *how)
    say_skipped(*(each["error"] for each in found[key] if "error" in each))
    return found


def _file(options: Predict) -> Path | None:
    """Return the file to write, if any; refuse processes that would all do and print the same."""
    from vitlab.distributed.launch import read_environment

    world = read_environment(os.environ)
    if world.size > 1:
        raise world.shared(
            OptionError("several processes need a folder to share: pass --out with its name")
        )
    return check_file(options.out, replace=options.replace) if options.out else None


def show(result: dict[str, Any]) -> None:
    """Print a line per image, or where they are."""
    for key in ("masks", "detections", "estimates"):
        if key in result:
            for each in result[key]:
                if "error" not in each:
                    _show_headed(each)
            return
    if "parts" in result:
        print_figures(result)
        return
    if "file" in result:
        damaged = f", {result['damaged']:,} damaged" if result["damaged"] else ""
        print(f"{result['file']}: {result['images']:,} images{damaged}")
    for each in (line for line in result.get("predictions", ()) if "top" in line):
        best = "  ".join(f"{item['class']} {item['probability']:.1%}" for item in each["top"])
        best += "  unlike the training images" * each.get("unlike", False)
        print(f"{one_line(each['image'])}  {best}")
    if any(each.get("unlike") for each in result.get("predictions", ())):
        from vitlab.models.unlike import FOUND

        print(f"unlike the training images: {FOUND}")
    if result["temperature"] != 1:
        print(f"probabilities are calibrated: temperature {result['temperature']:.4g}")


def _show_headed(row: dict[str, Any]) -> None:
    """Print what an image's mask, objects or numbers are, and the file that has them."""
    place = row.get("mask") or row.get("picture")
    words = [one_line(row["image"]) + (f" -> {one_line(place)}" if place else "")]
    words += [f"{name} {share:.1%}" for name, share in [*row.get("shares", {}).items()][:SHOWN]]
    far = {name: f" ± {own:.3g}" for name, own in row.get("deviations", {}).items()}
    for name, value in row.get("values", {}).items():
        words.append(f"{name} {value:.5g}{far.get(name, '')}")
    print("  ".join(words))
    for own in row.get("objects", ()):
        left, top, right, bottom = (round(edge) for edge in own["box"])
        print(f"  {own['class']} {own['probability']:.1%}  {left}, {top} to {right}, {bottom}")


COMMAND = Command(run, show=show, begin=begin)
