"""What to fine-tune, for another resolution and for other data (Three things, Tables 5 and 6)."""

from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import Arm, Study
from vitlab.studies.grid.paper_claims import Claim

TUNED = ("all", "attention", "ffn")
OPTIMIZERS = ("adamw", "sgd")
RATES = (1 / 3, 1.0, 3.0)
FEW = 20.0  # relative epochs on other data, which is smaller; those of another resolution are 0.25
# ImageNet-val accuracy at 384 of ViT-S, -B and -L trained at 224 (Table 5)
SIZES = ("S", "B", "L")
PRINTED = {
    ("adamw", "S"): (0.827, 0.825, 0.822),
    ("adamw", "B"): (0.843, 0.843, 0.841),
    ("adamw", "L"): (0.855, 0.854, 0.852),
    ("sgd", "S"): (0.826, 0.823, 0.820),
    ("sgd", "B"): (0.843, 0.842, 0.840),
    ("sgd", "L"): (0.854, 0.853, 0.851),
}


def arms(base: Base) -> tuple[Arm, ...]:
    """Return the models trained first, and each way to fine-tune them.

    Within a budget one small model is trained on images of three quarters of the size, then
    fine-tuned at the full size and, if `downstream` names other data, on it. The learning rates
    are chosen on held-out images. The paper's are trained at 224 and fine-tuned at 384; it does
    not print how: our recipe `finetune` over 20 epochs in batches of 512, the best of three rates.
    """
    sizes = SIZES if base.paper else ("",)
    return tuple(arm for size in sizes for arm in _of_size(base, size))


def _of_size(base: Base, size: str) -> list[Arm]:
    first = "-".join(filter(None, (size, "first")))
    tasks = ["resolution"] + ["transfer"] * bool(base.downstream)
    found = [Arm(first, _first(base, size), row=False)]
    for task in tasks:
        for optimizer in OPTIMIZERS:
            for number, tune in enumerate(TUNED):
                recipe = _tuned(base, task, optimizer, tune)
                printed = PRINTED.get((optimizer, size)) if task == "resolution" else None
                cells = (size or "small", task, optimizer, tune)
                name = "-".join(filter(None, (size, task, optimizer, tune)))
                known = {"accuracy": printed[number]} if printed else {}
                found.append(Arm(name, recipe, cells, known, first, RATES))
    return found


def _first(base: Base, size: str) -> Recipe:
    """Return the recipe of the weights to start from."""
    if base.paper:
        return base.published("three-things-400", f"ViT-{size}/16")
    full, patch = base.recipe.model.image_size, base.shape.patch
    return base.recipe.changed(image_size=max(full * 3 // 4 // patch, 1) * patch)


def _tuned(base: Base, task: str, optimizer: str, tune: str) -> Recipe:
    """Return the recipe of fine-tuning; the weights are named when they are there."""
    other = task == "transfer"
    data = base.downstream if other else base.recipe.data.data
    size = 384 if base.paper else base.recipe.model.image_size
    if base.paper:
        recipe = base.published("finetune", "", data=data, epochs=20, batch=512)
    else:
        recipe = base.published(
            "finetune", "", data=data, epochs=FEW if other else 0.25, batch=64, warmup=0.0,
            test_every=1e6, precision=base.recipe.precision,
        )  # fmt: skip
    rates = {"adamw": 1e-3, "sgd": 0.03}
    rate = rates[optimizer] / (10 if base.paper else 1)
    decay = {"weight_decay": 0.0} if optimizer == "sgd" else {}
    return recipe.changed(
        image_size=size, optimizer=optimizer, lr=rate, tune=tune, layer_decay=1.0,
        head_start="zero", **decay,
    )  # fmt: skip


def _of(task: str, part: str) -> tuple[str, ...]:
    """Return the rows of a part that is fine-tuned, whatever the optimizer."""
    return tuple(f"{task}-{name}-{part}" for name in OPTIMIZERS)


STUDY = Study(
    "What to fine-tune",
    "Three things, section 4, Tables 5 and 6",
    ("model", "task", "optimizer", "tuned"),
    arms,
    claims=(
        Claim(
            "attention alone is as good as everything for another resolution",
            _of("resolution", "all"), _of("resolution", "attention"), "no higher",
        ),
        Claim(
            "attention is the better part for another resolution",
            _of("resolution", "attention"), _of("resolution", "ffn"),
        ),
        Claim(
            "attention alone is as good as everything on other data",
            _of("transfer", "all"), _of("transfer", "attention"), "no higher",
        ),
    ),
)  # fmt: skip
