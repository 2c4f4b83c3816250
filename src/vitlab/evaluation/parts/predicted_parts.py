"""A row per image as a folder of Parquet, JSON Lines or CSV files."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from vitlab.data.sources.protocol import Source
from vitlab.distributed.launch import joined
from vitlab.evaluation.fast_form import Form, fast_form
from vitlab.evaluation.parts.filling import Parts, fill, identity
from vitlab.evaluation.parts.part_folder import PartFolder
from vitlab.evaluation.predictions import (
    Part,
    Views,
    batch_of,
    check_classifier,
    check_numbers,
    predict_each,
)
from vitlab.evaluation.rows import WRITERS, Layout
from vitlab.models.model import Model
from vitlab.packages import check_installed
from vitlab.places import PART
from vitlab.precision import Engine, Precision
from vitlab.weights.identity import feature_fingerprint


def predict_parts(
    out: Path,
    model: Model,
    source: Callable[[], Source],
    *,
    ending: Literal["parquet", "csv", "jsonl"] = "parquet",
    top: int = 5,
    views: Views | None = None,
    device: str = "auto",
    workers: int | None = None,
    timeout: float = 600.0,
    part_images: int = PART,
    precision: Precision = "auto",
    engine: Engine = "auto",
) -> dict[str, Any]:
    """Write a row per image into a folder of parts, which any number of processes fill.

    Args:
        out: the folder: new, or with parts of the same job
        model: from `vitlab.load` or a run
        source: opens the images, with labels of the model's kind
        ending: of the files
        top: classes per row, of a model with many
        views: of each image
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        timeout: seconds that a process waits for the others
        part_images: images of a part, rounded up to whole batches
        precision: as `vitlab.classify`
        engine: as `vitlab.classify`, but that `auto` does not measure: all processes use the same

    Returns:
        In the first process of torchrun: out, images, damaged, parts, bytes, notes, own_parts,
        own_images, seconds and images_per_second; nothing in the others.

    Raises:
        DataError: no such images, not one can be read, or the folder has the parts of another job.
        OptionError: the model has no classifier.
        DiskError: the folder cannot be written.
        PackageError: pyarrow is not installed.
        UnfinishedError: other processes have the parts that are left, and took too long.
    """
    views = views or Views()
    if ending == "parquet":
        check_installed("pyarrow", "a folder of Parquet files", "pass --format csv")
    with joined(device, timeout) as (world, place):
        with world.agreed():
            check_classifier(model)
            images = source()
            batch = batch_of(model, views)
            parts = Parts({"part": len(images)}, -(-part_images // batch) * batch)
            form = fast_form(model, images, place, precision, views.count, engine, measure=False)
            job = PredictJob(
                model,
                form,
                images,
                top,
                views,
                place,
                workers,
                world.local_size,
                parts,
                f".{ending}",
            )
        found = fill(out, job, world, timeout)
        return found and found | form.about


@dataclass(frozen=True)
class PredictJob:
    """Predictions; the attributes are those of `predict_parts` and of `Job`.

    Attributes:
        form: of the model, that computes
    """

    model: Model
    form: Form
    source: Source
    top: int
    views: Views
    device: torch.device
    workers: int | None
    sharing: int
    parts: Parts
    ending: str
    title: str = "predicting"

    @property
    def about(self) -> dict[str, Any]:
        """What decides the rows."""
        decided = (self.model.thresholds, self.source.classes, self.source.labels.several)
        return {
            "job": "predict",
            "model": self.model.config.name,
            "weights": feature_fingerprint(self.model),
            "classes": sha256(repr(decided).encode()).hexdigest(),
            "temperature": self.model.temperature,
            "data": identity(self.source, labeled=False),
            "images": len(self.source),
            "top": self.top,
            "flips": self.views.flips,
            "crops": self.views.crops,
            "part_images": self.parts.images,
            "format": self.ending[1:],
            **({} if self.form.precision == "fp32" else {"precision": self.form.precision}),
        }

    def write(
        self,
        folder: PartFolder,
        stretch: int,
        numbers: Iterable[int],
        progress: Callable[[int], None],
    ) -> Iterator[int]:
        """Write parts, and yield the number of each."""
        each, batch = self.parts.images, batch_of(self.model, self.views)

        def batches() -> Iterator[int]:
            for number in numbers:
                first = number * each
                yield from range(first // batch, -(-(first + self.parts.sizes[number]) // batch))

        parts = predict_each(
            self.form.model,
            self.source,
            device=self.device,
            precision=self.form.autocast,
            workers=self.workers,
            views=self.views,
            only=batches(),
            sharing=self.sharing,
        )
        layout = Layout(self.source, False, self.top, threshold=np.array(self.model.thresholds))
        for begin in parts:
            number = _first(begin) // each
            count = -(-self.parts.sizes[number] // batch)
            with (
                folder.writing(number) as draft,
                WRITERS[self.ending](draft.file, layout) as use,
            ):
                for part in chain([begin], islice(parts, count - 1)):
                    check_numbers(part.probabilities)
                    use(layout.columns(part))
                    draft.take(len(part.indices), (message for _, message in part.bad))
                    progress(draft.images + len(draft.bad))
            yield number


def _first(part: Part) -> int:
    """Return the number of the first image of a batch."""
    return min([*part.indices.tolist(), *(number for number, _ in part.bad)])
