"""Parallel branches, and what to fine-tune (Three things, sections 3 and 4).

Branches are compared with as many blocks in a row, with half of these and with wider blocks, each
without LayerScale and with it. What is fine-tuned is everything, attention, the FFNs or the
classifier alone, for another resolution and for other data; beside them are the weights as they
were before, which say what fine-tuning is worth at all.
"""

from vitlab.models.names import shape_of
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base
from vitlab.studies.design import ACCURACY, NLL, PARAMS, TRAIN_LOSS, Arm, Study
from vitlab.studies.papers import claims_of, table

BLOCKS = 12  # within a budget: what 1, 2, 3 and 4 branches divide
SCALES = {"plain": 0.0, "scaled": 1e-4}
TUNED = ("all", "attention", "ffn", "head")
RATES = {"adamw": 1e-3, "sgd": 0.03}  # within a budget; the paper's recipes have a tenth
FACTORS = (1 / 3, 1.0, 3.0)
FEW = 20.0  # relative epochs on other data, which is smaller; those of another resolution are 0.25
NOTHING = 1e-12  # a learning rate that moves no weight


def parallel_arms(base: Base) -> tuple[Arm, ...]:
    """Return each model without LayerScale and with it; of the paper's, those that it prints.

    Within a budget these are 12 blocks in 1 to 4 branches, 6 in a row, and 6 whose width makes up
    for the others.
    """
    printed, found = table("parallel"), []
    for name in printed if base.paper else _small(base):
        for kind in printed.get(name, SCALES):
            scaled = {"layer_scale": SCALES[kind]} if SCALES[kind] else {}
            shape = shape_of(name)
            form = f"{shape['depth']}x{shape.get('branches', 1)}"
            label = name.removesuffix("/16") if base.paper else f"{form}-w{shape['width']}"
            cell = label if base.paper else f"{form}, width {shape['width']}"
            known = printed.get(name, {}).get(kind)
            found.append(
                Arm(
                    f"{label}-{kind}",
                    base.either("three-things", name, **scaled),
                    (cell, f"{SCALES[kind]:g}" if scaled else "none"),
                    {} if known is None else {"accuracy": known},
                )
            )
    return tuple(found)


def _small(base: Base) -> list[str]:
    first = base.shape.changed(patch=2 * base.shape.patch, depth=BLOCKS, heads=2, width=64, mlp=128)
    split = [first.changed(depth=BLOCKS // n, branches=n) for n in (1, 2, 3, 4)]
    half = first.changed(depth=BLOCKS // 2)
    return [shape.name for shape in (*split, half, half.changed(width=90, mlp=180))]


def tune_arms(base: Base) -> tuple[Arm, ...]:
    """Return the models trained first, and each way to fine-tune them.

    Within a budget one small model is trained on images of three quarters of the size, then
    fine-tuned at the full size and, if `downstream` names other data, on it. The learning rates
    are chosen on held-out images. The paper's are trained at 224 and fine-tuned at 384; it does
    not print how: our recipe `finetune` over 20 epochs in batches of 512, the best of three rates.
    """
    found = []
    for size in ("S", "B", "L") if base.paper else ("",):
        front = f"{size}-" if size else ""
        first, label = f"{front}first", size or "small"
        found.append(Arm(first, _first(base, size), row=False))
        still = _tuned(base, "resolution", "sgd", "head").changed(lr=NOTHING, steps=1)
        cells = (label, "resolution", "", "none")
        found.append(Arm(f"{front}resolution-none", still, cells, after=first, rates=(1.0,)))
        for task in ("resolution", "transfer") if base.downstream else ("resolution",):
            for optimizer in RATES:
                printed = table("tune").get(f"{optimizer}-{size}", {})
                for tune in TUNED:
                    known = printed.get(tune) if task == "resolution" else None
                    found.append(
                        Arm(
                            f"{front}{task}-{optimizer}-{tune}",
                            _tuned(base, task, optimizer, tune),
                            (label, task, optimizer, tune),
                            {} if known is None else {"accuracy": known},
                            first,
                            FACTORS,
                        )
                    )
    return tuple(found)


def _first(base: Base, size: str) -> Recipe:
    """Return the recipe of the weights to start from."""
    if base.paper:
        return base.published("three-things-400", f"ViT-{size}/16")
    full, patch = base.recipe.model.image_size, base.shape.patch
    return base.recipe.changed(image_size=max(full * 3 // 4 // patch, 1) * patch)


def _tuned(base: Base, task: str, optimizer: str, tune: str) -> Recipe:
    """Return the recipe of fine-tuning; the weights are named when they are there."""
    data = base.downstream if task == "transfer" else base.recipe.data.data
    length = {"epochs": 20, "batch": 512} if base.paper else {
        "epochs": 0.25 if task == "resolution" else FEW, "batch": 64, "warmup": 0.0,
        "test_every": 1e6, "precision": base.recipe.precision,
    }  # fmt: skip
    decay = {"weight_decay": 0.0} if optimizer == "sgd" else {}
    return base.published("finetune", "", data=data, **length).changed(
        image_size=384 if base.paper else base.recipe.model.image_size,
        optimizer=optimizer, lr=RATES[optimizer] / (10 if base.paper else 1), tune=tune,
        layer_decay=1.0, head_start="zero", **decay,
    )  # fmt: skip


PARALLEL = Study(
    "Parallel branches",
    "Three things, section 3, Figures 1 to 3, Tables 2 and 3",
    ("blocks x branches", "LayerScale"),
    parallel_arms,
    (ACCURACY, NLL, TRAIN_LOSS, PARAMS),
    claims=claims_of("parallel"),
)
TUNE = Study(
    "What to fine-tune",
    "Three things, section 4, Tables 5 and 6",
    ("model", "task", "optimizer", "tuned"),
    tune_arms,
    claims=claims_of("tune"),
    note="Of `none`, nothing is tuned: it is one step at a rate that moves no weight.",
)
