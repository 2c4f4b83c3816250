"""`vitlab export`."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import WeightsOptions, refuse_besides
from vitlab.errors import OptionError
from vitlab.files import head_of
from vitlab.graphs.targets import (
    IMAGES,
    PRECISION,
    TARGETS,
    Precision,
    check_precision,
    check_target,
    target_help,
)
from vitlab.options import at_least, option, when
from vitlab.places import check_new_folder
from vitlab.terminal import print_table
from vitlab.units import percent, storage
from vitlab.weights.formats.catalog import export_help, export_names

FILES = ", ".join(name for name, target in TARGETS.items() if target.ending)


def names() -> list[str]:
    """List what a model can be written as: files that run, and folders of weights."""
    return [*TARGETS, *export_names()]


@dataclass(frozen=True, kw_only=True)
class Export(WeightsOptions):
    """A model, the format and the new file or folder."""

    to: str = option(MISSING, f"the format: {target_help()}; {export_help()}", choices=names)
    out: str = option(
        MISSING, f"the new file (for {FILES}) or folder; a folder for onnx has a check too"
    )
    bare: bool = option(
        False,
        "leave preprocessing and probabilities out: normalized images to logits",
        only=when("to", "onnx", "torch"),
    )
    precision: Precision = option("fp32", PRECISION, only=when("to", "onnx"))
    data: str | None = option(
        None,
        "labeled images, any DATA of `vitlab train`, to measure the cost of fp16 or int8 on, and "
        "to calibrate int8",
        only=when("precision", "fp16", "int8"),
    )
    images: int = option(
        IMAGES, "images to measure on, at most, drawn at random", at_least(1), only=when("data")
    )
    batch: int = option(
        0, "images in every batch (0: any number)", at_least(0), only=when("to", "onnx")
    )


def begin(options: Export) -> None:
    """Refuse a file or folder that cannot be written, and missing packages."""
    if kind := head_of(options.weights):
        refuse_besides(options, "weights to out bare")
        if options.to != "onnx":
            raise OptionError(f"a run that answers with {kind} is exported with --to onnx")
    if options.to in TARGETS:
        check_target(options.to, options.out)
        check_precision(options.to, options.precision, bool(options.data))
    else:
        check_new_folder(options.out)


def run(options: Export) -> dict[str, Any]:
    """Load and write."""
    if kind := head_of(options.weights):
        from vitlab.graphs.headed_onnx import export_headed

        return export_headed(options.weights, options.out, kind)
    from vitlab.graphs.exporting import export
    from vitlab.weights.save import save

    model = options.load()
    if options.to in TARGETS:
        how = options.values("bare precision data images batch")
        return export(model, options.out, options.to, **how)
    folder = str(save(model, options.out, to=options.to, base=options.file.base))
    return {"model": model.config.name, "format": options.to, "folder": folder}


def show(result: dict[str, Any]) -> None:
    """Print the files."""
    if "folder" in result and result["format"] not in TARGETS:
        names = ", ".join(sorted(each.name for each in Path(result["folder"]).iterdir()))
        print(f"{result['model']} for {result['format']}: {result['folder']} ({names})")
        return
    place = result.get("file") or result.get("page") or ", ".join(result["files"])
    size = f", {storage(result['bytes'])}" if "bytes" in result else ""
    print(f"{result['model']} for {result['format']}: {place}{size}")
    for kind in ("inputs", "outputs"):
        shapes = [f"{name} {tuple(shape)}" for name, shape in result.get(kind, {}).items()]
        if shapes:
            print(f"{kind}: {', '.join(shapes)}".replace("'", ""))
    batches = ", ".join(map(str, result["batches"]))
    print(f"checked with {batches} images: within {result['difference']:.1g} of the model")
    if "file" in result and "folder" in result:
        print(f"check it where it will run: python {result['folder']}/check.py RUNTIME")
    if "bytes_before" in result:
        _show_cost(result)


def _show_cost(result: dict[str, Any]) -> None:
    """Print what fewer bits change."""
    name = "map" if "map" in result else "accuracy"
    forms = {name: percent, "images_per_second": "{:,.0f}".format, "bytes": storage}
    titles = "mAP" if name == "map" else name, "images/s", "size"
    rows = [
        (title, form(result[f"{key}_before"]), form(result[key]))
        for title, (key, form) in zip(titles, forms.items(), strict=True)
        if f"{key}_before" in result
    ]
    print_table(("", "fp32", result["precision"]), rows)
    if "agreement" not in result:
        return
    print(
        f"on {result['images']:,} images ({result['split']}): {percent(result['agreement'])} of "
        "the predictions are the same; no probability changes by more than "
        f"{result['largest_change']:.2g}"
    )


COMMAND = Command(run, show=show, begin=begin)
