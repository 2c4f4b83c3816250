"""Metrics of a model on a data set."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given, title_of
from vitlab.data.sources.source import Source
from vitlab.errors import OptionError
from vitlab.evaluation import calibration, thresholds
from vitlab.evaluation.choosing import Split, choose
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.imagenet_protocols import Outputs, Protocol, check_alone, examine
from vitlab.evaluation.infer import ONE_VIEW, Progress, Views, silent
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.label_errors import LEARNED, suspects_in, write_suspects
from vitlab.evaluation.on_ray import check_on, infer_on_ray, shared_out
from vitlab.evaluation.per_class import class_figures, confused_pairs
from vitlab.evaluation.predictions import Predictions, check_classifier, predict
from vitlab.evaluation.records import EvaluationRecord
from vitlab.evaluation.rows import Layout, rows_to
from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.places import NO_FILES, Files, On, check_files
from vitlab.precision import Engine, Precision, fixed
from vitlab.progress import public


@dataclass(frozen=True)
class How:
    """How predictions are computed.

    Attributes:
        compute: where and how
        views: of each image
        threshold: above which a class is predicted where images have several; None for the model's
        columns: which columns of a list or a table hold what; None to find them
        on: ray: Ray's actors compute
    """

    compute: Compute = Compute(precision="auto")
    views: Views = ONE_VIEW
    threshold: float | None = None
    columns: Columns | None = None
    on: On = ""

    @property
    def fitting(self) -> dict[str, Any]:
        """The same for `calibrate` and `choose_thresholds`, by the names of their arguments."""
        return {
            "columns": self.columns,
            "device": str(self.compute.device),
            "precision": fixed(self.compute.precision),
            "workers": self.compute.workers,
        }


@dataclass(frozen=True)
class Evaluation:
    """A model on the images of a source: its predictions, and the figures made of them."""

    source: Source
    predictions: Predictions
    figures: dict[str, Any]


@public(model=Model)
def evaluate(
    model: Model,
    data: Given,
    *,
    split: Split = "auto",
    columns: Columns | None = None,
    device: str = "auto",
    precision: Precision = "auto",
    engine: Engine = "auto",
    workers: int | None = None,
    calibrate: bool = False,
    choose_thresholds: thresholds.Per | None = None,
    threshold: float | None = None,
    flips: bool = False,
    crops: Literal[1, 5, 10] = 1,
    out: str | Path | None = None,
    label_errors: str | Path | None = None,
    replace: bool = False,
    protocol: Protocol | None = None,
    real_labels: str = "",
    outputs: Outputs = "auto",
    on: On = "",
) -> EvaluationRecord:
    """Measure a model on labeled images: the same figures as `vitlab evaluate --json`.

    Labels map to the model's classes by name.

    Args:
        model: from `vitlab.load` or a run; its device and mode are the same afterwards
        data: as for training; or labeled images in memory: (image, label) pairs in a list or a data
            set of PyTorch, a `datasets.Dataset`, a DataFrame or a list of dictionaries with the
            columns that lists have, a tuple of two arrays; or a dictionary with these for `train`,
            `validation` or `test`, and under `classes` the names that numbers index
        split: `auto` is the test split if the data has one; of unsplit data it is what training
            held out if this model was trained on it, else every image
        columns: which columns of a list or a table hold what; None to find them
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32; bf16; or auto, as `vitlab.classify`
        engine: auto, or one by its name, as `vitlab.accelerate`
        workers: processes that decode; None to choose
        calibrate: fit the temperature on the validation split first, as `vitlab.calibrate` does
        choose_thresholds: choose the probability above which a class is predicted on the validation
            split first, as `vitlab.choose_thresholds` does: one per `class`, or one for `all`
        threshold: this one for all classes, in place of the model's, where images have several
            labels
        flips: average the probabilities over each image and its mirror image
        crops: average them over 5 crops, the corners and the center, or over 10: these and their
            mirror images
        out: a new .csv, .jsonl or .parquet file for a row per image
        label_errors: a new .csv, .jsonl or .parquet file for the images whose labels are likely
            wrong, likeliest error first (confident learning; Northcutt et al., 2021)
        replace: older files of these names
        protocol: evaluate by the rules of ImageNet or one of its relatives instead (`examine`)
        real_labels: the file real.json, for the protocol `real`
        outputs: which outputs compete under a protocol: all, shared, or as its authors have it
        on: ray: Ray's actors compute, as for `vitlab.embed`; `auto` is then fp32

    Returns:
        The figures of `vitlab.evaluation.metrics.METRICS` that such images have, by their names;
        intervals, the 95% confidence intervals of those that have one; images, damaged, split,
        model, params, macs, precision, engine, images_per_second, peak_memory (bytes), seconds,
        temperature, classes (precision, recall, F1, images), confused (the most confused pairs),
        notes; thresholds, where images have several labels; calibration (NLL and ECE before and
        after), chosen_thresholds (F1 before and after) and label_errors (`file`, `listed`,
        `expected`), if asked for, and file.

    Raises:
        DataError: no such data or split, classes that the model does not have, or no validation
            split to calibrate or choose thresholds on.
        OptionError: the model has no classifier; options that do not go together.
        DiskError: the file cannot be written.
    """
    compute = Compute(device, precision, engine, workers)
    how = How(compute, Views(flips, crops), threshold, columns, on)
    if on and (protocol or calibrate or choose_thresholds):
        raise OptionError(
            "on applies only without protocol, calibrate and choose_thresholds: leave it out"
        )
    if protocol is not None:
        check_alone(
            split=split,
            calibrate=calibrate,
            choose_thresholds=choose_thresholds,
            threshold=threshold,
            out=out,
            label_errors=label_errors,
        )
        found = examined(model, data, protocol, how, real_labels, outputs)
        return EvaluationRecord(found)
    if real_labels or outputs != "auto":
        raise OptionError("real_labels and outputs apply only with a protocol: leave them out")
    files = check_files(out, label_errors, replace=replace)
    done = evaluation(
        model, data, how, split=split, calibrate=calibrate, choosing=choose_thresholds, files=files
    )
    return EvaluationRecord(done.figures)


def evaluation(
    model: Model,
    data: Given,
    how: How,
    *,
    split: Split = "auto",
    calibrate: bool = False,
    choosing: thresholds.Per | None = None,
    files: Files = NO_FILES,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate as `evaluate` does, and return the predictions too.

    Args:
        model: as `evaluate`
        data: as `evaluate`
        how: to compute
        split: as `evaluate`
        calibrate: as `evaluate`
        choosing: thresholds, as `choose_thresholds` of `evaluate`
        files: to write, as `check_files` accepted them
        progress: called after every batch with the number of images processed, and of all
    """
    check_classifier(model)
    check_fitting(split, how, calibrate=calibrate, choosing=choosing is not None)
    wanted, batches = how.compute, None
    if spread := check_on(how.on):
        here, wanted = shared_out(wanted)
        how = replace(how, compute=here)
    asked = choose(model, data, split, how.columns)
    source = asked.source
    devices.restart_peak(how.compute.where)
    found = calibration.calibrate(model, data, **how.fitting) if calibrate else None
    before = thresholds.given_or_kept(model, how.threshold, several=source.labels.several)
    chosen = None
    if choosing:
        chosen = thresholds.choose_thresholds(model, data, choosing, **how.fitting)
    above = np.array(chosen.values) if chosen else before
    form = how.compute.fast(model, source, how.views.count)
    if spread:
        batches = infer_on_ray(model, source, wanted, how.views, progress)
    layout = Layout(source, truth=True, threshold=above, far=model.unlike is not None)
    with rows_to(files.rows, layout) as use:
        done = predict(
            form.model,
            source,
            how.compute.of(form),
            views=how.views,
            logits=calibrate,
            use=use,
            progress=progress,
            batches=batches,
        )
    figures = _figures(model, source, done, above) | form.about
    figures |= {"engine": wanted.engine} if spread else {}
    notes = [*asked.notes, *figures["notes"]]
    figures |= {"data": title_of(data), **asked.about, "notes": notes}
    figures |= {"peak_memory": devices.peak_memory(how.compute.where)}
    if found is not None:
        figures["calibration"] = calibration.before_and_after(model, found, done)
    if chosen is not None:
        figures["chosen_thresholds"] = thresholds.before_and_after(chosen, before, done)
    return Evaluation(source, done, figures | _written(files, source, done, figures, asked.split))


