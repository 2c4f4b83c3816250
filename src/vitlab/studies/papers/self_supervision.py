"""Learning without labels, then from few, at equal computation (ViT, section 4.6 and B.1.2)."""

from typing import Any

from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base, fine_tuning, in_few_patches, tokenizer, without_labels
from vitlab.studies.design import ACCURACY, NLL, Arm, Picture, Study
from vitlab.studies.papers import claims_of

# Multiply-adds of fine-tuning by the share of the labels, those of pre-training being 1; from
# scratch, a model gets both.
TUNING = {0.01: 0.1, 0.1: 0.25, 1.0: 0.5}
MODEL = "ViT-B/16"
TITLES = {
    "supervised": "supervised",
    "masked-patch": "masked patch prediction",
    "mae": "MAE",
    "beit": "BEiT",
    "dino": "DINO",
    "scratch": "none: from scratch",
    "short": "none: as long as fine-tuning",
}
METHODS = tuple(TITLES)[:-2]
PAPER_TUNING = {"mae": "mae-finetune", "beit": "beit-finetune", "dino": "mae-finetune"}
# ImageNet accuracy of ViT-B/16: pre-trained on JFT-300M (Table 6; B.1.2), and on it alone (Table 5)
PRINTED = {"supervised": 0.8415, "masked-patch": 0.799, "scratch": 0.7791}


def arms(base: Base) -> tuple[Arm, ...]:
    """Return each method, its fine-tuning on each share of the labels, and that from scratch.

    The paper's have all labels: ViT-B/16 with and without labels on the data, from scratch and for
    the other methods on `downstream`, then fine-tuned there.
    """
    if base.paper:
        return _of_papers(base)
    found = [Arm("tokenizer", tokenizer(base, in_few_patches(base).model), row=False)]
    for name in METHODS:
        guide = "tokenizer" if name == "beit" else ""
        found.append(Arm(name, _before(base, name), row=False, guide=guide, macs=1.0))
        found += [_row(base, name, share, TUNING[share]) for share in TUNING]
    found += [_row(base, "scratch", share, 1.0 + TUNING[share]) for share in TUNING]
    return (*found, _row(base, "short", 1.0, TUNING[1.0]))


def _before(base: Base, name: str) -> Recipe:
    """Return the recipe of pre-training within a budget."""
    few = in_few_patches(base)
    return few if name == "supervised" else without_labels(base, name, few.model)


def _row(base: Base, name: str, share: float, macs: float) -> Arm:
    """Return what learns from a share of the labels, within a budget."""
    few: dict[str, Any] = {"data": base.downstream or base.recipe.data.data}
    few |= {"train_images": share} if share < 1 else {}
    first = name if name in METHODS else ""
    return Arm(
        f"{name}-{share:g}",
        fine_tuning(base, **few) if first else in_few_patches(base).changed(**few),
        (TITLES[name], f"{share:.0%}"),
        _printed(name) if share == 1 else {},
        after=first,
        x=share,
        line=TITLES[name],
        macs=macs,
    )


def _printed(name: str) -> dict[str, float]:
    return {"ImageNet": PRINTED[name]} if name in PRINTED else {}


def _of_papers(base: Base) -> tuple[Arm, ...]:
    """Return the papers' pre-training and fine-tuning."""
    data = {"data": base.downstream or base.recipe.data.data}
    codes = base.published("tokenizer", "dVAE/8", image_size=112, **data)
    found = [Arm("tokenizer", codes, row=False)]
    named = {"supervised": "vit-jft", "scratch": "vit-imagenet"}
    for name in (*METHODS, "scratch"):
        own = {} if name in ("supervised", "masked-patch") else data
        guide = "tokenizer" if name == "beit" else ""
        first = base.published(named.get(name, name), MODEL, image_size=224, **own)
        found.append(Arm(name, first, row=False, guide=guide))
        tuned = base.published(PAPER_TUNING.get(name, "vit-finetune"), "", **data)
        cells, line = (TITLES[name], "100%"), TITLES[name]
        found.append(Arm(f"{name}-1", tuned, cells, _printed(name), name, x=1.0, line=line))
    return tuple(found)


SELF_SUPERVISION = Study(
    "Self-supervision",
    "ViT paper, section 4.6 and B.1.2, beside MAE, BEiT and DINO",
    ("pre-training", "labels"),
    arms,
    (ACCURACY, NLL),
    claims=claims_of("self-supervision"),
    picture=Picture(kind="lines", x="share of the labels", log=True),
    note=(
        "Within a budget all methods have the same multiply-adds of training: 1 before fine-tuning "
        "and 0.1, 0.25 or 0.5 on 1%, 10% or all of the labels; from scratch, both together on the "
        "same labels, and in the last row as much as fine-tuning. Those of decoder, momentum "
        "teacher, further crops and tokenizer are counted, "
        "but not the training of BEiT's tokenizer, which is shared by all seeds. Supervised "
        "pre-training has seen all labels of its data. Patches have at least 8 pixels, and of "
        "smaller ones there are at most 6 x 6: small images are enlarged to 48 pixels."
    ),
)
