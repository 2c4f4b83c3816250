"""`vitlab evaluate`."""

from dataclasses import MISSING, dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

from vitlab.commands import CROPS, DEVICE, ENGINE, FLIPS, ON, OUT, PRECISION_AUTO, WEIGHTS, WORKERS
from vitlab.data.presence import check_data
from vitlab.data.settings import Columns
from vitlab.options import Only, Options, at_least, below, option, when
from vitlab.places import check_files
from vitlab.precision import Engine, Precision
from vitlab.runs.run_folder import RunFolder
from vitlab.terminal import print_figures, print_rows, print_table
from vitlab.units import percent
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

if TYPE_CHECKING:
    from vitlab.evaluation.evaluation import How

OF_VARIANT = ("accuracy", "top5", "nll", "images")
SUMMARY = "Measure accuracy and calibration on labeled images."


@dataclass(frozen=True, kw_only=True)
class Evaluate(Options):
    """A model, data, and where to compute."""

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    data: str = option(
        MISSING, "labeled images, any DATA of `vitlab train`", positional=True, check=check_data
    )
    split: Literal["auto", "train", "validation", "test", "all"] = option(
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
    flips: bool = option(False, FLIPS, only=when("crops", 1, 5))
    crops: Literal[1, 5, 10] = option(1, CROPS)
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
    on: Literal["", "ray"] = option(
        "",
        ON,
        only=Only(
            "without protocol, calibrate and choose_thresholds",
            lambda options: not (options.protocol or options.fits),
        ),
    )
    columns: Columns = Columns()
    file: Stated = Stated()
    device: str = option("auto", DEVICE)
    precision: Precision = option("auto", PRECISION_AUTO)
    engine: Engine = option("auto", ENGINE)
    workers: int | None = option(None, WORKERS, at_least(0))

    def __post_init__(self) -> None:
        """Check every option, and that none is given that a protocol decides."""
        super().__post_init__()
        if self.protocol is not None:
            from vitlab.evaluation.protocols.grading import check_alone

            check_alone(
                split=self.split,
                calibrate=self.calibrate,
                choose_thresholds=self.choose_thresholds,
                threshold=self.threshold,
                out=self.out,
                label_errors=self.label_errors,
            )

    @property
    def fits(self) -> bool:
        """Whether something is fitted, which is kept with the weights."""
        return self.calibrate or self.choose_thresholds is not None


def about() -> str:
    """Return what `--help` says of the figures, below the options."""
    from vitlab.evaluation.metrics import METRICS

    lines = [f"{each.name}: {each.note}" for each in METRICS.values() if each.fn]
    text = "\n".join(fill(each, 80, subsequent_indent="  ") for each in lines)
    return f"\n\nfigures, by their names in --json:\n\n{text}"


def begin(options: Evaluate) -> None:
    """Refuse files that rows cannot be written to."""
    check_files(options.out, options.label_errors, replace=options.replace)


def run(options: Evaluate) -> dict[str, Any]:
    """Evaluate; images that are skipped are reported on stderr."""
    return _examined(options) if options.protocol else _evaluated(options)


def _examined(options: Evaluate) -> dict[str, Any]:
    """Evaluate by a protocol; its remarks go to stderr."""
    import vitlab
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.infer import Views
    from vitlab.evaluation.protocols.grading import examine
    from vitlab.precision import fixed
    from vitlab.progress import Meter, say

    assert options.protocol
    with Meter(0, title="evaluating") as meter:
        result = examine(
            vitlab.load(options.weights, **options.file.arguments()),
            options.data,
            options.protocol,
            real_labels=options.real_labels,
            outputs=options.outputs,
            compute=Compute(
                options.device, fixed(options.precision), options.engine, options.workers
            ),
            views=Views(options.flips, options.crops),
            progress=meter.images,
        )
    for note in result["notes"]:
        say(note)
    return result


def _how(options: Evaluate) -> "How":
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.evaluation import How
    from vitlab.evaluation.infer import Views

    return How(
        Compute(options.device, options.precision, options.engine, options.workers),
        Views(options.flips, options.crops),
        options.threshold,
        options.columns,
        options.on,
    )


def _evaluated(options: Evaluate) -> dict[str, Any]:
    import vitlab
    from vitlab.evaluation.evaluation import evaluation
    from vitlab.evaluation.label_errors import LEARNED
    from vitlab.progress import Meter, say
    from vitlab.weights.save import own_folder, save_provenance

    files = check_files(options.out, options.label_errors, replace=options.replace)
    folder = own_folder(options.weights) if options.fits else None
    model = vitlab.load(options.weights, **options.file.arguments())
    with Meter(0, title="evaluating") as meter:
        done = evaluation(
            model,
            options.data,
            _how(options),
            split=options.split,
            calibrate=options.calibrate,
            choosing=options.choose_thresholds,
            files=files,
            progress=meter.images,
        )
    for note in done.predictions.bad.values():
        say(f"skipped: {note}")
    if LEARNED in done.figures["notes"]:
        say(LEARNED)
    if folder is not None:
        save_provenance(model, folder)
        for key in ("calibration", "chosen_thresholds"):
            if key in done.figures:
                done.figures[key]["saved"] = str(folder)
        if (run := RunFolder(options.weights)).started:
            from vitlab.report.gather import write_calibrated  # draws, slow to import

            if (report := write_calibrated(run, model, done)) is not None:
                done.figures["report"] = str(report)
    return done.figures


def show(result: dict[str, Any]) -> None:
    """Print the figures, those of the worst classes, and the most confused pairs."""
    print_figures({key: value for key, value in result.items() if key != "variants"})
    if "protocol" in result:
        several: dict[str, dict[str, Any]] = result.get("variants", {})
        print_rows(
            [
                {"variant": name} | {key: each[key] for key in OF_VARIANT}
                for name, each in several.items()
            ]
        )
        return
    if found := result.get("calibration"):
        print(f"temperature {found['temperature']:.4g}, fitted to {found['images']:,} images")
        _show_change(found)
    if found := result.get("chosen_thresholds"):
        print(f"thresholds chosen on {found['images']:,} validation images")
        _show_change(found)
    if found := result.get("label_errors"):
        print(f"{found['listed']:,} labels are likely wrong: {found['file']}")
    seen = [each for each in result["classes"] if each["images"]]
    worst = sorted(seen, key=lambda each: each["f1"])[:10]
    rows = [
        (
            each["class"],
            *(percent(each[key]) for key in ("precision", "recall", "f1")),
            f"{each['images']:,}",
        )
        for each in worst
    ]
    if len(worst) < len(result["classes"]):
        print(f"the {len(worst)} classes with the lowest F1, of {len(result['classes']):,}")
    print_table(("class", "precision", "recall", "F1", "images"), rows)
    pairs = [
        (each["true"], each["predicted"], f"{each['images']:,}") for each in result["confused"][:5]
    ]
    if pairs:
        print_table(("true class", "predicted as", "images"), pairs)


def _show_change(found: dict[str, Any]) -> None:
    """Print what fitting changed, and where the fit is kept."""
    print_rows([{"": when_} | found[when_] for when_ in ("before", "after")])
    print(f"kept in {found['saved']}")
