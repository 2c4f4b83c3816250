"""`vitlab evaluate`."""

from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

from vitlab.command_table import Command
from vitlab.commands import (
    COMPUTE,
    OUT,
    ComputeOptions,
    FlipsOptions,
    Split,
    WeightsOptions,
    WorkersOptions,
    refuse_besides,
    shown,
)
from vitlab.data.exists import check_data
from vitlab.data.settings import Columns
from vitlab.files import head_of
from vitlab.options import Only, argument, at_least, below, option, when
from vitlab.places import check_files
from vitlab.runs.run_folder import RunFolder
from vitlab.terminal import print_figures, print_rows, print_table
from vitlab.units import percent


@dataclass(frozen=True, kw_only=True)
class Evaluate(WorkersOptions, ComputeOptions, FlipsOptions, WeightsOptions):
    """A model, data, and where to compute."""

    data: str = argument("labeled images, any DATA of `vitlab train`", check_data)
    split: Split = option(
        "auto",
        "auto: the test split if there is one; of data without splits, what training held out if "
        "the model was trained on it, else every image",
    )
    calibrate: bool = option(
        False,
        "fit a temperature to the validation split and keep it with the weights",
        only=when("split", "auto", "test"),
    )
    choose_thresholds: Literal["class", "all"] | None = option(
        None,
        "where images have several labels: choose the probability above which a class is "
        "predicted by F1 on the validation split, one per class or one for all, and keep it with "
        "the weights",
        only=when("split", "auto", "test"),
    )
    threshold: float | None = option(
        None,
        "where images have several labels: this threshold for all classes, once",
        at_least(0),
        below(1),
        only=Only("without choose_thresholds", lambda options: not options.choose_thresholds),
    )
    out: str | None = option(None, OUT)
    label_errors: str | None = option(
        None,
        "a new .csv, .jsonl or .parquet file for the images whose labels are likely wrong, "
        "likeliest error first",
    )
    replace: bool = option(
        False,
        "replace the files that --out and --label-errors name",
        only=Only("with out or label_errors", lambda options: options.out or options.label_errors),
    )
    protocol: Literal["imagenet", "real", "v2", "objectnet", "a", "r", "sketch"] | None = option(
        None,
        "the rules of ImageNet or one of its relatives, for a model of its classes (real: ReaL; "
        "v2: ImageNet-V2; a, r, sketch: ImageNet-A, -R and -Sketch)",
    )
    real_labels: str = option("", "ReaL's file real.json", only=when("protocol", "real"))
    outputs: Literal["auto", "all", "shared"] = option(
        "auto",
        "which outputs compete: all 1,000; shared, those of the classes in the data set; auto, as "
        "its authors have it",
        only=when("protocol"),
    )
    columns: Columns = Columns()

    def __post_init__(self) -> None:
        """Check every option, and that none is given that a protocol decides."""
        super().__post_init__()
        if self.protocol is not None:
            from vitlab.evaluation.imagenet_protocols import check_alone

            names = "split calibrate choose_thresholds threshold out label_errors"
            check_alone(**self.values(names))


def about() -> str:
    """Return what `--help` says of the figures, below the options."""
    from vitlab.evaluation.metrics import METRICS

    lines = [f"{each.name}: {each.note}" for each in METRICS.values() if each.fn]
    text = "\n".join(fill(each, 80, subsequent_indent="  ") for each in lines)
    return f"\n\nfigures, by their names in --json:\n\n{text}"


def begin(options: Evaluate) -> None:
    """Refuse files that rows cannot be written to, and what means nothing of masks."""
    if head_of(options.weights):
        refuse_besides(options, "weights data split device workers columns")
    check_files(options.out, options.label_errors, replace=options.replace)