def _written(
    files: Files, source: Source, done: Predictions, figures: dict[str, Any], split: str
) -> dict[str, Any]:
    """Write the label errors, and return what the figures say of both files."""
    written: dict[str, Any] = {} if files.rows is None else {"file": str(files.rows)}
    if files.label_errors is not None:
        written["label_errors"] = write_suspects(files.label_errors, suspects_in(source, done))
        if split == "train":
            written["notes"] = [*figures["notes"], LEARNED]
    return written


def examined(
    model: Model,
    data: Given,
    protocol: Protocol,
    how: How,
    real_labels: str,
    outputs: Outputs,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Evaluate by a protocol, which takes a folder."""
    if not isinstance(data, str | Path):
        raise OptionError("protocol needs the data set's folder, not images in memory")
    return examine(
        model,
        str(data),
        protocol,
        real_labels=real_labels,
        outputs=outputs,
        compute=replace(how.compute, precision=fixed(how.compute.precision)),
        views=how.views,
        progress=progress,
    )


def _figures(
    model: Model, source: Source, done: Predictions, above: NDArray[np.float64]
) -> dict[str, Any]:
    price, results = cost(model), (done.probabilities, done.labels)
    several = {"thresholds": thresholds.as_json(above, source.classes)}
    return with_intervals(*results, threshold=above) | {
        "damaged": len(done.bad),
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": len(done.labels) / done.seconds,
        "seconds": done.seconds,
        "temperature": model.temperature,
        "classes": [each.as_dict() for each in class_figures(*results, source.classes, above)],
        "confused": [each.as_dict() for each in confused_pairs(*results, source.classes)],
        "notes": [*done.bad.values()],
        **(several if done.labels.several else {}),
    }


def check_fitting(split: Split, how: How, *, calibrate: bool, choosing: bool) -> None:
    """Refuse to calibrate or choose thresholds on what is evaluated, or otherwise than it is used.

    Raises:
        OptionError: the message says what would work.
    """
    if not calibrate and not choosing:
        return
    if split not in ("auto", "test"):
        raise OptionError(
            f"fitting to the validation split and evaluating on split={split} would judge a model "
            "by images that it has seen: choose split=test"
        )
    if how.views.count > 1:
        raise OptionError(
            "temperature and thresholds are fitted to one view of each image: do it without flips "
            "and crops first, then evaluate with them"
        )
    if choosing and how.threshold is not None:
        raise OptionError(
            "threshold and choose_thresholds exclude each other: leave one of them out"
        )
