"""Metrics of a model on a data set."""

from typing import Any, Literal

from vitlab import device as devices
from vitlab.data.partition import fold_of
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.splits import fingerprint, hold_out
from vitlab.errors import DataError
from vitlab.evaluation.intervals import with_intervals
from vitlab.evaluation.per_class import class_figures, confused_pairs
from vitlab.evaluation.predictions import check_classifier, predict
from vitlab.models.cost import cost
from vitlab.models.model import Model

Split = Literal["auto", "train", "validation", "test", "all"]


def evaluate(
    model: Model,
    data: str,
    *,
    split: Split = "auto",
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    workers: int | None = None,
) -> dict[str, Any]:
    """Measure a model on labeled images: the same figures as `vitlab evaluate --json`.

    Labels map to the model's classes by name.

    Args:
        model: from `vitlab.load` or a run; its device and mode are the same afterwards
        data: as for training
        split: `auto` is the test split if the data has one; of unsplit data it is what training
            held out if this model was trained on it, else every image
        device: auto, cpu, cuda or cuda:N
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose

    Returns:
        accuracy and top5 (fractions), nll (nats) and ece, or for several labels per image map,
        micro_f1, macro_f1 and bce; images, damaged, split, model, params, macs,
        images_per_second, peak_memory (bytes), seconds, notes.

    Raises:
        DataError: no such data or split, or classes that the model does not have.
        OptionError: the model has no classifier.
    """
    where = devices.choose(device)
    check_classifier(model)
    name, source = _choose(model, data, split)
    done = predict(model, source, device=where, precision=precision, workers=workers)
    price = cost(model)
    results = (done.probabilities, done.labels)
    return with_intervals(*results) | {
        "damaged": len(done.bad),
        "split": name,
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": len(done.labels) / done.seconds,
        "peak_memory": devices.peak_memory(where),
        "seconds": done.seconds,
        "classes": [each.as_dict() for each in class_figures(*results, source.classes)],
        "confused": [each.as_dict() for each in confused_pairs(*results, source.classes)],
        "notes": [*done.bad.values()],
    }


def _choose(model: Model, data: str, split: Split) -> tuple[str, Source]:
    """Return the name of the split to evaluate on, and its images."""
    splits = open_data(data, classes=model.config.labels)
    if len(splits.classes) != model.config.classes:
        raise DataError(
            f"{data} has {len(splits.classes)} classes, but the model has {model.config.classes}"
        )
    whole = splits.whole
    if whole is not None:
        share = model.provenance.get("held_out", 0.0)
        trained_on = share and fingerprint(whole) == model.provenance.get("fingerprint")
        if split == "all" or (split == "auto" and not trained_on):
            return "all", whole
        if trained_on:  # exactly what training held out
            fold = model.provenance.get("fold", "")
            splits = fold_of(splits, fold) if fold else hold_out(whole, share)
    elif split == "all":
        raise DataError(f"{data} comes in splits: choose train, validation or test")
    name = "test" if split == "auto" else split
    if name not in splits.parts:
        raise DataError(f"{data} has no {name} split; choose from {', '.join(splits.parts)}")
    return name, splits.parts[name]
