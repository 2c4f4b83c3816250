"""A model's probabilities for many images."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.augment import normalize
from vitlab.data.labels import Labels, is_multi
from vitlab.data.loading.loader import EvaluationBatches, choose_workers, evaluation_loader
from vitlab.data.sources.sources import Source
from vitlab.device import autocast
from vitlab.errors import UserError
from vitlab.models.create import Model

BATCH = 256  # images at once without gradients; fewer where they are large
PIXELS = 256 * 96 * 96


@dataclass(frozen=True)
class Predictions:
    """What a model says of a source's images; damaged images are left out.

    Attributes:
        probabilities: float64 (n, classes); rows sum to one, but where images have several labels
        labels: int64 (n,) or uint8 (n, classes), the truth
        indices: int64 (n,), places in the source
        bad: message of each damaged image, by place
        seconds: time spent, loading included
    """

    probabilities: NDArray[np.float64]
    labels: Labels
    indices: NDArray[np.int64]
    bad: dict[int, str]
    seconds: float


def check_classifier(model: Model) -> None:
    """Refuse a model that gives features alone."""
    if not model.config.classes:
        raise UserError(
            f"{model.config.name} has no classifier, it gives features: train one, from "
            "vitlab.load(…, classes=…)"
        )


def predict(
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str = "fp32",
    workers: int | None = None,
    seen: Callable[[int], None] = lambda images: None,
) -> Predictions:
    """Run a model over every image of a source, in order.

    Where the images have several labels each, every class has a probability of its own (sigmoid),
    else they share one (softmax).

    Args:
        model: left in evaluation mode, on `device`
        source: images and labels
        device: where to compute
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose
        seen: told the number of images done after every batch

    Raises:
        ValueError: not one image could be decoded, or the model has no classifier.
    """
    check_classifier(model)
    done = predict_any(
        model, source, device=device, precision=precision, workers=workers, seen=seen
    )
    if not len(done.labels):
        raise UserError(next(iter(done.bad.values()), "there are no images"))
    return done


@torch.inference_mode()
def predict_any(
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str = "fp32",
    workers: int | None = None,
    seen: Callable[[int], None] = lambda images: None,
) -> Predictions:
    """As `predict`, and content with no images at all."""
    model.to(device).eval()
    several = is_multi(source.labels)
    batch = max(1, min(BATCH, PIXELS // int(np.prod(model.config.size))))
    batches = EvaluationBatches(source, model.config, batch)
    scores, labels, indices, done = [], [], [], 0
    bad: dict[int, str] = {}
    start = time.perf_counter()
    for each in evaluation_loader(batches, choose_workers(source, workers)):
        bad |= dict(each.bad)
        if len(each):
            there = each.to(device)
            images = normalize(there.images, model.config.mean, model.config.std)
            with autocast(device, precision):
                said = model(images).double()
            scores.append((said.sigmoid() if several else said.softmax(-1)).cpu())
            labels.append(each.labels)
            indices.append(each.indices)
        done += len(each) + len(each.bad)
        seen(done)
    nothing = torch.empty(0, dtype=torch.int64)
    return Predictions(
        torch.cat([torch.empty(0, model.config.classes, dtype=torch.float64), *scores]).numpy(),
        torch.cat(labels or [nothing]).numpy().astype(np.uint8 if several else np.int64),
        torch.cat([nothing, *indices]).numpy(),
        bad,
        time.perf_counter() - start,
    )
