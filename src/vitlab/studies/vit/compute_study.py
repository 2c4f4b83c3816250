"""Accuracy against the compute of training: ViTs, ResNets and hybrids (ViT, Figure 5, Table 6).

Small budgets train three sizes of each family, two of them for half as long, too: 5 points that
span about eight times in compute. ViTs have half, once and twice the layers of the base ViT,
hybrids the same on the map of one ResNet stage, ResNets 2 units to 9. All share one recipe, as the
paper's models nearly do. Compute is what the runs spent, counted as in Table 6: a multiply-add is
two operations, the backward pass twice the forward one.

The paper's own 18 models are pre-trained by its Table 3 and fine-tuned on the downstream data, of
which its Table 6 has ImageNet; the compute of fine-tuning, 1 or 2% there, is counted here.

A power law is fitted to the errors of each family, and to those of the paper.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitlab.errors import DataError
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import (
    ACCURACY,
    NLL,
    PARAMS,
    Arm,
    Column,
    Curve,
    Picture,
    Rows,
    Study,
)
from vitlab.studies.grid.paper_claims import Claim
from vitlab.studies.measures.power_law import LEAST, PowerLaw, fitted, sentence

# Model, epochs of JFT-300M, ImageNet accuracy after fine-tuning, exaFLOPs (ViT, Table 6)
PRINTED: dict[str, tuple[tuple[str, int, float, float], ...]] = {
    "ViT": (
        ("ViT-B/32", 7, 0.8073, 55),
        ("ViT-B/16", 7, 0.8415, 224),
        ("ViT-L/32", 7, 0.8437, 196),
        ("ViT-L/16", 7, 0.8630, 783),
        ("ViT-L/16", 14, 0.8712, 1567),
        ("ViT-H/14", 14, 0.8808, 4262),
    ),
    "ResNet": (
        ("BiT-R50x1", 7, 0.7754, 50),
        ("BiT-R50x2", 7, 0.8212, 199),
        ("BiT-R101x1", 7, 0.8067, 96),
        ("BiT-R152x1", 7, 0.8188, 141),
        ("BiT-R152x2", 7, 0.8497, 563),
        ("BiT-R152x2", 14, 0.8556, 1126),
        ("BiT-R200x3", 14, 0.8722, 3306),
    ),
    "hybrid": (
        ("R50+ViT-B/32", 7, 0.8490, 106),
        ("R50+ViT-B/16", 7, 0.8558, 274),
        ("R50+ViT-L/32", 7, 0.8568, 246),
        ("R50+ViT-L/16", 7, 0.8660, 859),
        ("R50+ViT-L/16", 14, 0.8712, 1668),
    ),
}
IMAGENET_RATES = (0.1, 1 / 3, 1.0, 2.0)  # 0.003 to 0.06 (ViT, Table 4)
RESNETS = ("BiT-R(1-1)x1", "BiT-R(1-1-1)x1", "BiT-R(3-3-3)x1")
SIZES = ("small", "medium", "large")
LENGTHS = {"small": (0.5, 1.0), "medium": (0.5, 1.0), "large": (1.0,)}
FLOPS = Column("flops", "operations of training", lambda count: f"{count:.3g}", once=True)


def arms(base: Base) -> tuple[Arm, ...]:
    """Return every family in several sizes and lengths."""
    return tuple(_published(base) if base.paper else _small(base))


def _published(base: Base) -> Iterable[Arm]:
    for family, models in PRINTED.items():
        for model, epochs, accuracy, exaflops in models:
            name = f"{model.replace('/', '-')}-{epochs}"
            before = f"{name}-pretraining"
            yield Arm(before, base.published("vit-jft", model, epochs=epochs), row=False)
            tuned = base.published(
                "vit-finetune", model, data=base.downstream or base.recipe.data.data
            )
            printed = {"accuracy": accuracy, "flops": exaflops * 1e18}
            cells = (family, model, f"{epochs}")
            yield Arm(name, tuned, cells, printed, before, rates=IMAGENET_RATES, line=family)


def _small(base: Base) -> Iterable[Arm]:
    for family in PRINTED:
        for size, model in zip(SIZES, _models(base, family), strict=True):
            for length in LENGTHS[size]:
                short = "-half" if length < 1 else ""
                recipe = base.model(model)
                yield Arm(
                    f"{family.lower()}-{size}{short}",
                    recipe.lasting(recipe.epochs * length),
                    (family, model, f"{length:g}"),
                    line=family,
                )


def _models(base: Base, family: str) -> Sequence[str]:
    """Return the small, medium and large model of a family."""
    if family == "ResNet":
        return RESNETS
    first = base.shape
    depths = (max(1, first.depth // 2), first.depth, 2 * first.depth)
    if family == "ViT":
        return [first.changed(depth=depth).name for depth in depths]
    return [base.hybrid(first.changed(depth=depth)) for depth in depths]


def findings(rows: Rows) -> list[str]:
    """Return a power law of each family's errors, here and in the paper."""
    said = []
    for family, printed in PRINTED.items():
        points = _points(rows, family)
        said += _sentences(f"{family}, here", points)
        said += _sentences(f"{family}, paper", [(c * 1e18, 1 - a) for _, _, a, c in printed])
    return said


def _sentences(name: str, points: Sequence[tuple[float, float]]) -> list[str]:
    found = []
    for floor in (False, True):
        if law := _law(points, floor):
            found.append(sentence(f"{name}, with a floor" if floor else name, law))
    return found


def _law(points: Sequence[tuple[float, float]], floor: bool = False) -> PowerLaw | None:
    """Return the law of some points, if there are enough of them, or one more for a floor."""
    if len({x for x, _ in points}) < LEAST + 2 * floor:
        return None
    try:
        return fitted(*zip(*points, strict=True), floor=floor)
    except DataError:
        return None


def _points(rows: Rows, family: str) -> list[tuple[float, float]]:
    """Return compute and mean error of a family's arms."""
    own = [row["mean"] for row in rows if row["line"] == family]
    both = {ACCURACY.key, FLOPS.key}
    return [(each["flops"], 1 - each["accuracy"]) for each in own if both <= set(each)]


def curves(rows: Rows) -> Mapping[str, Curve]:
    """Return the fitted accuracy of each family over the compute of its arms."""
    found: dict[str, Any] = {}
    for family in PRINTED:
        points = _points(rows, family)
        if law := _law(points):
            ends = [x for x, _ in points]
            x = np.geomspace(min(ends), max(ends), 60)
            found[family] = (x, 1 - law(x))
    return found


STUDY = Study(
    "Accuracy against compute",
    "ViT paper, Figure 5 and Table 6",
    ("family", "model", "length"),
    arms,
    (
        ACCURACY,
        FLOPS,
        NLL,
        PARAMS,
    ),
    claims=(
        Claim(
            "small hybrids are better than ViTs at about the same compute",
            ("hybrid-small-half", "hybrid-small"),
            ("vit-small", "vit-medium"),
        ),
        Claim(
            "large hybrids are no better than ViTs", ("hybrid-large",), ("vit-large",), "no higher"
        ),
        Claim("ViTs are better than ResNets at the same compute, pre-trained on JFT-300M"),
        Claim("ViTs do not saturate within the range tried"),
    ),
    picture=Picture(kind="lines", x=FLOPS.title, log=True, by=FLOPS.key, curves=curves),
    findings=findings,
)
