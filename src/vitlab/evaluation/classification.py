"""What a model makes of single images."""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab import device as devices
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.sources import SUFFIXES, Files
from vitlab.errors import UserError
from vitlab.evaluation.predictions import predict
from vitlab.models.create import Model


@dataclass(frozen=True)
class Answer:
    """The likeliest classes of an image, best first, with their probabilities; or what is wrong."""

    image: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The answer as JSON can hold it."""
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
    """The likeliest classes of image files.

    Args:
        model: from `vitlab.load` or a run
        images: files, folders (all images below them) and glob patterns
        top: how many classes to name
        device: auto, cpu, cuda or cuda:N
        workers: processes that decode; None to choose

    Raises:
        ValueError: no images there, or not one that can be decoded.
    """
    paths = find_images(images)
    config = model.config
    labels = config.labels or tuple(str(number) for number in range(config.classes))
    several = model.provenance.get("multi_label", False)
    none = np.zeros((len(paths), len(labels)) if several else len(paths), np.uint8)
    source = Files(Path(), Names.of(paths), none if several else none.astype(np.int64), labels)
    where: torch.device = devices.choose(device)
    seen = predict(model, source, device=where, workers=workers)
    answers = {index: Answer(paths[index], error=message) for index, message in seen.bad.items()}
    for index, row in zip(seen.indices.tolist(), seen.probabilities, strict=True):
        best = np.argsort(-row, kind="stable")[:top]
        named = tuple((labels[number], float(row[number])) for number in best)
        answers[index] = Answer(paths[index], named)
    return [answers[index] for index in range(len(paths))]


def find_images(patterns: Sequence[str]) -> list[str]:
    """Every image that files, folders and glob patterns name, in that order.

    Raises:
        ValueError: one of them names nothing.
    """
    found: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        if path.is_file():
            matches = [str(path)]
        elif path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
            matches = [str(p) for p in inside if p.is_file()]
        else:
            matches = sorted(p for p in glob.glob(str(path), recursive=True) if Path(p).is_file())  # noqa: PTH207
        if not matches:
            raise UserError(
                f"no images in {pattern}" if path.is_dir() else f"no such file: {pattern}"
            )
        found += matches
    return found