def run(options: Evaluate) -> dict[str, Any]:
    """Evaluate; images that are skipped are reported on stderr."""
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.evaluation import evaluation
    from vitlab.evaluation.imagenet_protocols import examine
    from vitlab.progress import Meter, say
    from vitlab.weights.save import own_folder

    if head_of(options.weights):
        return _within(options)
    files = check_files(options.out, options.label_errors, replace=options.replace)
    fitted = options.calibrate or options.choose_thresholds
    folder = own_folder(options.weights) if fitted else None  # which keeps what is fitted
    model, compute = options.load(), Compute(**options.values(COMPUTE))
    with Meter(0, title="evaluating") as meter:
        if options.protocol:
            by = options.values("real_labels outputs") | {"progress": meter.images}
            result = examine(model, options.data, options.protocol, compute, options.flips, **by)
            say(*result["notes"])
            return result
        how = options.values("split columns calibrate threshold flips") | {"files": files}
        how |= {"choosing": options.choose_thresholds, "progress": meter.images}
        done = evaluation(model, options.data, compute, **how)
    bad = {*done.predictions.bad.values()}
    say(*(f"skipped: {note}" if note in bad else note for note in done.figures["notes"]))
    if folder is not None:
        _keep(options, model, folder, done)
    return done.figures


def _within(options: Evaluate) -> dict[str, Any]:
    """Evaluate a run that answers with masks, boxes or numbers."""
    from vitlab.evaluation.average_precision import evaluate_boxes
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.mask_figures import evaluate_masks
    from vitlab.evaluation.regression import evaluate_targets
    from vitlab.progress import say

    run, how = options.weights, options.values("data split")
    how["compute"] = Compute(options.device, workers=options.workers)
    how["columns"] = options.columns
    doors = {"boxes": evaluate_boxes, "masks": evaluate_masks, "numbers": evaluate_targets}
    found = doors[head_of(run)](run, **how)
    say(*found["notes"])
    return found


def _keep(options: Evaluate, model: Any, folder: Any, done: Any) -> None:
    """Save with the weights what was fitted, and draw a run's calibration."""
    from vitlab.weights.save import save_provenance

    save_provenance(model, folder)
    for key in ("calibration", "chosen_thresholds"):
        if key in done.figures:
            done.figures[key]["saved"] = str(folder)
    if (run := RunFolder(options.weights)).started:
        from vitlab.report.gather import write_calibrated  # draws, slow to import

        if (report := write_calibrated(run, model, done)) is not None:
            done.figures["report"] = str(report)


def show(result: dict[str, Any]) -> None:
    """Print the figures, those of the worst classes, and the most confused pairs."""
    if shown(result):
        return
    print_figures(result)
    if "protocol" in result:
        return
    if found := result.get("calibration"):
        line = f"temperature {found['temperature']:.4g}, fitted to {found['images']:,} images"
        _show_change(line, found)
    if found := result.get("chosen_thresholds"):
        _show_change(f"thresholds chosen on {found['images']:,} validation images", found)
    if found := result.get("label_errors"):
        print(f"{found['listed']:,} labels are likely wrong: {found['file']}")
    seen = [each for each in result["classes"] if each["images"]]
    worst = sorted(seen, key=lambda each: each["f1"])[:10]
    keys = ("precision", "recall", "f1")
    rows = [
        (each["class"], *(percent(each[key]) for key in keys), f"{each['images']:,}")
        for each in worst
    ]
    if len(worst) < len(result["classes"]):
        print(f"the {len(worst)} classes with the lowest F1, of {len(result['classes']):,}")
    print_table(("class", "precision", "recall", "F1", "images"), rows)
    if pairs := result["confused"][:5]:
        cells = [(each["true"], each["predicted"], f"{each['images']:,}") for each in pairs]
        print_table(("true class", "predicted as", "images"), cells)


def _show_change(line: str, found: dict[str, Any]) -> None:
    """Print what fitting changed, and where the fit is kept."""
    print(line)
    print_rows([{"": when_} | found[when_] for when_ in ("before", "after")])
    print(f"kept in {found['saved']}")


COMMAND = Command(run, show=show, begin=begin, about=about)
