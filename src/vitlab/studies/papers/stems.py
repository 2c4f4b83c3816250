"""Stems: linear, convolutions, hMLP, a local transformer (Three things, Table 7)."""

from typing import Any

from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base, fine_tuning, in_few_patches, tokenizer, without_labels
from vitlab.studies.design import ACCURACY, NLL, TRAIN_LOSS, Arm, Column, Study
from vitlab.studies.papers import claims_of, table
from vitlab.units import si

WITHOUT_LABELS = {"beit": ("linear", "conv-bn", "hmlp-bn"), "mae": ("linear", "hmlp-bn")}
"""The stems that small models learn with without labels; MAE cannot have one that mixes patches."""
TITLES = {"beit": "BEiT, then labels", "mae": "MAE, then labels"}


def arms(base: Base) -> tuple[Arm, ...]:
    """Return each stem, trained with labels; some, of the paper all, after BEiT, and after MAE."""
    rows = table("stems")
    found = [
        Arm(name, _labels(base, row), (*row["cells"], "labels"), row["supervised"])
        for name, row in rows.items()
    ]
    found.append(Arm("tokenizer", _tokenizer(base), row=False))
    for task, small in WITHOUT_LABELS.items():
        for name in rows if base.paper and task == "beit" else small:
            found += _pretrained(base, task, name, rows[name])
    return tuple(found)


def _tokenizer(base: Base) -> Recipe:
    if base.paper:
        return base.published("tokenizer", "dVAE/8", image_size=112)
    return tokenizer(base, _labels(base, {}).model)


def _pretrained(base: Base, task: str, name: str, row: dict[str, Any]) -> tuple[Arm, Arm]:
    """Return the training without labels, and the fine-tuning after it, a third as long."""
    first, options = f"{task}-{name}-before", row.get("options", {})
    if base.paper:
        before = base.published(task, _paper_model(row), image_size=224, epochs=300, **options)
        after = base.published(f"{task}-finetune", "")
    else:
        before = without_labels(base, task, _labels(base, row).model, **options)
        after = fine_tuning(base, epochs=base.recipe.epochs / 3)
    beit = task == "beit"
    paper = row["beit"] if beit else {"macs": row["beit"]["macs"]}
    return (
        Arm(first, before, guide="tokenizer" if beit else "", row=False),
        Arm(f"{task}-{name}", after, (*row["cells"], TITLES[task]), paper, first),
    )


def _labels(base: Base, row: dict[str, Any]) -> Recipe:
    """Return the recipe of a stem that is trained with labels."""
    options = row.get("options", {})
    if base.paper:
        return base.published("three-things", _paper_model(row), **options)
    return in_few_patches(base, row.get("deeper", 0), **options)


def _paper_model(row: dict[str, Any]) -> str:
    return "ViT-B13/16" if "deeper" in row else "ViT-B/16"


STEMS = Study(
    "Stems",
    "Three things, section 5, Table 7 and Figure 6",
    ("stem", "norm", "activation", "trained with"),
    arms,
    (
        ACCURACY,
        NLL,
        TRAIN_LOSS,
        Column("macs", "multiply-adds", lambda count: si(count, 2), once=True),
    ),
    claims=claims_of("stems"),
    note=(
        "All rows have the same images and patches: an hMLP stem needs patches of at least 8 "
        "pixels, so within a budget smaller ones are enlarged to 8, at most 6 x 6 of them: small "
        "images to 48 pixels. The paper's local transformer is not specified: this one "
        "takes as many multiply-adds. Before fine-tuning, BEiT and MAE take as many epochs "
        "as training with labels, and fine-tuning a third of them. MAE cannot have convolutions, "
        "which mix patches; its rows are not in the paper."
    ),
)
