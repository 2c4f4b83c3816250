"""Pre-training: on how many images, with how much compute, by which optimizer, without labels.

Growing subsets of the training images (ViT, Figures 3 and 4); accuracy against compute (Figure 5,
Table 6); Adam against SGD for ResNets (Table 7, D.1); learning without labels, then from few
(section 4.6, B.1.2); frozen features of every way to learn without labels.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vitlab.data.labels import SingleLabels
from vitlab.errors import DataError
from vitlab.evaluation.answers import sample
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.evaluation.probes.few_shot import nearest_neighbors
from vitlab.evaluation.probes.probing import Side, logistic
from vitlab.experiments.cells import Row
from vitlab.objectives.feature_health import feature_health
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import (
    NOTHING,
    Base,
    fine_tuning,
    in_few_patches,
    small,
    table,
    tokenizer,
    without_labels,
)
from vitlab.studies.compute_card import FAMILIES, PowerLaw, card, fitted, printed_law
from vitlab.studies.design import ACCURACY, FLOPS, IMAGES, Arm, Trained
from vitlab.studies.papers.architecture import few_shot

PERCENTS = (3, 10, 30, 100)  # of the training images, as 9, 30, 90 million and all of JFT's 303
SIZES = {"small": (0.5, 1.0), "medium": (0.5, 1.0), "large": (1.0,)}  # and their lengths
COMPUTE_RESNETS = ("BiT-R(1-1)x1", "BiT-R(1-1-1)x1", "BiT-R(3-3-3)x1")
RESNETS = {"small": "BiT-R(1-1-1)x1", "large": "BiT-R(2-2-2)x1"}
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
RATES = (0.3, 1.0, 3.0)
FINE_TUNING = 100  # steps
MOST, NEIGHBORS = 10_000, 20  # images of a split by which features are judged; that vote
# Multiply-adds of fine-tuning by the share of the labels, those of pre-training being 1; from
# scratch, a model gets both.
TUNING = {0.01: 0.1, 0.1: 0.25, 1.0: 0.5}


def subset_arms(base: Base) -> Iterator[Arm]:
    """Yield every model with each share of the training images, all for the same number of steps.

    Figure 4 trains on random 9, 30 and 90 million of JFT's 303 million images, with the same
    hyper-parameters and no more regularization for the smaller subsets, and shows the 5-shot
    accuracy of the frozen features; equal steps are not stated there. Here are the same shares for
    the base ViT, one with twice the layers, a hybrid with one ResNet stage and a ResNet that costs
    what the base ViT does. The accuracy on the test images stands for the fine-tuned one of Figure
    3, whose pre-training sets differ in more than their size.
    """
    first = base.shape
    models = {
        "vit-small": first.name,
        "vit-large": first.changed(depth=2 * first.depth).name,
        "hybrid": base.hybrid(first),
        "resnet": RESNETS["small"],
    }
    for name, model in models.items():
        whole = base.model(model)
        for percent in PERCENTS:
            part = whole.changed(train_images=percent / 100 if percent < 100 else 0)
            recipe = part.lasting(whole.epochs / (percent / 100))
            yield Arm(f"{name}-{percent}", recipe, (model, f"{percent}%"), line=model)


def of_subset(trained: Trained) -> dict[str, float]:
    """Return the number of training images, and the few-shot accuracy."""
    asked, whole = trained.recipe.data.train_images, len(trained.splits.train)
    count = round(asked * whole) if 0 < asked < 1 else asked or whole
    return {IMAGES.key: count} | few_shot(trained)


def compute_arms(base: Base) -> Iterator[Arm]:
    """Yield every family in several sizes and lengths.

    There are three sizes of each family, two of them for half as long, too: 5 points that span
    about eight times in compute. ViTs have half, once and twice the layers of the base ViT, hybrids
    the same on the map of one ResNet stage, ResNets 2 units to 9. All share one recipe, as the
    paper's models nearly do.
    """
    shape = base.shape
    depths = [shape.changed(depth=max(1, int(n * shape.depth))) for n in (0.5, 1, 2)]
    models = {
        "ViT": [each.name for each in depths],
        "ResNet": COMPUTE_RESNETS,
        "hybrid": [base.hybrid(each) for each in depths],
    }
    for family in FAMILIES:
        for (size, lengths), model in zip(SIZES.items(), models[family], strict=True):
            for length in lengths:
                name = f"{family.lower()}-{size}{'-half' if length < 1 else ''}"
                recipe = base.model(model)
                recipe = recipe.lasting(recipe.epochs * length)
                yield Arm(name, recipe, (family, model, f"{length:g}"), line=family)


def laws(rows: Sequence[Row]) -> list[str]:
    """Return power laws of each family's errors, here and in the paper, and what follows there."""
    said = []
    for family in FAMILIES:
        if law := _law(rows, family):
            said.append(law.sentence(f"{family}, here"))
        said.append(printed_law(family, "imagenet").sentence(f"{family}, paper, ImageNet"))
    return [*said, *card()]


def _law(rows: Sequence[Row], family: str) -> PowerLaw | None:
    """Return the law of a family's arms by compute and mean error; None if they have none."""
    try:
        return fitted(_points(rows, family))
    except DataError:
        return None


def _points(rows: Sequence[Row], family: str) -> list[tuple[float, float]]:
    """Return compute and mean error of a family's arms."""
    own = [row["mean"] for row in rows if row["line"] == family]
    both = {ACCURACY.key, FLOPS.key}
    return [(each["flops"], 1 - each["accuracy"]) for each in own if both <= set(each)]


