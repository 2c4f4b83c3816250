"""Stems: linear, convolutions, hMLP, a local transformer (Three things, Table 7)."""

from dataclasses import dataclass, field
from typing import Any

from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import ACCURACY, NLL, TRAIN_LOSS, Arm, Column, Study
from vitlab.studies.grid.paper_claims import Claim
from vitlab.studies.small_pretraining import (
    fine_tuning,
    in_few_patches,
    tokenizer,
    without_labels,
)
from vitlab.units import si


@dataclass(frozen=True)
class Row:
    """A row of Table 7: ViT-B/16 on ImageNet.

    Attributes:
        cells: stem, norm and activation
        options: of the model
        deeper: blocks more than the others have
        macs: multiply-adds of an image
        supervised: ImageNet accuracy after 300 epochs
        v2: ImageNet-V2 accuracy of the same models
        beit: ImageNet accuracy after BEiT and fine-tuning
    """

    cells: tuple[str, str, str]
    options: dict[str, Any] = field(default_factory=dict)
    deeper: int = 0
    macs: float = 17.58e9
    supervised: float = 0.0
    v2: float = 0.0
    beit: float = 0.0


BATCH, LAYER, GELU = {"stem_norm": "batch"}, {"stem_norm": "layer"}, {"stem_act": "gelu"}
ROWS = {
    "linear": Row(("linear", "", ""), {}, 0, 17.58e9, 0.8220, 0.710, 0.8305),
    "linear-bn": Row(("linear", "BN", ""), BATCH, 0, 17.58e9, 0.8231, 0.710, 0.8298),
    "linear-gelu": Row(("linear", "", "GELU"), GELU, 0, 17.58e9, 0.8155, 0.705, 0.8309),
    "linear-bn-gelu": Row(
        ("linear", "BN", "GELU"), BATCH | GELU, 0, 17.58e9, 0.8238, 0.707, 0.8299
    ),
    "deeper": Row(("linear, a block more", "", ""), {}, 1, 19.04e9, 0.8235, 0.713, 0.8326),
    "conv-bn": Row(
        ("LeViT", "BN", "GELU"), {"stem": "conv"} | BATCH, 0, 19.07e9, 0.8257, 0.710, 0.8304
    ),
    "conv-ln": Row(
        ("LeViT", "LN", "GELU"), {"stem": "conv"} | LAYER, 0, 19.07e9, 0.8250, 0.709, 0.8306
    ),
    "local": Row(
        ("local transformer", "LN", "GELU"), {"stem": "local"}, 0, 19.12e9, 0.8226, 0.706, 0.8238
    ),
    "hmlp-bn": Row(
        ("hMLP", "BN", "GELU"), {"stem": "hmlp"} | BATCH, 0, 17.73e9, 0.8254, 0.715, 0.8343
    ),
    "hmlp-ln": Row(
        ("hMLP", "LN", "GELU"), {"stem": "hmlp"} | LAYER, 0, 17.73e9, 0.8250, 0.710, 0.8324
    ),
}


WITHOUT_LABELS = {"beit": ("linear", "conv-bn", "hmlp-bn"), "mae": ("linear", "hmlp-bn")}
"""The stems that small models learn with without labels; MAE cannot have one that mixes patches."""


def arms(base: Base) -> tuple[Arm, ...]:
    """Return each stem, trained with labels; some, of the paper all, after BEiT, and after MAE."""
    found = [_supervised(base, name) for name in ROWS]
    codes = Arm("tokenizer", _tokenizer(base), row=False)
    for task, small in WITHOUT_LABELS.items():
        found += [codes] if task == "beit" else []
        for name in ROWS if base.paper and task == "beit" else small:
            found += _pretrained(base, task, name)
    return tuple(found)


def _tokenizer(base: Base) -> Recipe:
    if base.paper:
        return base.published("tokenizer", "dVAE/8", image_size=112)
    return tokenizer(base, _labels(base, ROWS["linear"]).model)


def _pretrained(base: Base, task: str, name: str) -> tuple[Arm, Arm]:
    """Return the training without labels, and the fine-tuning after it, a third as long."""
    row, first = ROWS[name], f"{task}-{name}-before"
    paper = {"macs": row.macs} | ({"ImageNet": row.beit} if task == "beit" else {})
    if base.paper:
        before = base.published(task, _paper_model(row), image_size=224, epochs=300, **row.options)
        after = base.published(f"{task}-finetune", "")
    else:
        before = without_labels(base, task, _labels(base, row).model, **row.options)
        after = fine_tuning(base, epochs=base.recipe.epochs / 3)
    guide = "tokenizer" if task == "beit" else ""
    trained = f"{'BEiT' if task == 'beit' else 'MAE'}, then labels"
    return (
        Arm(first, before, guide=guide, row=False),
        Arm(f"{task}-{name}", after, (*row.cells, trained), paper, first),
    )


def _supervised(base: Base, name: str) -> Arm:
    row = ROWS[name]
    paper = {"macs": row.macs, "ImageNet": row.supervised, "ImageNet-V2": row.v2}
    return Arm(name, _labels(base, row), (*row.cells, "labels"), paper)


def _labels(base: Base, row: Row) -> Recipe:
    """Return the recipe of a stem that is trained with labels."""
    if base.paper:
        return base.published("three-things", _paper_model(row), **row.options)
    return in_few_patches(base, row.deeper, **row.options)


def _paper_model(row: Row) -> str:
    return f"ViT-B{12 + row.deeper}/16" if row.deeper else "ViT-B/16"


STUDY = Study(
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
    claims=(
        Claim("hMLP is better than a linear stem", ("hmlp-bn",), ("linear",)),
        Claim("convolutions are better than a linear stem", ("conv-bn",), ("linear",)),
        Claim(
            "hMLP is as good as convolutions, which take more computation",
            ("conv-bn",),
            ("hmlp-bn",),
            "no higher",
        ),
        Claim("hMLP is as good with LayerNorm", ("hmlp-bn",), ("hmlp-ln",), "no higher"),
        Claim("hMLP is better than one more block", ("hmlp-bn",), ("deeper",)),
        Claim("GELU after a linear stem is worse", ("linear",), ("linear-gelu",)),
        Claim("after BEiT, hMLP is better than linear", ("beit-hmlp-bn",), ("beit-linear",)),
        Claim("after BEiT, hMLP is better than convolutions", ("beit-hmlp-bn",), ("beit-conv-bn",)),
        Claim(
            "after BEiT, convolutions are no better than linear",
            ("beit-conv-bn",),
            ("beit-linear",),
            "no higher",
        ),
    ),
    note=(
        "All rows have the same images and patches: an hMLP stem needs patches of at least 8 "
        "pixels, so within a budget smaller ones are enlarged to 8, at most 6 x 6 of them: small "
        "images to 48 pixels. The paper's local transformer is not specified: this one "
        "takes as many multiply-adds. Before fine-tuning, BEiT and MAE take as many epochs "
        "as training with labels, and fine-tuning a third of them. MAE cannot have convolutions, "
        "which mix patches; its rows are not in the paper."
    ),
)
