"""The likeliest classes of single images."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vitlab.data.composed import Relabeled
from vitlab.data.labels import kind_of
from vitlab.data.open import open_images
from vitlab.data.pictures.pictures import Picture
from vitlab.data.settings import Columns
from vitlab.data.sources.protocol import Source
from vitlab.data.sources.request import Given
from vitlab.device import choose
from vitlab.errors import DataError
from vitlab.evaluation.fast_form import Form, fast_form
from vitlab.evaluation.predictions import (
    Views,
    check_classifier,
    check_numbers,
    predict,
    predict_each,
)
from vitlab.evaluation.rows import rows_to
from vitlab.models.model import Model
from vitlab.precision import Engine, Precision


@dataclass(frozen=True)
class Answer:
    """The likeliest classes of an image, best first, with their probabilities; or an error.

    Attributes:
        image: its name
        classes: the likeliest, with their probabilities
        error: why there are none
        predicted: all classes above their threshold, best first, of a model for several labels per
            image; None of others
    """

    image: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""
    predicted: tuple[str, ...] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        if self.error:
            return {"image": self.image, "error": self.error}
        top = [{"class": name, "probability": chance} for name, chance in self.classes]
        several = {} if self.predicted is None else {"predicted": list(self.predicted)}
        return {"image": self.image, "top": top} | several


def classify(
    model: Model,
    images: Given | Picture | Iterable[Picture],
    *,
    top: int = 5,
    device: str = "auto",
    workers: int | None = 0,
    flips: bool = False,
    crops: Literal[1, 5, 10] = 1,
    columns: Columns | None = None,
    precision: Precision = "auto",
    engine: Engine = "auto",
) -> list[Answer]:
    """Return the likeliest classes of images.

    Args:
        model: from `vitlab.load` or a run
        images: any DATA, whatever its labels, or several; or images in memory, as
            `vitlab.preprocess` takes them
        top: number of classes per image
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        flips: average the probabilities over each image and its mirror image
        crops: average them over 5 crops, the corners and the center, or over 10: these and their
            mirror images
        columns: which column of a table holds the images; None to find it
        precision: fp32; bf16; or auto: bf16 for many images, where the device multiplies it faster
            and probabilities agree with those in fp32
        engine: auto: the fastest for many images; or one by its name, as `vitlab.accelerate`

    Raises:
        DataError: no such image, or a model whose probabilities are not numbers.
        OptionError: the model has no classifier.
    """
    source, views, place = unlabeled(model, images, columns), Views(flips, crops), choose(device)
    form = fast_form(model, source, place, precision, views.count, engine)
    return answers_of(form, source, top=top, device=place, workers=workers, views=views)


def answers_of(
    form: Form,
    source: Source,
    *,
    top: int,
    device: torch.device,
    workers: int | None,
    views: Views,
) -> list[Answer]:
    """Return the likeliest classes of a source's images, as `classify` does."""
    model = form.model
    thresholds, many = model.thresholds, source.labels.several
    names, classes = [source.name(index) for index in range(len(source))], source.classes
    predictions = predict(
        model,
        source,
        device=device,
        precision=form.autocast,
        workers=workers,
        views=views,
    )
    check_numbers(predictions.probabilities)
    answers = {index: Answer(names[index], error=text) for index, text in predictions.bad.items()}
    for index, row in zip(predictions.indices.tolist(), predictions.probabilities, strict=True):
        best = np.argsort(-row, kind="stable")
        named = tuple((classes[number], float(row[number])) for number in best[:top])
        above = tuple(classes[n] for n in best if row[n] > thresholds[n]) if many else None
        answers[index] = Answer(names[index], named, predicted=above)
    return [answers[index] for index in range(len(names))]


def classify_into(
    file: Path,
    model: Model,
    images: Source,
    *,
    top: int = 5,
    device: str = "auto",
    workers: int | None = 0,
    views: Views | None = None,
    warn: Callable[[str], None] = lambda message: None,
    progress: Callable[[int, int], None] = lambda images, total: None,
    precision: Precision = "auto",
    engine: Engine = "auto",
) -> dict[str, Any]:
    """Write a row per image into a CSV or Parquet file; a batch at a time is in memory.

    Args:
        file: that `check_file` accepted
        model: from `vitlab.load` or a run
        images: of `unlabeled`
        top: classes per row, of a model with many
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        views: of each image
        warn: called with a message about each image that cannot be decoded
        progress: called after every batch with the number of images processed, and of all
        precision: as `classify`
        engine: as `classify`

    Returns:
        `images` and `damaged`, how many have a prediction and how many an error, and the
        `precision` and `engine` that they were computed in.

    Raises:
        DataError: no image can be read.
        DiskError: the file cannot be written.
    """
    counts = {"images": 0, "damaged": 0}
    with rows_to(file, images, truth=False, top=top, threshold=np.array(model.thresholds)) as use:
        where, views = choose(device), views or Views()
        form = fast_form(model, images, where, precision, views.count, engine)
        for part in predict_each(
            form.model,
            images,
            device=where,
            precision=form.autocast,
            workers=workers,
            views=views,
        ):
            check_numbers(part.probabilities)
            use(part)
            for _, message in part.bad:
                warn(message)
            counts["images"] += len(part.indices)
            counts["damaged"] += len(part.bad)
            progress(sum(counts.values()), len(images))
    if not counts["images"]:
        raise DataError(f"none of the {len(images):,} images can be read; {file} says why")
    return counts | form.about


def unlabeled(
    model: Model, images: Given | Picture | Iterable[Picture], columns: Columns | None = None
) -> Source:
    """Return the images of any DATA as a source, with labels of the model's kind that say nothing.

    What is left out of the data is said on the package's log.

    Raises:
        DataError: no such image.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    opened = open_images(images, "ignored", columns=columns)
    for note in opened.notes:
        logging.getLogger("vitlab").warning(note)
    source, classes = opened.every(), model.config.class_names
    return Relabeled(source, kind_of(model).blank(len(source), len(classes)), classes)
