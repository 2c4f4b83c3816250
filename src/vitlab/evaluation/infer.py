"""The one pass over images: `infer` runs a model over a source and yields what is wanted.

Predictions, evaluations, features, tables of millions of rows, maps and probes are made of it.
"""

import math
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.normalize import normalize
from vitlab.data.images import Images
from vitlab.data.labels import Labels, kind_of, labels_of
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.loading.loader import choose_workers, deaths_explained, loader
from vitlab.data.loading.parts import slice_of
from vitlab.data.target import Target
from vitlab.device import autocast, behind, fetched
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.answers import Float32s, Floats, Integers
from vitlab.evaluation.compute import Compute, FastForm, borrowed
from vitlab.evaluation.probes.feature_options import Cuts, InnerFeatures, Pooled, Taken
from vitlab.evaluation.records import cost_figures
from vitlab.models.config import TokenizerConfig, ViTConfig
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer
from vitlab.on_device import exact

BATCH = 256  # images at once without gradients; fewer where they are large
PIXELS = 256 * 96 * 96

Vectors = Pooled | Taken | Cuts | InnerFeatures
Want = Literal["probabilities", "pixels"] | Vectors
"""What can be wanted of each image, logits with probabilities; of features one kind is taken."""

Progress = Callable[[int, int], None]
"""Called after every batch with the number of images that are done, and that there are."""


def silent(done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True, eq=False)
class Inferred:
    """What is wanted of the images of a batch; what is not wanted, or of no image, is empty.

    Attributes:
        indices: int64 (b,), numbers of the images in the source; damaged ones are missing
        bad: number and message of each damaged image
        logits: float64 (b, classes), without the model's temperature; (0, classes) if those
            of mirror images are averaged
        probabilities: float64 (b, classes)
        distances: float64 (b,), how far each image is from the training images, above 1 if it is
            unlike them (models/unlike.py); NaN if the model does not know
        features: float32 (b, …)
        pixels: as the model's preprocessing leaves them, uint8 (b, H, W, channels), or packed
    """

    indices: Integers
    bad: list[tuple[int, str]]
    logits: Floats = field(default_factory=lambda: np.empty((0, 0)))
    probabilities: Floats = field(default_factory=lambda: np.empty((0, 0)))
    distances: Floats = field(default_factory=lambda: np.empty(0))
    features: Float32s = field(default_factory=lambda: np.empty((0, 0), np.float32))
    pixels: Tensor | Packed = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))


