"""Accuracy against the compute of training: ViTs, ResNets and hybrids (ViT, Figure 5, Table 6).

Small budgets train three sizes of each family, two of them for half as long, too: 5 points that
span about eight times in compute. ViTs have half, once and twice the layers of the base ViT,
hybrids the same on the map of one ResNet stage, ResNets 2 units to 9. All share one recipe, as the
paper's models nearly do. Compute is what the runs spent, counted as in Table 6: a multiply-add is
two operations, the backward pass twice the forward one.

The paper's own 18 models are pre-trained by its Table 3 and fine-tuned on the downstream data, of
which its Table 6 has ImageNet; the compute of fine-tuning, 1 or 2% there, is counted here.

A power law is fitted to the errors of each family, and to those of the paper (compute_card.py).
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from vitlab.errors import DataError
from vitlab.studies.base import Base
from vitlab.studies.compute_card import (
    FAMILIES,
    PRINTED,
    PowerLaw,
    card,
    family_of,
    fitted,
)
from vitlab.studies.design import (
    ACCURACY,
    NLL,
    PARAMS,
    Arm,
    Column,
    Curve,
    Picture,
    Row,
    Study,
)
from vitlab.studies.papers import claims_of

IMAGENET_RATES = (0.1, 1 / 3, 1.0, 2.0)  # 0.003 to 0.06 (ViT, Table 4)
RESNETS = ("BiT-R(1-1)x1", "BiT-R(1-1-1)x1", "BiT-R(3-3-3)x1")
SIZES = ("small", "medium", "large")
LENGTHS = {"small": (0.5, 1.0), "medium": (0.5, 1.0), "large": (1.0,)}
FLOPS = Column("flops", "operations of training", lambda count: f"{count:.3g}", once=True)


def arms(base: Base) -> tuple[Arm, ...]:
    """Return every family in several sizes and lengths."""
    return tuple(_published(base) if base.paper else _small(base))


def _published(base: Base) -> Iterable[Arm]:
    for model, run in PRINTED:
        name, family = f"{model.replace('/', '-')}-{run.epochs}", family_of(model)
        before = f"{name}-pretraining"
        yield Arm(before, base.published("vit-jft", model, epochs=run.epochs), row=False)
        data = base.downstream or base.recipe.data.data
        yield Arm(
            name,
            base.published("vit-finetune", model, data=data),
            (family, model, f"{run.epochs}"),
            {"accuracy": run.imagenet, "flops": run.exaflops * 1e18},
            before,
            rates=IMAGENET_RATES,
            line=family,
        )


def _small(base: Base) -> Iterable[Arm]:
    for family in FAMILIES:
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


def findings(rows: Sequence[Row]) -> list[str]:
    """Return power laws of each family's errors, here and in the paper, and what follows there."""
    said = []
    for family in FAMILIES:
        own = (run for name, run in PRINTED if family_of(name) == family)
        printed = [(run.exaflops * 1e18, 1 - run.imagenet) for run in own]
        if law := _law(rows, family):
            said.append(law.sentence(f"{family}, here"))
        said.append(fitted(printed).sentence(f"{family}, paper, ImageNet"))
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


def curves(rows: Sequence[Row]) -> Mapping[str, Curve]:
    """Return the fitted accuracy of each family over the compute of its arms."""
    found: dict[str, Curve] = {}
    for family in FAMILIES:
        if law := _law(rows, family):
            ends = [x for x, _ in _points(rows, family)]
            x = np.geomspace(min(ends), max(ends), 60)
            found[family] = (x.tolist(), (1 - law(x)).tolist())
    return found


COMPUTE = Study(
    "Accuracy against compute",
    "ViT paper, Figure 5 and Table 6",
    ("family", "model", "length"),
    arms,
    (ACCURACY, FLOPS, NLL, PARAMS),
    claims=claims_of("compute"),
    picture=Picture(kind="lines", x=FLOPS.title, log=True, by=FLOPS.key, curves=curves),
    findings=findings,
)
