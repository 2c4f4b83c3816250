"""A model's figures under one of the protocols."""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.labels import SingleLabels
from vitlab.errors import OptionError
from vitlab.evaluation.metrics import Probabilities, figures
from vitlab.evaluation.predictions import Predictions, check_classifier, predict
from vitlab.evaluation.protocols.exams import EXAMS, Exam, reassessed
from vitlab.evaluation.protocols.wordnet import SelectedOutputs, imagenet, outputs_of
from vitlab.models.cost import cost
from vitlab.models.model import Model

Protocol = Literal["imagenet", "real", "v2", "objectnet", "a", "r", "sketch"]
Outputs = Literal["auto", "all", "shared"]
ROWS = 4096  # images graded at once


def examine(
    model: Model,
    data: str,
    protocol: Protocol,
    *,
    real_labels: str = "",
    outputs: Outputs = "auto",
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    workers: int | None = None,
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
        device: auto, cpu, cuda or cuda:N
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose

    Returns:
        The keys of `vitlab.evaluate`, and protocol, left_out (images that do not count) and
        competing (outputs). ImageNet-V2's folder of several variants gives the figures of
        matched-frequency, or of the first variant there, and `variants`, those of each.

    Raises:
        DataError: the data set is not as its authors publish it.
        OptionError: the model's outputs are not ImageNet's.
    """
    where = devices.choose(device)
    check_classifier(model)
    if real_labels and protocol != "real":
        raise OptionError(f"real_labels applies only with protocol=real, not {protocol}")
    exams = reassessed(data, real_labels) if protocol == "real" else EXAMS[protocol](data)
    every = {
        name: _figures(model, exam, outputs, where, precision, workers)
        for name, exam in exams.items()
    }
    price, first = cost(model), next(iter(every.values()))
    about = {
        "protocol": protocol,
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "peak_memory": devices.peak_memory(where),
    }
    return first | about | ({"variants": every} if len(every) > 1 else {})


def _figures(
    model: Model,
    exam: Exam,
    outputs: Outputs,
    device: torch.device,
    precision: str,
    workers: int | None,
) -> dict[str, Any]:
    """Return the figures of one set of images."""
    classes, config = competing(exam, outputs), model.config
    wanted = [imagenet()[number] for number in classes]
    columns, note = outputs_of(config.labels, config.classes, wanted, config.name)
    chosen = SelectedOutputs(model, columns)
    done = predict(chosen, exam.source, device=device, precision=precision, workers=workers)
    return figures(done.probabilities, truth(done, exam, classes)) | {
        "left_out": exam.left_out,
        "damaged": len(done.bad),
        "competing": len(classes),
        "seconds": done.seconds,
        "images_per_second": len(done.labels) / done.seconds,
        "notes": [*([note] if note else []), *exam.notes, *done.bad.values()],
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


def best(probabilities: Probabilities, accepted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the likeliest accepted class of each row (ties: the lower number)."""
    return np.where(accepted, probabilities, -1.0).argmax(axis=1)