def resnet_arms(base: Base) -> Iterator[Arm]:
    """Yield the pre-training of ResNets by Adam and SGD, then their fine-tuning by SGD.

    The paper pre-trains R50x1 and R152x2 on JFT-300M. Here they are BiT-R(1-1-1)x1, which costs
    what the base ViT does, and BiT-R(2-2-2)x1, each optimizer with its own three learning rates,
    chosen on held-out training images. Both are then fine-tuned in 100 steps of SGD on the
    downstream data, without weight decay as in B.1.1. Unless other data are named, these are the
    built-in digits: little like photographs, but with classes that pre-training has not seen. Where
    pre-training is on the digits too, it is no transfer at all, and only the procedure is tested.
    """
    data, own = base.downstream or "digits", base.recipe
    start = base if data == own.data.data else Base(small(data))
    sgd = {"optimizer": "sgd", "momentum": 0.9}
    for name, printed in table("sgd-adam").items():
        size, optimizer = name.split("-")
        model, title, before = RESNETS[size], OPTIMIZERS[optimizer], f"{name}-pretraining"
        first = base.model(model)
        if optimizer == "sgd":
            first = first.changed(**sgd, lr=0.05, weight_decay=1e-4)
        tuned = start.model(model, image_size=own.model.image_size).changed(
            **sgd, precision=own.precision, lr=0.03, weight_decay=0.0, steps=FINE_TUNING,
            warmup_steps=FINE_TUNING // 10,
        )  # fmt: skip
        yield Arm(before, first, (model, title, "pre-training"), rates=RATES)
        cells = (model, title, f"fine-tuning: {Path(data).name}")
        yield Arm(name, tuned, cells, printed, before, RATES)


def label_arms(base: Base) -> Iterator[Arm]:
    """Yield each method, its fine-tuning on each share of the labels, and that from scratch.

    The paper's figures have all labels, of ViT-B/16 on ImageNet.
    """
    few, data = in_few_patches(base), {"data": base.transferred}
    yield Arm("tokenizer", tokenizer(base, few.model), row=False)
    for name in table("self-supervision"):
        if name in ("scratch", "short"):
            continue
        first = few if name == "supervised" else without_labels(base, name, few.model)
        guide = "tokenizer" if name == "beit" else ""
        yield Arm(name, first, row=False, guide=guide, macs=1.0)
        for share, macs in TUNING.items():
            yield _row(name, fine_tuning(base, **data, **_part(share)), share, macs, after=name)
    for share, macs in TUNING.items():
        yield _row("scratch", few.changed(**data, **_part(share)), share, 1.0 + macs)
    yield _row("short", few.changed(**data), 1.0, TUNING[1.0])


def feature_arms(base: Base) -> Iterator[Arm]:
    """Yield a model of random weights, one that learned from labels, and one for each task.

    All but the first have the same multiply-adds of training. None is fine-tuned.
    """
    few = in_few_patches(base)
    yield Arm("tokenizer", tokenizer(base, few.model), row=False)
    for name, own in table("features").items():
        cells = (own["title"],)
        if name == "random":
            yield Arm(name, few.changed(lr=NOTHING, steps=1), cells)
            continue
        recipe = few if name == "supervised" else without_labels(base, name, few.model)
        guide = "tokenizer" if name == "beit" else ""
        yield Arm(name, recipe, cells, own.get("paper", {}), guide=guide, macs=1.0)


def frozen(trained: Trained) -> dict[str, float]:
    """Return what neighbors and a linear classifier make of frozen features, and their rank.

    20 neighbors vote, weighted as DINO's; the classifier is DINOv2's logistic regression; the rank
    is RankMe, of the test images. At most 10,000 images of each split are drawn with seed 0.

    Returns:
        `knn`, `linear` and `feature_rank`; nothing where images have several labels.
    """
    splits, sides = trained.downstream or trained.splits, list[Side]()
    compute = Compute(trained.device, engine="plain", workers=0)
    for split in (splits.train, splits.test):
        source = split.take(sample(len(split), MOST, 0))
        if not isinstance(source.target, SingleLabels):
            return {}
        seen = features_in_memory(trained.model, source, compute)
        labels = source.target.values[seen.indices]
        sides.append(Side(seen.values, labels, source.classes, seen.bad, compute.where))
    learn, test = sides
    voted = nearest_neighbors(learn.x, learn.y, test.x, (NEIGHBORS,), device=compute.where)
    fitted, _ = logistic(learn, test, Probing())
    linear = {"linear": fitted["logistic"]["accuracy"]} if fitted else {}
    rank = feature_health(test.x)["feature_rank"]
    return {"knn": float((voted[NEIGHBORS] == test.y).mean()), **linear, "feature_rank": rank}


def _part(share: float) -> dict[str, float]:
    return {"train_images": share} if share < 1 else {}


def _row(name: str, recipe: Recipe, share: float, macs: float = 0.0, after: str = "") -> Arm:
    """Return what learns from a share of the labels."""
    own = table("self-supervision")[name]
    title = own["title"]
    return Arm(
        f"{name}-{share:g}",
        recipe,
        (title, f"{share:.0%}"),
        own.get("paper", {}) if share == 1 else {},
        after,
        x=share,
        line=title,
        macs=macs,
    )


ROWS: dict[str, dict[str, Any]] = {
    "data-size": {"arms": subset_arms, "measure": of_subset},
    "compute": {"arms": compute_arms, "findings": laws},
    "sgd-adam": {"arms": resnet_arms},
    "self-supervision": {"arms": label_arms},
    "features": {"arms": feature_arms, "measure": frozen},
}
