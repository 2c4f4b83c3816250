"""The likeliest classes of single images."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitlab import device as devices
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.folders import Files, image_files
from vitlab.errors import DataError
from vitlab.evaluation.predictions import predict
from vitlab.models.model import Model


@dataclass(frozen=True)
class Answer:
    """The likeliest classes of an image, best first, with their probabilities; or an error."""

    image: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        if self.error:
            return {"image": self.image, "error": self.error}
        top = [{"class": name, "probability": chance} for name, chance in self.classes]
        return {"image": self.image, "top": top}


def classify(
    model: Model,
    images: Sequence[str],
    *,
    top: int = 5,
    device: str = "auto",
    workers: int | None = 0,
) -> list[Answer]:
    """Return the likeliest classes of image files.

    Args:
        model: from `vitlab.load` or a run
        images: files, folders (all images below them) and glob patterns
        top: number of classes per image
        device: auto, cpu, cuda or cuda:N
        workers: processes that decode; None to choose

    Raises:
        DataError: no such image, or not one that can be decoded.
        OptionError: the model has no classifier.
    """
    paths = find_images(images)
    config = model.config
    classes = config.labels or tuple(str(number) for number in range(config.classes))
    kind = MultiLabels if model.provenance.get("multi_label", False) else SingleLabels
    source = Files(Path(), Names.of(paths), kind.blank(len(paths), len(classes)), classes)
    predictions = predict(model, source, device=devices.choose(device), workers=workers)
    answers = {index: Answer(paths[index], error=text) for index, text in predictions.bad.items()}
    for index, row in zip(predictions.indices.tolist(), predictions.probabilities, strict=True):
        best = np.argsort(-row, kind="stable")[:top]
        named = tuple((classes[number], float(row[number])) for number in best)
        answers[index] = Answer(paths[index], named)
    return [answers[index] for index in range(len(paths))]


def find_images(patterns: Sequence[str]) -> list[str]:
    """Return every image that files, folders and glob patterns name, in that order.

    Raises:
        DataError: one of them names nothing.
    """
    found: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_file():
            matches = [str(path)]
        elif path.is_dir():
            matches = [str(each) for each in image_files(path)]
        else:
            matches = sorted(p for p in glob.glob(str(path), recursive=True) if Path(p).is_file())  # noqa: PTH207
        if not matches:
            raise DataError(
                f"no images in {pattern}" if path.is_dir() else f"no such file: {pattern}"
            )
        found += matches
    return found
