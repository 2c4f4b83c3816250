"""Parallel branches instead of depth, LayerScale, and width instead (Three things, section 3)."""

from vitlab.models.names import shape_of
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import ACCURACY, NLL, PARAMS, TRAIN_LOSS, Arm, Study
from vitlab.studies.grid.paper_claims import Claim

BLOCKS = 12  # within a budget: what 1, 2, 3 and 4 branches divide
PLAIN, SCALED = 0.0, 1e-4
# ImageNet-val accuracy without LayerScale and with it, 300 epochs (Tables 2 and 3)
PRINTED = {
    "ViT-B36/16": {PLAIN: 0.829, SCALED: 0.839},
    "ViT-B18x2/16": {PLAIN: 0.833, SCALED: 0.838},
    "ViT-B/16": {PLAIN: 0.822},
    "ViT-S48/16": {SCALED: 0.823},
    "ViT-S24x2/16": {SCALED: 0.826},
    "ViT-L/16": {SCALED: 0.834},
}


def arms(base: Base) -> tuple[Arm, ...]:
    """Return each model without LayerScale and with it; of the paper's, those that it prints."""
    names = PRINTED if base.paper else _small(base)
    scales = {name: PRINTED.get(name, (PLAIN, SCALED)) for name in names}
    return tuple(_arm(base, name, scale) for name in names for scale in scales[name])


def _small(base: Base) -> list[str]:
    """Return 12 blocks in 1 to 4 branches, and 6 in a row whose width makes up for the others."""
    first = base.shape.changed(patch=2 * base.shape.patch, depth=BLOCKS, heads=2, width=64, mlp=128)
    split = [first.changed(depth=BLOCKS // n, branches=n).name for n in (1, 2, 3, 4)]
    return [*split, first.changed(depth=BLOCKS // 2, width=90, mlp=180).name]


def _arm(base: Base, name: str, scale: float) -> Arm:
    scaled = {"layer_scale": scale} if scale else {}
    if base.paper:
        recipe = base.published("three-things", name, **scaled)
    else:
        recipe = base.model(name, **scaled)
    shape = shape_of(name)
    form = f"{shape['depth']}x{shape.get('branches', 1)}"
    form = f"{form}, width {shape['width']}"
    label = name.removesuffix("/16") if base.paper else form.replace(", width ", "-w")
    cells = (label if base.paper else form, f"{scale:g}" if scale else "none")
    known = PRINTED.get(name, {}).get(scale)
    kind = "scaled" if scale else "plain"
    return Arm(f"{label}-{kind}", recipe, cells, {} if known is None else {"accuracy": known})


STUDY = Study(
    "Parallel branches",
    "Three things, section 3, Figures 1 to 3, Tables 2 and 3",
    ("blocks x branches", "LayerScale"),
    arms,
    (
        ACCURACY,
        NLL,
        TRAIN_LOSS,
        PARAMS,
    ),
    claims=(
        Claim(
            "two branches are as good as twice the depth",
            ("12x1-w64-plain", "12x1-w64-scaled"),
            ("6x2-w64-plain", "6x2-w64-scaled"),
            "no higher",
        ),
        Claim(
            "four branches are worse than two",
            ("6x2-w64-plain", "6x2-w64-scaled"),
            ("3x4-w64-plain", "3x4-w64-scaled"),
        ),
        Claim("LayerScale helps", ("12x1-w64-scaled",), ("12x1-w64-plain",)),
        Claim(
            "more blocks are better than more width at equal parameters",
            ("12x1-w64-plain", "12x1-w64-scaled"),
            ("6x1-w90-plain", "6x1-w90-scaled"),
        ),
    ),
)
