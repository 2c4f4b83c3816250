"""A model's probabilities for the images of a source."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.augment import normalize
from vitlab.data.labels import Labels
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import choose_workers, evaluation_loader
from vitlab.data.sources.protocol import Source
from vitlab.device import autocast
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.borrowing import borrowed
from vitlab.models.model import Model

BATCH = 256  # images at once without gradients; fewer where they are large
PIXELS = 256 * 96 * 96


@dataclass(frozen=True)
class Predictions:
    """A model's probabilities for a source's images, without the damaged ones.

    Attributes:
        probabilities: float64 (n, classes); rows sum to one unless images have several labels
        labels: the true labels of the same n images
        indices: int64 (n,), their numbers in the source
        bad: message about each damaged image, by its number
        seconds: time spent, loading included
    """

    probabilities: NDArray[np.float64]
    labels: Labels
    indices: NDArray[np.int64]
    bad: dict[int, str]
    seconds: float


def check_classifier(model: Model) -> None:
    """Refuse a model without a classifier.

    Raises:
        OptionError: the model outputs features only.
    """
    if not model.config.classes:
        raise OptionError(
            f"{model.config.name} outputs features: it has no classifier; load it with "
            "vitlab.load(…, classes=…) and train one"
        )


def predict(
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str = "fp32",
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Predictions:
    """Run a model over every image of a source, in order.

    Where the images have several labels each, every class has its own probability (sigmoid), else
    those of all classes sum to one (softmax).

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images and labels
        device: where to compute
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose
        progress: called after every batch with the number of images processed

    Raises:
        DataError: no image could be decoded.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    done = predict_any(
        model, source, device=device, precision=precision, workers=workers, progress=progress
    )
    if not len(done.labels):
        raise DataError(next(iter(done.bad.values()), "there are no images"))
    return done


def predict_any(
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str = "fp32",
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> Predictions:
    """Run a model as `predict` does, and accept a source without a single usable image."""
    spec, labels = model.config, source.labels
    batch = max(1, min(BATCH, PIXELS // int(np.prod(spec.size))))
    batches = EvaluationBatches(source, spec, batch)
    rows: list[torch.Tensor] = [torch.empty(0, spec.classes, dtype=torch.float64)]
    indices: list[torch.Tensor] = [torch.empty(0, dtype=torch.int64)]
    bad: dict[int, str] = {}
    done, start = 0, time.perf_counter()
    with borrowed(model, device), torch.inference_mode():
        for each in evaluation_loader(batches, choose_workers(source, workers)):
            bad |= dict(each.bad)
            if len(each):
                images = normalize(each.to(device).images, spec.mean, spec.std)
                with autocast(device, precision):
                    logits = model(images).double()
                rows.append(labels.probabilities(logits).cpu())
                indices.append(each.indices)
            done += len(each) + len(each.bad)
            progress(done)
    chosen = torch.cat(indices).numpy()
    seconds = time.perf_counter() - start
    return Predictions(torch.cat(rows).numpy(), labels.take(chosen), chosen, bad, seconds)
