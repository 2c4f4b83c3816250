"""A model's probabilities for the images of a source."""

import shlex
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.augment.augment import normalize
from vitlab.data.labels import Labels
from vitlab.data.loading.batches import Batch, EvaluationBatches
from vitlab.data.loading.loader import choose_workers, evaluation_loader
from vitlab.data.loading.workers import deaths_explained
from vitlab.data.sources.protocol import Source
from vitlab.device import autocast, behind, exact, fetched
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import check_numbers as check_numbers
from vitlab.evaluation.borrowing import borrowed
from vitlab.models.config import TokenizerConfig
from vitlab.models.model import Model

BATCH = 256  # images at once without gradients; fewer where they are large
PIXELS = 256 * 96 * 96


@dataclass(frozen=True)
class Views:
    """Which views of an image its probabilities are averaged over (test-time augmentation).

    Attributes:
        flips: each view and its mirror image
        crops: 1, what the model was made for; 5, the four corners and the center (Krizhevsky et
            al., 2012); 10, these and their mirror images
    """

    flips: bool = False
    crops: Literal[1, 5, 10] = 1

    def __post_init__(self) -> None:
        """Check the number of crops.

        Raises:
            OptionError: it is another one.
        """
        if self.crops not in (1, 5, 10):
            raise OptionError(f"crops must be 1, 5 or 10, not {self.crops!r}")

    @property
    def boxes(self) -> Literal[1, 5]:
        """How many parts of the image there are."""
        return 1 if self.crops == 1 else 5

    @property
    def mirrored(self) -> bool:
        """Whether each part is seen twice."""
        return self.flips or self.crops == 10

    @property
    def count(self) -> int:
        """How many views there are."""
        return self.boxes * (1 + self.mirrored)


@dataclass(frozen=True)
class Part:
    """Predictions for one batch of a source.

    Attributes:
        indices: int64 (b,), numbers of the images in the source
        logits: float64 (b, classes), without the model's temperature; (0, classes) if several
            views are averaged
        probabilities: float64 (b, classes)
        bad: number and message of each damaged image
    """

    indices: NDArray[np.int64]
    logits: NDArray[np.float64]
    probabilities: NDArray[np.float64]
    bad: list[tuple[int, str]]


@dataclass(frozen=True)
class Predictions:
    """A model's probabilities for a source's images, without the damaged ones.

    Attributes:
        probabilities: float64 (n, classes); rows sum to one unless images have several labels
        labels: the true labels of the same n images
        indices: int64 (n,), their numbers in the source
        bad: message about each damaged image, by its number
        seconds: time spent, loading included
        logits: float64 (n, classes) if they were asked for
    """

    probabilities: NDArray[np.float64]
    labels: Labels
    indices: NDArray[np.int64]
    bad: dict[int, str]
    seconds: float
    logits: NDArray[np.float64] | None = None


def check_classifier(model: Model) -> None:
    """Refuse a model without a classifier.

    Raises:
        OptionError: the model outputs features only.
    """
    if isinstance(model.config, TokenizerConfig):
        raise OptionError(
            f"{model.config.name} is a tokenizer, which has no classes: give a classifier (codes "
            "come from model.codes(images) in Python)"
        )
    if not model.config.classes:
        raise OptionError(
            f"{model.config.name} outputs features: it has no classifier; train one first with "
            f"vitlab finetune DATA --from {shlex.quote(model.source or 'WEIGHTS')}"
        )


