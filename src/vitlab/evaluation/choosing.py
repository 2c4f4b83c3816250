"""Which images a model is evaluated on."""

import logging
from typing import Literal

from vitlab.data.labels import UnknownClassError
from vitlab.data.open import open_images
from vitlab.data.partition import fold_of
from vitlab.data.settings import Columns
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.request import Given, title_of
from vitlab.data.sources.splits import Splits, fingerprint, hold_out
from vitlab.errors import DataError
from vitlab.models.model import Model

SHOWN = 10  # classes that a message lists
Split = Literal["auto", "train", "validation", "test", "all"]


def choose(
    model: Model, data: Given, split: Split, columns: Columns | None = None
) -> tuple[str, Source]:
    """Return the name of the split to evaluate on, and its images.

    Raises:
        DataError: no such data or split, or classes that the model does not have.
    """
    splits, title = open_for(model, data, columns), title_of(data)
    whole = splits.whole
    if whole is not None and (
        split == "all" or (split == "auto" and not was_trained_on(model, whole))
    ):
        return "all", whole
    if split == "all":
        raise DataError(f"{title} comes in splits: choose train, validation or test")
    name = "test" if split == "auto" else split
    if name not in splits.parts:
        raise DataError(f"{title} has no {name} split; choose from {', '.join(splits.parts)}")
    return name, splits.parts[name]


def open_for(model: Model, data: Given, columns: Columns | None = None) -> Splits:
    """Return the splits of a data set, the labels mapped to the model's classes by name.

    A model that does not name its classes has them in the order of the data; a warning says so.

    Of unsplit data that the model was trained on, the test split is exactly what training held out.

    Raises:
        DataError: no such data, or classes that the model does not have.
    """
    title = title_of(data)
    labels = model.config.labels
    try:
        splits = open_images(data, classes=labels, columns=columns).splits()
    except UnknownClassError as error:
        shown = ", ".join(labels[:SHOWN]) + (", …" if len(labels) > SHOWN else "")
        raise DataError(
            f"{error}; the classes of the model are {shown}: rename the class, or leave its images "
            "out (a class without images does no harm)"
        ) from None
    if len(splits.classes) != model.config.classes:
        raise DataError(
            f"{title} has {len(splits.classes)} classes, but the model has {model.config.classes}, "
            "without names: name them (--labels, labels=…), and classes are matched by name"
        )
    if not model.config.labels:
        shown = ", ".join(f"{number} {name}" for number, name in enumerate(splits.classes[:3]))
        logging.getLogger("vitlab").warning(
            f"{model.source or model.config.name} does not name its classes, so those of {title} "
            f"are matched by position ({shown}, …); --labels (labels=…) gives their names"
        )
    if splits.whole is not None and was_trained_on(model, splits.whole):
        fold = model.provenance.get("fold", "")
        if fold:
            return fold_of(splits, fold)
        return hold_out(splits.whole, model.provenance["held_out"])
    return splits


def was_trained_on(model: Model, whole: Source) -> bool:
    """Return whether a model's training held a part of exactly these images out."""
    if not model.provenance.get("held_out", 0.0):
        return False
    return fingerprint(whole) == model.provenance.get("fingerprint")