def batch_of(model: Model) -> int:
    """Return the number of images that a model sees at once."""
    return max(1, min(BATCH, PIXELS // model.config.area))


def own_batches(model: Model, source: Images, world: World) -> range:
    """Return the numbers of the batches of a source that this process computes."""
    return slice_of(-(-len(source) // batch_of(model)), world.rank, world.size)


def infer(
    model: Model,
    source: Images,
    compute: Compute,
    want: Sequence[Want] = ("probabilities",),
    *,
    flips: bool = False,
    only: Sequence[int] | None = None,
    progress: Progress = silent,
) -> Iterator[Inferred]:
    """Run a model over the images of a source, in their order, and yield each batch.

    Nothing is kept. Batch k has the same images, and the same results, in any process and
    whichever others are computed. An image that cannot be decoded (`ImageError`) is named; every
    other error ends the pass.

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images; of their labels the kind matters alone
        compute: where and how
        want: what is computed of each image
        flips: average the probabilities over each image and its mirror image
        only: numbers of the batches, in the order wanted; None for all
        progress: called after every batch

    Raises:
        OptionError: a layer that the model does not have.
        WorkerDiedError: a process that decodes images died.
    """
    size = batch_of(model)
    batches = EvaluationBatches(source, model.config, size)
    order = range(len(batches)) if only is None else only
    total = sum(min(size, len(source) - number * size) for number in order)
    idle = all(each == "pixels" for each in want)
    form = FastForm(model, "fp32") if idle else compute.fast(model, source, 1 + flips)
    work = _Pass(form, source.target, compute.where, tuple(want), flips)
    done = 0
    workers = choose_workers(source, compute.workers, compute.sharing)
    with borrowed(form.model, compute.where), deaths_explained():
        for each in behind(map(work.begun, loader(batches, order, workers)), compute.where):
            done += len(each.indices) + len(each.bad)
            progress(done, total)
            yield each


@dataclass(frozen=True, eq=False)
class _Pass:
    """What is computed of every batch."""

    form: FastForm
    target: Target
    device: torch.device
    want: tuple[Want, ...]
    flips: bool

    @torch.inference_mode()
    def begun(self, batch: Batch) -> Callable[[], Inferred]:
        """Begin to compute a batch; the function returned waits for the results."""
        results = dict[str, Tensor]()
        if len(batch) and any(each != "pixels" for each in self.want):
            images = normalize(batch.to(self.device).images, self.form.model.config)
            results = self._results(images)
        ready = fetched([*results.values()])
        pixels = {"pixels": batch.images} if "pixels" in self.want else {}

        def wait() -> Inferred:
            found = {name: each.numpy() for name, each in zip(results, ready(), strict=True)}
            return Inferred(batch.indices.numpy(), batch.bad, **found, **pixels)  # type: ignore[arg-type]

        return wait

    def _results(self, images: Tensor | Packed) -> dict[str, Tensor]:
        """Return what is wanted of normalized images."""
        model = self.form.model
        results = dict[str, Tensor]()
        mirrored = None
        taken = next((each for each in self.want if isinstance(each, Vectors)), None)
        with autocast(self.device, self.form.autocast):
            seen, inner = None, None
            if "probabilities" in self.want:
                seen, inner = model.judge(images)
            if taken is not None:
                if seen is None or taken.what != "features":
                    found = take(model, images, taken)
                else:
                    found = seen.flatten(1)
                results["features"] = found.float()
            if seen is None:
                return results
            logits = exact(model.scores(seen))[..., : model.config.classes]  # without any: none
            if self.flips:
                mirrored = exact(model(images.flip(-1)))
        chances = probabilities(logits, model, self.target, mirrored)
        far = logits.new_full(logits.shape[:1], math.nan)
        if model.unlike is not None and inner is not None:
            far = model.unlike.distances(exact(inner))
        kept = logits[:0] if self.flips else logits
        return results | {"logits": kept, "probabilities": chances, "distances": far}


def probabilities(
    logits: Tensor, model: Model, target: Target | None = None, mirrored: Tensor | None = None
) -> Tensor:
    """Turn a model's logits into its probabilities: the one place where that is done.

    They are divided by the model's temperature. Where images have several labels, each class has a
    probability of its own (sigmoid), else those of all classes sum to one (softmax).

    Args:
        logits: (n, classes), float64 for exact sums
        model: that gave them
        target: of the kind that the images have; None for the model's kind
        mirrored: the logits of the mirror images, whose probabilities are averaged in

    Returns:
        (n, classes).
    """
    kind = kind_of(model.provenance) if target is None else type(target)
    found = kind.probabilities(logits / model.temperature)
    if mirrored is None:
        return found
    return (found + kind.probabilities(mirrored / model.temperature)) / 2


def take(model: Model, images: Tensor | Packed, taken: Vectors) -> Tensor:
    """Compute features: (B, channels, H, W) -> (B, width), or (B, tokens, width).

    Args:
        model: any; several queries of attention pooling are put one after the other
        images: normalized
        taken: what of it

    Raises:
        OptionError: a layer that the model does not have, or images of another shape.
    """
    if taken.what == "features":
        return model.features(images).flatten(1)
    if isinstance(taken, InnerFeatures):
        return model.inner(images, taken.layer)
    if isinstance(taken, Cuts) and not taken.layers:
        features, inner = model.features_with_inner(images, taken.inner)
        return torch.cat([features.flatten(1), inner], -1)
    if isinstance(images, Packed):
        raise OptionError(
            "tokens and layers are taken of images of one size, not with fit=native: take features"
        )
    if isinstance(taken, Cuts):
        return _cut(model, images, taken)
    if not taken.layers:
        layers = [model.encode(images)]
    else:
        layers = [
            each.flatten(2).transpose(1, 2) if each.ndim == 4 else each  # the map of a ResNet
            for each in model.intermediates(images, list(taken.layers))
        ]
    return torch.cat([_pooled(model, tokens, taken.what) for tokens in layers], -1)


def _cut(model: Model, images: Tensor, taken: Cuts) -> Tensor:
    """Return class token and mean of each layer as the last one's head would see them."""
    assert isinstance(model, VisionTransformer)
    found: list[Tensor] = []
    first = model.config.prefix
    looked = [taken.inner] if taken.inner else []
    leaving = model.intermediates(images, [*taken.layers, *looked])
    for tokens in map(model.norm, leaving[: len(taken.layers)]):
        pooled = [tokens[:, 0]] * model.config.has_token + [tokens[:, first:].mean(1)]
        found += map(model.head.norm, pooled)
    found += map(model.inner_of, leaving[len(taken.layers) :])
    return torch.cat(found, -1)


def _pooled(model: Model, tokens: Tensor, what: str) -> Tensor:
    """Return what is taken of the tokens of a layer."""
    config = model.config
    prefix, has_token = (
        (config.prefix, config.has_token) if isinstance(config, ViTConfig) else (0, False)
    )
    if what in ("token", "both") and not has_token:
        raise OptionError(f"{config.name} has no class token: take mean or features")
    match what:
        case "tokens":
            return tokens
        case "token":
            return tokens[:, 0]
        case "mean":
            return tokens[:, prefix:].mean(1)
        case "both":
            return torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], -1)
    return tokens[:, prefix:]


def shape_taken(model: Model, taken: Vectors) -> tuple[int, ...]:
    """Return the shape of what is taken of one image: (width,) or (tokens, width).

    Raises:
        OptionError: a layer that the model does not have.
    """
    config = model.config
    device = next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        blank = torch.zeros(1, config.channels, *config.size, device=device)
        return tuple(take(model, blank, taken).shape[1:])


def stacked(
    batches: Sequence[Inferred], shape: tuple[int, ...]
) -> tuple[Float32s, Integers, dict[int, str]]:
    """Return features and numbers of the images of several batches, and what is damaged.

    Args:
        batches: in order
        shape: of what is taken of one image
    """
    none = np.empty((0, *shape), np.float32)
    values = [none, *(each.features for each in batches if len(each.indices))]
    indices = [np.empty(0, np.int64), *(each.indices for each in batches)]
    bad = {number: text for each in batches for number, text in each.bad}
    return np.concatenate(values), np.concatenate(indices), bad


def gathered(
    world: World, columns: Sequence[NDArray[Any]], bad: dict[int, str]
) -> tuple[list[NDArray[Any]], dict[int, str]]:
    """Put together what the processes of a job have found, in their order.

    Args:
        world: the processes
        columns: arrays (n, …) of this one's images
        bad: message about each of its damaged images

    Returns:
        All rows in the first process and none in the others; the damage of all in every one.
    """
    if world.size == 1:
        return [*columns], bad
    found = world.gather([len(columns[0]), bad])
    bad = {int(number): text for _, own in found for number, text in own.items()}
    return [_collected(world, each, [length for length, _ in found]) for each in columns], bad


def _collected(world: World, rows: NDArray[Any], lengths: list[int]) -> NDArray[Any]:
    """Return the rows of all processes, one after the other, in the first; none in the others."""
    own = torch.from_numpy(np.ascontiguousarray(rows))
    if not world.first:
        dist.send(own, 0)
        return rows[:0]
    parts = [own, *(own.new_empty(length, *own.shape[1:]) for length in lengths[1:])]
    for rank, part in enumerate(parts[1:], 1):
        dist.recv(part, rank)
    return torch.cat(parts).numpy()


@dataclass(frozen=True)
class Probabilities:
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

    probabilities: Floats
    labels: Labels
    indices: Integers
    bad: dict[int, str]
    seconds: float
    distances: Floats = field(default_factory=lambda: np.empty(0))
    logits: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def about(self, model: Model) -> dict[str, Any]:
        """Return what figures say of the model and of the pass, by the keys of the JSON."""
        return {
            "damaged": len(self.bad),
            **cost_figures(model),
            "images_per_second": len(self.labels) / self.seconds,
            "seconds": self.seconds,
            "temperature": model.temperature,
        }


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
    source: Images,
    compute: Compute,
    *,
    flips: bool = False,
    logits: bool = False,
    use: Callable[[Inferred], None] = lambda batch: None,
    progress: Progress = silent,
    world: World = ALONE,
) -> Probabilities:
    """Run a model over every image of a source, in order.

    Several processes share the batches; the first of them gets the probabilities of all, the same
    numbers as one process alone, the others get the damage and none of the probabilities.

    Args:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: images and labels
        compute: where and how
        flips: average the probabilities over each image and its mirror image
        logits: return these too
        use: called with every batch of this process
        progress: called after every batch
        world: the processes that share the images

    Raises:
        DataError: no image could be decoded.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    start = time.perf_counter()
    none = np.empty((0, model.config.classes))
    kept = [(np.empty(0, np.int64), none, np.empty(0), none)]
    bad = dict[int, str]()
    own = own_batches(model, source, world)
    for batch in infer(model, source, compute, flips=flips, only=own, progress=progress):
        use(batch)
        bad.update(batch.bad)
        if len(batch.indices):
            kept.append((batch.indices, batch.probabilities, batch.distances, batch.logits))
    indices, chances, far, scores = (np.concatenate(each) for each in zip(*kept, strict=True))
    if not world.sums(len(indices))[0]:
        damage = [text for each in world.gather([*bad.values()]) for text in each]
        raise world.shared(DataError(next(iter(damage), "there are no images")))
    columns = (indices, chances, far, scores) if logits else (indices, chances, far)
    (indices, chances, far, *asked), bad = gathered(world, columns, bad)
    labels = labels_of(source.target).take(indices)
    seconds = time.perf_counter() - start
    return Probabilities(chances, labels, indices, bad, seconds, far, *asked)
