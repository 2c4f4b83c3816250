"""Parallel branches, what to fine-tune, and stems (Three things, sections 3 to 5)."""

from collections.abc import Iterator
from typing import Any

from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import (
    NOTHING,
    Base,
    fine_tuning,
    in_few_patches,
    table,
    tokenizer,
    without_labels,
)
from vitlab.studies.design import Arm

BLOCKS = 12  # what 1, 2, 3 and 4 branches divide
SCALES = {"plain": 0.0, "scaled": 1e-4}
TUNED = ("all", "attention", "ffn", "head")
RATES = {"adamw": 1e-3, "sgd": 0.03}
OF_RELEASED = {"adamw": 1e-4}  # at 3e-4 and above, DINOv2 fell to chance: nothing to choose from
FACTORS = (1 / 3, 1.0, 3.0)
FEW = 20.0  # relative epochs on other data, which is smaller; those of another resolution are 0.25
# The stems that models learn with without labels; MAE cannot have one that mixes patches.
WITHOUT_LABELS = {"beit": ("linear", "conv-bn", "hmlp-bn"), "mae": ("linear", "hmlp-bn")}
TITLES = {"beit": "BEiT, then labels", "mae": "MAE, then labels"}


def parallel_arms(base: Base) -> Iterator[Arm]:
    """Yield each model without LayerScale and with it.

    Branches are compared with as many blocks in a row, with half of these and with wider blocks:
    12 blocks in 1 to 4 branches, 6 in a row, and 6 whose width makes up for the others.
    """
    patch = 2 * base.shape.patch
    first = base.shape.changed(patch=patch, depth=BLOCKS, heads=2, width=64, mlp=128)
    split = [first.changed(depth=BLOCKS // n, branches=n) for n in (1, 2, 3, 4)]
    half = first.changed(depth=BLOCKS // 2)
    for shape in (*split, half, half.changed(width=90, mlp=180)):
        form = f"{shape.depth}x{shape.branches}"
        for kind, scale in SCALES.items():
            recipe = base.model(shape.name, **({"layer_scale": scale} if scale else {}))
            cells = (f"{form}, width {shape.width}", f"{scale:g}" if scale else "none")
            yield Arm(f"{form}-w{shape.width}-{kind}", recipe, cells)


def tune_arms(base: Base) -> Iterator[Arm]:
    """Yield the model trained first, and each way to fine-tune it.

    What is fine-tuned is everything, attention, the FFNs or the classifier alone, for another
    resolution and for other data; beside them are the weights as they were before, which say what
    fine-tuning is worth at all. The model is trained on images of three quarters of the size, then
    fine-tuned at the full size and, if `downstream` names other data, on it. It starts from trained
    weights if the recipe names them. The learning rates are chosen on held-out images.
    """
    size, patch = base.grid
    lower = base.recipe.changed(image_size=max(size * 3 // 4 // patch, 1) * patch)
    yield Arm("first", lower, row=False)
    still = _tuned(base, "resolution", "sgd", "head").changed(lr=NOTHING, steps=1)
    yield Arm("resolution-none", still, ("resolution", "", "none"), after="first", rates=(1.0,))
    for task in ("resolution", "transfer") if base.downstream else ("resolution",):
        for optimizer in RATES:
            printed = table("tune")[optimizer] if task == "resolution" else {}
            for tune in TUNED:
                recipe, cells = _tuned(base, task, optimizer, tune), (task, optimizer, tune)
                paper = {"ViT-B": printed[tune]} if tune in printed else {}
                yield Arm("-".join(cells), recipe, cells, paper, "first", FACTORS)


def _tuned(base: Base, task: str, optimizer: str, tune: str) -> Recipe:
    """Return the recipe of fine-tuning; the weights are named when they are there."""
    there, own = task == "transfer", base.recipe
    decay = {"weight_decay": 0.0} if optimizer == "sgd" else {}
    rates = RATES | (OF_RELEASED if own.start.weights else {})
    return base.published(
        "finetune", "", data=base.downstream if there else own.data.data, batch=64, warmup=0.0,
        epochs=FEW if there else 0.25, test_every=1e6, precision=own.precision,
    ).changed(
        image_size=base.grid[0], optimizer=optimizer, lr=rates[optimizer], tune=tune,
        layer_decay=1.0, head_start="zero", **decay,
    )  # fmt: skip


def stem_arms(base: Base) -> Iterator[Arm]:
    """Yield each stem, trained with labels; some after BEiT, and after MAE."""
    rows = table("stems")
    for name, row in rows.items():
        yield Arm(name, _labels(base, row), (*row["cells"], "labels"), row["supervised"])
    yield Arm("tokenizer", tokenizer(base, _labels(base, {}).model), row=False)
    for task, stems in WITHOUT_LABELS.items():
        guide = "tokenizer" if task == "beit" else ""
        for name in stems:
            row, before = rows[name], f"{task}-{name}-before"
            model, options = _labels(base, row).model, row.get("options", {})
            yield Arm(before, without_labels(base, task, model, **options), guide=guide, row=False)
            tuned = fine_tuning(base, epochs=base.recipe.epochs / 3)  # a third as long
            paper = row["beit"] if guide else {"macs": row["beit"]["macs"]}
            yield Arm(f"{task}-{name}", tuned, (*row["cells"], TITLES[task]), paper, before)


def _labels(base: Base, row: dict[str, Any]) -> Recipe:
    """Return the recipe of a stem that is trained with labels."""
    return in_few_patches(base, row.get("deeper", 0), **row.get("options", {}))


ROWS: dict[str, dict[str, Any]] = {
    "parallel": {"arms": parallel_arms},
    "tune": {"arms": tune_arms},
    "stems": {"arms": stem_arms},
}
