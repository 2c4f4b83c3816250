"""Parallel branches, what to fine-tune, and stems (Three things, sections 3 to 5)."""

from collections.abc import Iterator
from typing import Any

from vitlab.models.names import shape_of
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base, fine_tuning, in_few_patches, table, tokenizer, without_labels
from vitlab.studies.design import Arm

BLOCKS = 12  # within a budget: what 1, 2, 3 and 4 branches divide
SCALES = {"plain": 0.0, "scaled": 1e-4}
TUNED = ("all", "attention", "ffn", "head")
RATES = {"adamw": 1e-3, "sgd": 0.03}  # within a budget; the paper's recipes have a tenth
FACTORS = (1 / 3, 1.0, 3.0)
FEW = 20.0  # relative epochs on other data, which is smaller; those of another resolution are 0.25
NOTHING = 1e-12  # a learning rate that moves no weight
# The stems that small models learn with without labels; MAE cannot have one that mixes patches.
WITHOUT_LABELS = {"beit": ("linear", "conv-bn", "hmlp-bn"), "mae": ("linear", "hmlp-bn")}
TITLES = {"beit": "BEiT, then labels", "mae": "MAE, then labels"}


def parallel_arms(base: Base) -> Iterator[Arm]:
    """Yield each model without LayerScale and with it; of the paper's, those that it prints.

    Branches are compared with as many blocks in a row, with half of these and with wider blocks:
    within a budget, 12 blocks in 1 to 4 branches, 6 in a row, and 6 whose width makes up for the
    others.
    """
    printed, names = table("parallel"), list(table("parallel"))
    if not base.paper:
        patch = 2 * base.shape.patch
        first = base.shape.changed(patch=patch, depth=BLOCKS, heads=2, width=64, mlp=128)
        split = [first.changed(depth=BLOCKS // n, branches=n) for n in (1, 2, 3, 4)]
        half = first.changed(depth=BLOCKS // 2)
        names = [shape.name for shape in (*split, half, half.changed(width=90, mlp=180))]
    for name in names:
        known, shape = printed.get(name, {}), shape_of(name)
        form, width = f"{shape['depth']}x{shape.get('branches', 1)}", shape["width"]
        label, cell = f"{form}-w{width}", f"{form}, width {width}"
        if base.paper:
            label = cell = name.removesuffix("/16")
        for kind in known or SCALES:
            scaled = {"layer_scale": SCALES[kind]} if SCALES[kind] else {}
            recipe = base.either("three-things", name, **scaled)
            cells = (cell, f"{SCALES[kind]:g}" if scaled else "none")
            yield Arm(f"{label}-{kind}", recipe, cells, _accuracy(known.get(kind)))


def _accuracy(printed: float | None) -> dict[str, float]:
    return {} if printed is None else {"accuracy": printed}


def tune_arms(base: Base) -> Iterator[Arm]:
    """Yield the models trained first, and each way to fine-tune them.

    What is fine-tuned is everything, attention, the FFNs or the classifier alone, for another
    resolution and for other data; beside them are the weights as they were before, which say what
    fine-tuning is worth at all. Within a budget one small model is trained on images of three
    quarters of the size, then fine-tuned at the full size and, if `downstream` names other data, on
    it. The learning rates are chosen on held-out images. The paper's are trained at 224 and
    fine-tuned at 384; it does not print how: our recipe `finetune` over 20 epochs in batches of
    512, the best of three rates.
    """
    size, patch = base.recipe.model.image_size, base.shape.patch
    lower = base.recipe.changed(image_size=max(size * 3 // 4 // patch, 1) * patch)
    for size in ("S", "B", "L") if base.paper else ("",):
        front, label = f"{size}-" if size else "", size or "small"
        trained = base.published("three-things-400", f"ViT-{size}/16") if base.paper else lower
        first = Arm(f"{front}first", trained, row=False)
        yield first
        still = _tuned(base, "resolution", "sgd", "head").changed(lr=NOTHING, steps=1)
        cells = (label, "resolution", "", "none")
        yield Arm(f"{front}resolution-none", still, cells, after=first.name, rates=(1.0,))
        for task in ("resolution", "transfer") if base.downstream else ("resolution",):
            for optimizer in RATES:
                printed = table("tune").get(f"{optimizer}-{size}", {})
                for tune in TUNED:
                    recipe = _tuned(base, task, optimizer, tune)
                    paper = _accuracy(printed.get(tune) if task == "resolution" else None)
                    name, cells = f"{task}-{optimizer}-{tune}", (label, task, optimizer, tune)
                    yield Arm(f"{front}{name}", recipe, cells, paper, first.name, FACTORS)


def _tuned(base: Base, task: str, optimizer: str, tune: str) -> Recipe:
    """Return the recipe of fine-tuning; the weights are named when they are there."""
    data = base.downstream if task == "transfer" else base.recipe.data.data
    how: dict[str, Any] = {"epochs": 20, "batch": 512} if base.paper else {
        "epochs": 0.25 if task == "resolution" else FEW, "batch": 64, "warmup": 0.0,
        "test_every": 1e6, "precision": base.recipe.precision,
    }  # fmt: skip
    decay = {"weight_decay": 0.0} if optimizer == "sgd" else {}
    return base.published("finetune", "", data=data, **how).changed(
        image_size=384 if base.paper else base.recipe.model.image_size,
        optimizer=optimizer, lr=RATES[optimizer] / (10 if base.paper else 1), tune=tune,
        layer_decay=1.0, head_start="zero", **decay,
    )  # fmt: skip


def stem_arms(base: Base) -> Iterator[Arm]:
    """Yield each stem, trained with labels; some, of the paper all, after BEiT, and after MAE."""
    rows = table("stems")
    for name, row in rows.items():
        yield Arm(name, _labels(base, row), (*row["cells"], "labels"), row["supervised"])
    if base.paper:
        codes = base.published("tokenizer", "dVAE/8", image_size=112)
    else:
        codes = tokenizer(base, _labels(base, {}).model)
    yield Arm("tokenizer", codes, row=False)
    for task, small in WITHOUT_LABELS.items():
        beit = task == "beit"
        for name in rows if base.paper and beit else small:
            row, options = rows[name], rows[name].get("options", {})
            if base.paper:
                model, epochs = _paper_model(row), 300
                own = base.published(task, model, image_size=224, epochs=epochs, **options)
                tuned = base.published(f"{task}-finetune", "")
            else:
                own = without_labels(base, task, _labels(base, row).model, **options)
                tuned = fine_tuning(base, epochs=base.recipe.epochs / 3)  # a third as long
            before = f"{task}-{name}-before"
            paper = row["beit"] if beit else {"macs": row["beit"]["macs"]}
            yield Arm(before, own, guide="tokenizer" if beit else "", row=False)
            yield Arm(f"{task}-{name}", tuned, (*row["cells"], TITLES[task]), paper, before)


def _labels(base: Base, row: dict[str, Any]) -> Recipe:
    """Return the recipe of a stem that is trained with labels."""
    options = row.get("options", {})
    if base.paper:
        return base.published("three-things", _paper_model(row), **options)
    return in_few_patches(base, row.get("deeper", 0), **options)


def _paper_model(row: dict[str, Any]) -> str:
    return "ViT-B13/16" if "deeper" in row else "ViT-B/16"


ROWS: dict[str, dict[str, Any]] = {
    "parallel": {"arms": parallel_arms},
    "tune": {"arms": tune_arms},
    "stems": {"arms": stem_arms},
}
