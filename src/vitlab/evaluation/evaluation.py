"""The figures of a model on some data."""

from typing import Any, Literal

from vitlab import device as devices
from vitlab.data.sources.sources import Source
from vitlab.data.sources.splits import Splits, fingerprint, hold_out, open_data
from vitlab.errors import UserError
from vitlab.evaluation.metrics import figures
from vitlab.evaluation.predictions import check_classifier, predict
from vitlab.models.cost import cost
from vitlab.models.create import Model

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
        model: from `vitlab.load` or a run
        data: as for training
        split: `auto` is the test split where the data has one; of unsplit data it is what training
            held out if this model was trained on it, else every image
        device: auto, cpu, cuda or cuda:N
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose

    Returns:
        accuracy and top5 (fractions), nll (nats) and ece, or for several labels an image map,
        micro_f1, macro_f1 and bce; images, damaged, split, model, params, macs,
        images_per_second, peak_memory (bytes), seconds, notes.

    Raises:
        ValueError: no such data or split, or classes that the model does not know.
    """
    where = devices.choose(device)
    check_classifier(model)
    splits = open_data(data, classes=model.config.labels)
    if len(splits.classes) != model.config.classes:
        raise UserError(
            f"{data} has {len(splits.classes)} classes, the model {model.config.classes}"
        )
    name, source = _choose(model, splits, split, data)
    seen = predict(model, source, device=where, precision=precision, workers=workers)
    price = cost(model)
    return figures(seen.probabilities, seen.labels) | {
        "damaged": len(seen.bad),
        "split": name,
        "model": model.config.name,
        "params": price.params,
        "macs": price.macs,
        "images_per_second": len(seen.labels) / seen.seconds,
        "peak_memory": devices.peak_memory(where),
        "seconds": seen.seconds,
        "notes": [*seen.bad.values()],
    }


def _choose(model: Model, splits: Splits, split: Split, data: str) -> tuple[str, Source]:
    """The images to look at, and what to call them."""
    whole = splits.whole
    if whole is not None:
        share = model.provenance.get("held_out", 0.0)
        known = share and fingerprint(whole) == model.provenance.get("fingerprint")
        if split == "all" or (split == "auto" and not known):
            return "all", whole
        if known:  # exactly what training held out
            splits = hold_out(whole, share)
    elif split == "all":
        raise UserError(f"{data} comes in splits: choose train, validation or test")
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    name = "test" if split == "auto" else split
    source = parts[name]
    if source is None:
        raise UserError(f"{data} has no {name} split")
    return name, source
