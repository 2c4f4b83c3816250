"""Metrics of a model on a data set."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.images import Images
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given, title_of
from vitlab.errors import OptionError
from vitlab.evaluation.calibration import Per, thresholds_for, thresholds_json
from vitlab.evaluation.calibration import calibrate as fit_temperature
from vitlab.evaluation.calibration import choose_thresholds as fit_thresholds
from vitlab.evaluation.choosing import Split, choose
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.imagenet_protocols import Outputs, Protocol, check_alone, examine
from vitlab.evaluation.infer import Probabilities, Progress, check_classifier, predict, silent
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.label_errors import LEARNED, find_label_errors, write_suspects
from vitlab.evaluation.per_class import class_tables
from vitlab.evaluation.records import EvaluationRecord
from vitlab.evaluation.rows import RowLayout, table_to
from vitlab.models.model import Model
from vitlab.places import NO_FILES, Files, check_files
from vitlab.precision import Engine, Precision, fixed
from vitlab.public_calls import public


@dataclass(frozen=True)
class Evaluation:
    """A model on the images of a source: its predictions, and the figures made of them."""

    source: Images
    predictions: Probabilities
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
    choose_thresholds: Per | None = None,
    threshold: float | None = None,
    flips: bool = False,
    out: str | Path | None = None,
    label_errors: str | Path | None = None,
    replace: bool = False,
    protocol: Protocol | None = None,
    real_labels: str = "",
    outputs: Outputs = "auto",
    quiet: bool = False,
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
        columns: the columns of a list or a table; None to find them
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
        out: a new .csv, .jsonl or .parquet file for a row per image
        label_errors: a new .csv, .jsonl or .parquet file for the images whose labels are likely
            wrong, likeliest error first (confident learning; Northcutt et al., 2021)
        replace: older files of these names
        protocol: evaluate by the rules of ImageNet or one of its relatives instead (`examine`)
        real_labels: the file real.json, for the protocol `real`
        outputs: which outputs compete under a protocol: all, shared, or as its authors have it
        quiet: print nothing but warnings

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
    if protocol is not None:
        check_alone(
            split=split,
            calibrate=calibrate,
            choose_thresholds=choose_thresholds,
            threshold=threshold,
            out=out,
            label_errors=label_errors,
        )
        by = {"real_labels": real_labels, "outputs": outputs}
        found = examine(model, data, protocol, compute, flips, **by)  # type: ignore[arg-type]
        return EvaluationRecord(found)
    if real_labels or outputs != "auto":
        raise OptionError("real_labels and outputs apply only with a protocol: leave them out")
    done = evaluation(
        model,
        data,
        compute,
        split=split,
        columns=columns,
        calibrate=calibrate,
        choosing=choose_thresholds,
        threshold=threshold,
        flips=flips,
        files=check_files(out, label_errors, replace=replace),
    )
    return EvaluationRecord(done.figures)


def evaluation(
    model: Model,
    data: Given,
    compute: Compute,
    *,
    split: Split = "auto",
    columns: Columns | None = None,
    calibrate: bool = False,
    choosing: Per | None = None,
    threshold: float | None = None,
    flips: bool = False,
    files: Files = NO_FILES,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate as `evaluate` does, whose arguments these are, and return the predictions too.

    Args:
        model: as `evaluate`
        data: as `evaluate`
        compute: where and how
        split: as `evaluate`
        columns: as `evaluate`
        calibrate: as `evaluate`
        choosing: thresholds, as `choose_thresholds` of `evaluate`
        threshold: as `evaluate`
        flips: as `evaluate`
        files: to write, as `check_files` accepted them
        progress: called after every batch with the number of images processed, and of all
    """
    check_classifier(model)
    if calibrate or choosing:
        _check_fitting(split, flips, twice=choosing is not None and threshold is not None)
    fitting: dict[str, Any] = {
        "columns": columns,
        "device": str(compute.device),
        "precision": fixed(compute.precision),
        "workers": compute.workers,
    }
    asked = choose(model, data, split, columns)
    source = asked.source
    devices.restart_peak(compute.where)
    found = fit_temperature(model, data, **fitting) if calibrate else None
    before = thresholds_for(model, threshold, several=source.target.several)
    chosen = fit_thresholds(model, data, choosing, **fitting) if choosing else None
    above = np.array(chosen.values) if chosen else before
    form = compute.fast(model, source, 1 + flips)
    layout = RowLayout(source, truth=True, threshold=above, far=model.unlike is not None)
    with table_to(files.rows, layout.kinds) as write:
        done = predict(
            form.model,
            source,
            compute.of(form),
            flips=flips,
            logits=calibrate,
            use=lambda batch: write(layout.rows(batch)),
            progress=progress,
        )
    figures = _figures(model, source, done, above) | form.about
    notes = [*asked.notes, *figures["notes"]]
    figures |= {"data": title_of(data), **asked.about, "notes": notes}
    figures |= {"peak_memory": devices.peak_memory(compute.where)}
    if found is not None:
        figures["calibration"] = found.change(model, done)
    if chosen is not None:
        figures["chosen_thresholds"] = chosen.change(before, done)
    figures |= {} if files.rows is None else {"file": str(files.rows)}
    if files.label_errors is not None:
        errors = find_label_errors(done.probabilities, done.labels)
        rows = errors.rows(source.classes, lambda row: source.name(int(done.indices[row])))
        figures["label_errors"] = write_suspects(files.label_errors, errors, rows)
        notes += [LEARNED] * (asked.split == "train")
    return Evaluation(source, done, figures)


def _figures(
    model: Model, source: Images, done: Probabilities, above: NDArray[np.float64]
) -> dict[str, Any]:
    results = done.probabilities, done.labels
    several = {"thresholds": thresholds_json(above, source.classes)}
    return with_intervals(*results, threshold=above) | {
        **done.about(model),
        **class_tables(*results, source.classes, above),
        "notes": [*done.bad.values()],
        **(several if done.labels.several else {}),
    }


def _check_fitting(split: Split, flips: bool, *, twice: bool) -> None:
    """Refuse to fit to what is evaluated, otherwise than it is used, or what is given."""
    if split not in ("auto", "test"):
        raise OptionError(
            f"fitting to the validation split and evaluating on split={split} would judge a model "
            "by images that it has seen: choose split=test"
        )
    if flips:
        raise OptionError(
            "temperature and thresholds are fitted to one view of each image: do it without flips "
            "first, then evaluate with them"
        )
    if twice:
        raise OptionError(
            "threshold and choose_thresholds exclude each other: leave one of them out"
        )
