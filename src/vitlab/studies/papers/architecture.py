"""Architecture of a ViT: positions, shape, classifier, axial attention (ViT, appendix D).

The position embeddings are none, 1-D, 2-D or relative, added in three places (Table 8). The shape
grows in depth, width, MLP, patch size or all of them (Figure 8). The classifier sees a class token
or the mean of the patches (Figure 9). Axial attention is in ViTs and ResNets, against global
attention and convolutions (Figure 13).
"""

from typing import Any

import numpy as np

from vitlab.data.labels import SingleLabels
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.probes.few_shot import fewshot, sample_shots
from vitlab.models.cost import cost
from vitlab.studies.base import Base, table
from vitlab.studies.design import FEW_SHOT, Arm, Trained

PLACES = {"stem": "at the stem", "every": "before every block", "shared": "shared by all blocks"}
SCALED = {  # heads are as wide as before
    "depth": ("depth",), "width": ("width", "heads"), "MLP": ("mlp",), "patch size": ("patch",),
    "all": ("depth", "width", "heads", "mlp", "patch"),
}  # fmt: skip
RATES = {"high": 1.0, "low": 3 / 8}  # the paper's 8e-4 and 3e-4, as factors of the recipe's
CLASSIFIERS = {"token": "class token", "mean": "mean of patches"}
SHOTS, DRAWS = 5, 10  # the paper's Figures 4, 8, 9, 13 and Table 8: 5 per class; draws: our choice


def position_arms(base: Base) -> tuple[Arm, ...]:
    """Return an arm for each scheme of position embeddings and place where they are added."""
    recipe, found = base.recipe, []
    for name, printed in table("positions").items():
        positions, at = name.split("-")
        paper = {FEW_SHOT.key: printed}
        if positions == "none":
            own, name, place = recipe.changed(positions=positions), positions, ""
        else:
            own, place = recipe.changed(positions=positions, positions_at=at), PLACES[at]
        found.append(Arm(name, own, (positions, place), paper))
    return tuple(found)


def shape_arms(base: Base) -> tuple[Arm, ...]:
    """Return the starting shape, and it with each dimension halved and doubled, and with all.

    The starting shape is the base's with patches twice as large.
    """
    first = base.shape.changed(patch=2 * base.shape.patch)
    whole = base.model(first.name)
    start = cost(whole.model.config()).macs
    found = [Arm("start", whole, ("starting shape", ""), x=1.0)]
    for n in (0.5, 2.0):
        sizes = {name: max(1, int(n * getattr(first, name))) for name in SCALED["all"]}
        # as in the paper, where 64 does not divide 224: the next smaller patch that does
        sizes["patch"] = next(
            p for p in range(int(first.patch / n), 0, -1) if base.image_size % p == 0
        )
        for line, fields in SCALED.items():
            recipe = base.model(first.changed(**{name: sizes[name] for name in fields}).name)
            times = round(cost(recipe.model.config()).macs / start, 2)
            cells = (line, f"x{n:g}" if line == "all" else f"{sizes[fields[0]]}")
            name = f"{line.replace(' ', '-').lower()}-x{n:g}"
            found.append(Arm(name, recipe, cells, x=times, line=line))
    return tuple(sorted(found, key=lambda arm: ["", *SCALED].index(arm.line)))


def head_arms(base: Base) -> tuple[Arm, ...]:
    """Return each classifier with each of the paper's rates, then with its own best one.

    The paper does not say which model and data its figure is of.
    """
    recipe, found = base.recipe, []
    for pool, title in CLASSIFIERS.items():
        own = recipe.changed(pool=pool, **({"class_token": False} if pool == "mean" else {}))
        for name, factor in RATES.items():
            rate = recipe.optimizer.lr * factor
            found.append(Arm(f"{pool}-{name}", own.changed(lr=rate), (title, f"{rate:.2g}")))
        cells = (title, "chosen on held-out images")
        found.append(Arm(f"{pool}-best", own, cells, rates=(*sorted(RATES.values()), 2.0)))
    return tuple(found)


def axial_arms(base: Base) -> tuple[Arm, ...]:
    """Return ViTs, axial ViTs, a ResNet and an axial ResNet.

    Axial ViTs have no class token and 2-D positions. The patches are those of the base and twice
    as large, and the ResNets have a unit in each of two stages.
    """
    coarse, fine = base.shape.changed(patch=2 * base.shape.patch).name, base.shape.name
    names = (coarse, fine, f"Axial-{coarse}", f"Axial-{fine}", "BiT-R(1-1)x1", "Axial-ResNet-(1-1)")
    found = []
    for number, name in enumerate(names):
        vit = "ViT" in name
        kind = ("axial " if name.startswith("Axial") else "") + ("ViT" if vit else "ResNet")
        label = kind.replace(" ", "-").lower() + ("-coarse" if number in (0, 2) else "")
        cells = (kind, name.rpartition("/")[2] if vit else "")
        found.append(Arm(label, base.model(name), cells, line=kind))
    return tuple(found)


def few_shot(trained: Trained) -> dict[str, float]:
    """Return the test accuracy of a linear model that learns from 5 images of each class.

    A closed-form fit to the frozen features (`vitlab.evaluation.probes.few_shot`), averaged over 10
    draws of the images. They are of the downstream data, if there are any; otherwise of the data
    that the model learned from, all of whose training images may be drawn.

    Source: ViT paper, section 4.1, where it is ImageNet's; big_vision's evaluators/fewshot_lsr.py.

    Returns:
        `few_shot`; nothing where images have several labels, or a class fewer than 5 images.
    """
    splits = trained.downstream or trained.splits
    train, test = splits.train.target, splits.test.target
    if not isinstance(train, SingleLabels) or not isinstance(test, SingleLabels):
        return {}
    if np.bincount(train.values, minlength=len(splits.classes)).min() < SHOTS:
        return {}
    drawn = [
        sample_shots(train.values, splits.classes, (SHOTS,), seed)[SHOTS] for seed in range(DRAWS)
    ]
    wanted = np.unique(np.concatenate(drawn))
    compute = Compute(trained.device, engine="plain", workers=0)
    seen, asked = (
        features_in_memory(trained.model, source, compute)
        for source in (splits.train.take(wanted), splits.test)
    )
    numbers, found = wanted[seen.indices], []
    for each in drawn:
        own = np.isin(numbers, each)  # without those that cannot be decoded
        predicted = fewshot(seen.values[own], train.values[numbers[own]], asked.values)
        found.append(float((predicted == test.values[asked.indices]).mean()))
    return {FEW_SHOT.key: float(np.mean(found))}


ROWS: dict[str, dict[str, Any]] = {
    "positions": {"arms": position_arms, "measure": few_shot},
    "shape": {"arms": shape_arms},
    "head": {"arms": head_arms},
    "axial": {"arms": axial_arms},
}
