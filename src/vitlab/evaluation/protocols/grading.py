"""A model's figures under one of the protocols."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.labels import SingleLabels
from vitlab.errors import OptionError
from vitlab.evaluation.answers import Floats
from vitlab.evaluation.choosing import unlearned
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import ONE_VIEW, Progress, Views, silent
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.predictions import Predictions, check_classifier, predict
from vitlab.evaluation.protocols.imagenet_variants import (
    EXAMS,
    Exam,
    SelectedOutputs,
    imagenet,
    outputs_of,
    reassessed,
)
from vitlab.models.cost import cost
from vitlab.models.model import Model

Protocol = Literal["imagenet", "real", "v2", "objectnet", "a", "r", "sketch"]
Outputs = Literal["auto", "all", "shared"]
ROWS = 4096  # images graded at once
PLAIN = Compute()
PER_CLASS = ("balanced_", "macro_")  # what such figures begin with


def examine(
    model: Model,
    data: str,
    protocol: Protocol,
    *,
    real_labels: str = "",
    outputs: Outputs = "auto",
    compute: Compute = PLAIN,
    views: Views = ONE_VIEW,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Measure a model of ImageNet's classes by a protocol: the JSON of `vitlab evaluate`.

    Images are prepared as for every evaluation of this model. With several right classes per
    image, the likeliest of them decides (`nll` too).

    Args:
        model: a classifier whose outputs are named by WordNet ids, or one of 1,000 outputs in
            ImageNet's order
        data: the data set's folder; of `imagenet`, `a`, `r` and `sketch` any labeled data
        protocol: the rules (see `exams`)
        real_labels: the file `real.json` of ReaL
        outputs: which outputs compete: `all` 1,000; `shared`, those of classes that occur in the
            data set; `auto`, as the data set's authors have it: `shared` for A and R, else `all`
        compute: where and how
        views: of each image, to average over
        progress: called after every batch with the number of images processed, and of all

    Returns:
        The figures of `vitlab.evaluate` with their intervals, and protocol, left_out (images that
        do not count) and competing (outputs). ImageNet-V2's folder of several variants gives the
        figures of matched-frequency, or of the first variant there, and `variants`, those of each.

    Raises:
        DataError: the data set is not as its authors publish it.
        OptionError: the model's outputs are not ImageNet's.
    """
    devices.restart_peak(compute.where)
    check_classifier(model)
    if real_labels and protocol != "real":
        raise OptionError(f"real_labels applies only with protocol=real, not {protocol}")
    exams = reassessed(data, real_labels) if protocol == "real" else EXAMS[protocol](data)
    run = partial(predict, compute=compute, views=views, progress=progress)
    every = {
        name: _figures(model, exam, competing(exam, outputs), run) for name, exam in exams.items()
    }
    price, first = cost(model), next(iter(every.values()))
    about = {
        "protocol": protocol,
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "peak_memory": devices.peak_memory(compute.where),
        "temperature": model.temperature,
    }
    return first | about | ({"variants": every} if len(every) > 1 else {})


def check_alone(**given: object) -> None:
    """Refuse options of `evaluate` that have no effect under a protocol.

    Raises:
        OptionError: the first that is on, or not `auto`.
    """
    if named := [name for name, value in given.items() if value and value != "auto"]:
        raise OptionError(f"{named[0]} applies only without protocol: leave one of them out")


def selected(model: Model, classes: NDArray[np.int64]) -> tuple[Model, str]:
    """Return a model of which only the outputs of some classes compete, and a remark.

    Raises:
        OptionError: the model's outputs are not ImageNet's.
    """
    wanted, config = [imagenet()[number] for number in classes], model.config
    columns, note = outputs_of(config.labels, config.classes, wanted, config.name)
    return SelectedOutputs(model, columns), note


def _figures(
    model: Model,
    exam: Exam,
    classes: NDArray[np.int64],
    run: Callable[..., Predictions],
) -> dict[str, Any]:
    """Return the figures of one set of images; those per class only where each has one class."""
    chosen, note = selected(model, classes)
    asked = unlearned(exam.source, model.seen, leave_out=False)
    done = run(chosen, exam.source)
    found = with_intervals(done.probabilities, truth(done, exam, classes))
    if exam.accepted.sum(axis=1).max() > 1:
        for name in [each for each in found if each.startswith(PER_CLASS)]:
            del found[name]
            found["intervals"].pop(name, None)
    return found | {
        "left_out": exam.left_out,
        "damaged": len(done.bad),
        "competing": len(classes),
        "seconds": done.seconds,
        "images_per_second": len(done.labels) / done.seconds,
        "notes": [*([note] if note else []), *asked.notes, *exam.notes, *done.bad.values()],
    }


def competing(exam: Exam, outputs: Outputs) -> NDArray[np.int64]:
    """Return the numbers of the classes whose outputs compete."""
    few = exam.compete if outputs == "auto" else outputs == "shared"
    return exam.shared if few else np.arange(exam.accepted.shape[1])


def truth(done: Predictions, exam: Exam, classes: NDArray[np.int64]) -> SingleLabels:
    """Return the likeliest right class of each image, as an index of those that compete.

    An image is then right among the first k exactly if any of its right classes is.
    """
    parts = [
        best(done.probabilities[start : start + ROWS], exam.accepted[rows][:, classes])
        for start in range(0, len(done.labels), ROWS)
        for rows in [done.labels.values[start : start + ROWS]]
    ]
    return SingleLabels(np.concatenate(parts))


def best(probabilities: Floats, accepted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the likeliest accepted class of each row (ties: the lower number)."""
    return np.where(accepted, probabilities, -1.0).argmax(axis=1)
