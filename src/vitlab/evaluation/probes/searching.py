"""The search for a linear head: which features of a model, and which kind, by cross-validation.

Features are the class token, the mean of the patch tokens, or both, of the last layer or one before
it. Ridge ranks all of them by leave-one-out in closed form; on the two best, every kind of head
is cross-validated on the same folds. A Vision Transformer that is cut after a block, with its final
norm, is an ordinary one of fewer blocks, so that whatever is chosen is an ordinary model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitlab.data.holdout import hash_uniform
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.number_targets import Numbers
from vitlab.errors import DataError
from vitlab.evaluation.answers import Float32s, Integers, check_numbers
from vitlab.evaluation.features import ImageFeatures
from vitlab.evaluation.infer import Vectors
from vitlab.evaluation.probes.blocks import Blocks, By, LinearHead
from vitlab.evaluation.probes.feature_options import Cuts, Pooled
from vitlab.evaluation.probes.few_shot import classes_of
from vitlab.evaluation.probes.heads import HEADS, PENALTIES, Crossed, crossed
from vitlab.evaluation.probes.ridge import best_ridge, least_squares, leave_one_out
from vitlab.evaluation.temperature import temperature_of
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.progress import named_if_slow
from vitlab.units import counted
from vitlab.weights.assembly import empty, whole_state

FINALISTS = 2  # features on which every kind of head is tried
KINDS: tuple[By, ...] = ("logistic", "ridge", "means")
Pool = Literal["token", "mean", "both", ""]
POOLS: tuple[Pool, ...] = ("token", "mean", "both")


@dataclass(frozen=True)
class FeatureChoice:
    """Features that a head may see: numbers `first` to `end` of each vector that was computed.

    Attributes:
        layer: the block after which the model ends
        pool: of its tokens, as `ViTConfig.pool`; empty for what the classifier of the model sees
    """

    layer: int
    pool: Pool
    first: int
    end: int

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self.end - self.first

    def of(self, values: Float32s) -> Float32s:
        """Return these features, (n, width), without a copy."""
        return values[:, self.first : self.end]

    def trial(
        self, head: By, l2: float, figure: float, how: str, name: str = "accuracy"
    ) -> dict[str, Any]:
        """Return what a head gave that was tried on these features, as JSON has it."""
        about = {"head": head, "l2": l2, name: figure, "how": how}
        return {"layer": self.layer, "pool": self.pool} | about


@dataclass(frozen=True, eq=False)
class FoundHead:
    """The best head, fitted to all training images.

    Attributes:
        choice: what it sees
        head: its weights and bias
        accuracy: in cross-validation
        temperature: that calibrates the logits of the images it had not learned from
        tried: all that was tried, in order: `layer`, `pool`, `head`, `l2`, and the `accuracy` with
            `how` it was found: by leave-one-out, or so many folds
        folds: that each image was in, int64 (n,)
    """

    choice: FeatureChoice
    head: LinearHead
    accuracy: float
    temperature: float
    tried: tuple[dict[str, Any], ...]
    folds: Integers


def choices_of(model: Model, layers: int, pool: Pool = "") -> tuple[Vectors, list[FeatureChoice]]:
    """Return what to compute of each image, and the features that can be chosen of it.

    Args:
        model: any; of a ResNet, of attention pooling and the like, only what its classifier sees
        layers: how many of the last blocks to try
        pool: the one to try; empty for all
    """
    config = model.config
    if not (isinstance(config, ViTConfig) and _can_be_cut(config)):
        return Pooled(), [FeatureChoice(model.last_layer, "", 0, config.features)]
    numbers = tuple(range(max(1, model.last_layer - layers + 1), model.last_layer + 1))
    pools = [each for each in POOLS if each == "mean" or config.has_token]
    if config.norm_at == "pooled":
        pools = [each for each in pools if each != "both"]
    width = config.width
    token = int(config.has_token)
    places = {"token": (0, 1), "mean": (token, token + 1), "both": (0, 2)}
    found = []
    for row, layer in enumerate(numbers):
        start = row * width * (1 + token)
        for each in pools if not pool else [pool]:
            first, end = (start + width * place for place in places[each])
            found.append(FeatureChoice(layer, each, first, end))
    return Cuts(layers=numbers), found


def _can_be_cut(config: ViTConfig) -> bool:
    """Return whether each block can be the last, and each pool be that of the model."""
    usual = config.pool in POOLS and not (config.pool_prefix or config.pre_logits)
    return usual and config.attention != "axial" and config.fit != "native"


def folds_of(source: Images, rows: Integers, y: Integers, count: int) -> Integers:
    """Deal images out to folds, the same share of each class in all; groups stay together.

    Args:
        source: labeled images
        rows: numbers of the images to deal out, (n,)
        y: their classes, (n,)
        count: of the folds; fewer if there are fewer images

    Returns:
        The fold of each, int64 (n,).

    Raises:
        DataError: all are of one group, or there is only one.
    """
    count = min(count, len(rows))
    if source.group is not None:
        dealt = (hash_uniform(source.take(rows), "folds") * count).astype(np.int64)
    else:
        dealt = SingleLabels(y).parts(count, np.random.default_rng(0))
    if len(np.unique(dealt)) < 2:
        raise DataError(
            f"{counted(len(rows), 'training image')} cannot be dealt out to folds: "
            "give at least 2, of two groups if they are in groups"
        )
    return dealt


def fit_head(
    source: Images,
    learn: ImageFeatures,
    choices: Sequence[FeatureChoice],
    kinds: Sequence[By],
    folds: int,
    device: torch.device,
) -> FoundHead:
    """Find the best head by cross-validation, and fit it to all images.

    Of equally good heads the first is taken: of fewer features, then in the order of `kinds`.

    Args:
        source: labeled images
        learn: their features, possibly memory-mapped: they are read in blocks
        choices: of the features
        kinds: of heads
        folds: how many, of which every image is in one
        device: where to fit logistic regressions

    Raises:
        DataError: several labels per image, too few images for two folds, or a feature that is no
            number.
    """
    check_numbers(learn.values, "images a feature")
    y = classes_of(source, "the data")[learn.indices]
    classes = len(source.classes)
    dealt = folds_of(source, learn.indices, y, folds)
    best: tuple[FeatureChoice, Crossed] | None = None
    with named_if_slow("fitting the classifier"):
        tried, finalists = _ranked(choices, learn.values, lambda z: best_ridge(z, y, classes))
        for choice, l2 in finalists:
            x = choice.of(learn.values)
            for kind in kinds:
                penalties = {"logistic": PENALTIES, "ridge": (l2,), "means": (0.0,)}[kind]
                found = crossed(kind, x, y, classes, dealt, penalties, device)
                tried.append(choice.trial(kind, found.l2, found.accuracy, _parts(dealt)))
                if best is None or found.accuracy > best[1].accuracy:
                    best = choice, found
        assert best is not None
        choice, found = best
        x = choice.of(learn.values)
        head = HEADS[found.by](Blocks(x, device), y, classes, found.l2)
        heat = temperature_of(found.logits, SingleLabels(y[found.rows]))
    return FoundHead(choice, head, found.accuracy, heat, tuple(tried), dealt)


def _ranked(
    choices: Sequence[FeatureChoice],
    values: Float32s,
    best: Callable[[Blocks], tuple[float, float]],
    name: str = "accuracy",
) -> tuple[list[dict[str, Any]], list[tuple[FeatureChoice, float]]]:
    """Return what ridge gives by leave-one-out, and the best features, each with its penalty."""
    tried = []
    ranks = []
    for choice in choices:
        figure, l2 = best(Blocks(choice.of(values)))
        tried.append(choice.trial("ridge", l2, figure, "leave-one-out", name))
        ranks.append((-figure, choice.width, -choice.layer, choice, l2))
    first = sorted(ranks, key=lambda each: each[:3])[:FINALISTS]
    return tried, [(choice, l2) for *_, choice, l2 in first]


def _parts(dealt: Integers) -> str:
    """Return how a head was judged by folds, as JSON has it."""
    return f"{len(np.unique(dealt))} folds"


def with_head(model: Model, found: FoundHead) -> Model:
    """Return the model that ends after the chosen layer, with the fitted head; a copy of its own.

    Args:
        model: whose features were computed, with a new classifier
        found: the head
    """
    classify = model.head_names[0]
    fitted = {"weight": found.head.weights, "bias": found.head.bias}
    own: dict[str, Tensor] = {
        f"{classify}{name}": torch.from_numpy(each).float() for name, each in fitted.items()
    }
    return ending_after(model, found.choice, own)


def ending_after(model: Model, choice: FeatureChoice, own: dict[str, Tensor]) -> Model:
    """Return a copy of the model that ends after the chosen layer, with some tensors of its own."""
    config: ModelConfig = model.config
    if choice.pool and isinstance(config, ViTConfig):
        config = replace(config, depth=choice.layer, pool=choice.pool, class_token=config.has_token)
    tensors = whole_state(model) | own
    kept = {name: tensors[name].to("cpu", copy=True) for name in empty(config)}
    made = assemble(config, kept)
    made.provenance = dict(model.provenance)
    made.source = model.source
    made.seen = model.seen
    return made


# Numbers


class FoundRidge(NamedTuple):
    """The best ridge regression, fitted to all training images.

    Attributes:
        choice: what it sees
        head: its weights and bias, of standardized targets
        errors: of images that it had not learned from, in cross-validation, (n, targets)
        about: `layer`, `pool`, `head`, `l2`, and `r2` with `how` it was found
        tried: the same of each that was tried
    """

    choice: FeatureChoice
    head: LinearHead
    errors: Numbers
    about: dict[str, Any]
    tried: list[dict[str, Any]]

    def layer(self) -> dict[str, Numbers]:
        """Return `weight` and `bias` of values, then of logarithms of variances: of the errors."""
        spread = np.log(np.square(self.errors).mean(0))
        weight = np.concatenate([self.head.weights, np.zeros_like(self.head.weights)])
        return {"weight": weight, "bias": np.concatenate([self.head.bias, spread])}


def find_ridge(
    source: Images, learn: ImageFeatures, choices: Sequence[FeatureChoice], folds: int
) -> FoundRidge:
    """Find features and penalty by the squared error of images left out; fit to all images.

    Leave-one-out in closed form ranks all features and penalties; the two best are
    cross-validated, groups of images staying together.

    Args:
        source: images with numbers, which are standardized
        learn: their features
        choices: of the features
        folds: how many

    Raises:
        DataError: too few images for two folds, or a feature that is no number.
    """
    check_numbers(learn.values, "images a feature")
    y = source.target.take(learn.indices).batch().astype(np.float64)
    dealt = folds_of(source, learn.indices, np.zeros(len(y), np.int64), folds)

    def strongest(z: Blocks) -> tuple[float, float]:
        squares = dict[float, float]()
        for own, l2, each in leave_one_out(z, y.__getitem__):
            squares[l2] = squares.get(l2, 0.0) + float(np.square(y[own] - each).sum())
        return max((1 - total / y.size, l2) for l2, total in squares.items())

    tried, finalists = _ranked(choices, learn.values, strongest, "r2")
    best = list[FoundRidge]()
    for choice, l2 in finalists:
        x = choice.of(learn.values)
        errors = np.empty(y.shape)
        for part in np.unique(dealt):
            learned, own = (np.flatnonzero(each) for each in (dealt != part, dealt == part))
            head = least_squares(Blocks(x, rows=learned), y[learned].__getitem__, l2)
            errors[own] = y[own] - head.logits(x, own)
        tried.append(choice.trial("ridge", l2, explained(errors), _parts(dealt), "r2"))
        head = least_squares(Blocks(x), y.__getitem__, l2)
        best.append(FoundRidge(choice, head, errors, tried[-1], tried))
    return max(best, key=lambda each: float(each.about["r2"]))


def explained(errors: Numbers) -> float:
    """Return R² of standardized targets, the mean over them."""
    return 1 - float(np.square(errors).mean())
