"""A model's probabilities for the images of a source: `predict`."""

import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels
from vitlab.data.loading.order import slice_of
from vitlab.data.sources.source import Source
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import (
    ONE_VIEW,
    Inferred,
    Progress,
    Views,
    batches_of,
    gathered,
    infer,
    silent,
)
from vitlab.models.config import TokenizerConfig
from vitlab.models.model import Model


@dataclass(frozen=True)
class Predictions:
    """A model's probabilities for a source's images, without the damaged ones.

    Attributes:
        probabilities: float64 (n, classes); rows sum to one unless images have several labels
        labels: the true labels of the same n images
        indices: int64 (n,), their numbers in the source
        bad: message about each damaged image, by its number
        seconds: time spent, loading included
        distances: float64 (n,), how far each is from the training images, as `Inferred` has it
        logits: float64 (n, classes) if they were asked for
    """

    probabilities: NDArray[np.float64]
    labels: Labels
    indices: NDArray[np.int64]
    bad: dict[int, str]
    seconds: float
    distances: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
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
    compute: Compute,
    *,
    views: Views = ONE_VIEW,
    logits: bool = False,
    use: Callable[[Inferred], None] = lambda batch: None,
    progress: Progress = silent,
    world: World = ALONE,
    batches: Iterable[Inferred] | None = None,
) -> Predictions:
    """Run a model over every image of a source, in order.

    Several processes share the batches; the first of them gets the probabilities of all, the same
    numbers as one process alone, the others get the damage and none of the probabilities.

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images and labels
        compute: where and how
        views: of each image, to average over
        logits: return these too
        use: called with every batch of this process
        progress: called after every batch
        world: the processes that share the images
        batches: computed elsewhere; None to compute them

    Raises:
        DataError: no image could be decoded.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    start = time.perf_counter()
    none = np.empty((0, model.config.classes))
    kept, bad = [(np.empty(0, np.int64), none, np.empty(0), none)], dict[int, str]()
    own = slice_of(batches_of(model, source, views), world.rank, world.size)
    if batches is None:
        batches = infer(model, source, compute, views=views, only=own, progress=progress)
    for batch in batches:
        use(batch)
        bad.update(batch.bad)
        kept.append((batch.indices, batch.probabilities, batch.distances, batch.logits))
    indices, chances, far, scores = (np.concatenate(each) for each in zip(*kept, strict=True))
    if not world.sums(len(indices))[0]:
        damage = [text for each in world.gather([*bad.values()]) for text in each]
        raise world.shared(DataError(next(iter(damage), "there are no images")))
    columns = (indices, chances, far, scores) if logits else (indices, chances, far)
    (indices, chances, far, *asked), bad = gathered(world, columns, bad)
    labels, seconds = source.labels.take(indices), time.perf_counter() - start
    return Predictions(chances, labels, indices, bad, seconds, far, *asked)