def predict(
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str = "fp32",
    workers: int | None = None,
    views: Views | None = None,
    logits: bool = False,
    use: Callable[[Part], None] = lambda part: None,
    progress: Callable[[int], None] = lambda images: None,
) -> Predictions:
    """Run a model over every image of a source, in order.

    Where the images have several labels each, every class has its own probability (sigmoid), else
    those of all classes sum to one (softmax). The logits are divided by the model's temperature.

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images and labels
        device: where to compute
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose
        views: of each image, to average over; None for the one that the model was made for
        logits: return these too
        use: called with every batch
        progress: called after every batch with the number of images processed

    Raises:
        DataError: no image could be decoded.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    done = predict_any(
        model,
        source,
        device=device,
        precision=precision,
        workers=workers,
        views=views,
        logits=logits,
        use=use,
        progress=progress,
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
    views: Views | None = None,
    logits: bool = False,
    use: Callable[[Part], None] = lambda part: None,
    progress: Callable[[int], None] = lambda images: None,
) -> Predictions:
    """Run a model as `predict` does, and accept a source without a single usable image."""
    none = np.empty((0, model.config.classes))
    rows, scores, indices = [none], [none], [np.empty(0, np.int64)]
    bad: dict[int, str] = {}
    done, start = 0, time.perf_counter()

    def keep(part: Part) -> None:
        nonlocal done
        rows.append(part.probabilities)
        scores.extend([part.logits] if logits else [])
        indices.append(part.indices)
        bad.update(part.bad)
        use(part)
        done += len(part.indices) + len(part.bad)
        progress(done)

    for each in predict_each(
        model, source, device=device, precision=precision, workers=workers, views=views
    ):
        keep(each)
    chosen, seconds = np.concatenate(indices), time.perf_counter() - start
    return Predictions(
        np.concatenate(rows),
        source.labels.take(chosen),
        chosen,
        bad,
        seconds,
        np.concatenate(scores) if logits else None,
    )


def batch_of(model: Model, views: Views | None = None) -> int:
    """Return the number of images that a model sees at once."""
    boxes = views.boxes if views else 1
    return max(1, min(BATCH, PIXELS // model.config.area) // boxes)


def predict_each(
    model: Model,
    source: Source,
    *,
    device: torch.device,
    precision: str = "fp32",
    workers: int | None = None,
    views: Views | None = None,
    only: Iterable[int] | None = None,
    sharing: int = 1,
) -> Iterator[Part]:
    """Run a model as `predict` does, and yield each batch of predictions: nothing is kept.

    Args:
        model: any
        source: images; of their labels the kind matters alone
        device: where to compute
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose
        views: of each image, to average over; None for the one that the model was made for
        only: numbers of the batches, of `batch_of` images, in the order wanted; None for all
        sharing: processes that share the cores of this machine

    Raises:
        OptionError: several crops of images that keep their aspect ratio.
    """
    spec, views = model.config, views or Views()
    if spec.fit == "native" and views.boxes > 1:
        raise OptionError("crops applies only to images of one size, not with fit=native")
    batches = EvaluationBatches(source, spec, batch_of(model, views), views.boxes)
    with borrowed(model, device), deaths_explained():
        loader = evaluation_loader(batches, choose_workers(source, workers, sharing), only)
        parts = (_predicted(model, source, each, device, precision, views) for each in loader)
        yield from behind(parts, device)


@torch.inference_mode()
def _predicted(
    model: Model, source: Source, batch: Batch, device: torch.device, precision: str, views: Views
) -> Callable[[], Part]:
    """Begin to predict a batch; the function returned waits for the predictions."""
    spec = model.config
    scores = torch.empty(0, spec.classes, dtype=torch.float64)
    chances = scores
    if len(batch):
        images = normalize(batch.to(device).images, spec.mean, spec.std)
        with autocast(device, precision):
            scores = exact(model(images))
        chances = source.labels.probabilities(scores / model.temperature)
        if views.mirrored:
            with autocast(device, precision):
                mirrored = exact(model(images.flip(-1)))
            chances = chances + source.labels.probabilities(mirrored / model.temperature)
        if views.count > 1:
            chances = chances.unflatten(0, (-1, views.boxes)).sum(1) / views.count
            scores = scores[:0]
    ready = fetched([scores, chances])

    def part() -> Part:
        logits, probabilities = (each.numpy() for each in ready())
        return Part(batch.indices.numpy(), logits, probabilities, batch.bad)

    return part
