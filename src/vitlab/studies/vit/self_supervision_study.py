"""Learning without labels, then from few, at equal computation (ViT, section 4.6 and B.1.2)."""

from dataclasses import dataclass

from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import ACCURACY, NLL, Arm, Picture, Study
from vitlab.studies.grid.paper_claims import Claim
from vitlab.studies.small_pretraining import (
    fine_tuning,
    in_few_patches,
    tokenizer,
    without_labels,
)

# Multiply-adds of fine-tuning by the share of the labels, those of pre-training being 1; from
# scratch, a model gets both.
TUNING = {0.01: 0.1, 0.1: 0.25, 1.0: 0.5}
MODEL = "ViT-B/16"


@dataclass(frozen=True)
class Method:
    """What is learned before the fine-tuning.

    Attributes:
        title: its name in the table
        tuning: the paper's recipe of fine-tuning
        accuracy: on ImageNet after it, as the ViT paper prints it; 0 if it does not
    """

    title: str
    tuning: str = "vit-finetune"
    accuracy: float = 0.0


METHODS = {
    "supervised": Method("supervised", accuracy=0.8415),  # on JFT-300M: Table 6
    "masked-patch": Method("masked patch prediction", accuracy=0.799),  # on JFT-300M: B.1.2
    "mae": Method("MAE", "mae-finetune"),
    "beit": Method("BEiT", "beit-finetune"),
    "dino": Method("DINO", "mae-finetune"),
}
SCRATCH = Method("none: from scratch", accuracy=0.7791)  # on ImageNet: Table 5


def arms(base: Base) -> tuple[Arm, ...]:
    """Return each method, its fine-tuning on each share of the labels, and that from scratch.

    The paper's have all labels: ViT-B/16 with and without labels on the data, from scratch and for
    the other methods on `downstream`, then fine-tuned there.
    """
    if base.paper:
        return _of_papers(base)
    found = [Arm("tokenizer", _codes(base), row=False)]
    for name in METHODS:
        guide = "tokenizer" if name == "beit" else ""
        found.append(Arm(name, _before(base, name), row=False, guide=guide, macs=1.0))
        found += [_row(base, name, share) for share in TUNING]
    return (*found, *(_row(base, "scratch", share) for share in TUNING))


def _codes(base: Base) -> Recipe:
    return tokenizer(base, in_few_patches(base).model)


def _before(base: Base, name: str) -> Recipe:
    """Return the recipe of pre-training within a budget."""
    if name == "supervised":
        return in_few_patches(base)
    return without_labels(base, name, in_few_patches(base).model)


def _row(base: Base, name: str, share: float) -> Arm:
    """Return what learns from a share of the labels, within a budget."""
    data = {"data": base.downstream or base.recipe.data.data}
    few = data | ({"train_images": share} if share < 1 else {})
    method, scratch = METHODS.get(name, SCRATCH), name == "scratch"
    return Arm(
        f"{name}-{share:g}",
        in_few_patches(base).changed(**few) if scratch else fine_tuning(base, **few),
        (method.title, f"{share:.0%}"),
        {"ImageNet": method.accuracy} if method.accuracy and share == 1 else {},
        after="" if scratch else name,
        x=share,
        line=method.title,
        macs=TUNING[share] + scratch,
    )


def _of_papers(base: Base) -> tuple[Arm, ...]:
    """Return the papers' pre-training and fine-tuning."""
    data = {"data": base.downstream or base.recipe.data.data}
    codes = base.published("tokenizer", "dVAE/8", image_size=112, **data)
    found = [Arm("tokenizer", codes, row=False)]
    named = {"supervised": "vit-jft", "scratch": "vit-imagenet"}
    for name, method in (METHODS | {"scratch": SCRATCH}).items():
        own = {} if name in ("supervised", "masked-patch") else data
        guide = "tokenizer" if name == "beit" else ""
        first = base.published(named.get(name, name), MODEL, image_size=224, **own)
        found.append(Arm(name, first, row=False, guide=guide))
        tuned = base.published(method.tuning, "", **data)
        paper = {"ImageNet": method.accuracy} if method.accuracy else {}
        cells = (method.title, "100%")
        found.append(Arm(f"{name}-1", tuned, cells, paper, name, x=1.0, line=method.title))
    return tuple(found)


STUDY = Study(
    "Self-supervision",
    "ViT paper, section 4.6 and B.1.2, beside MAE, BEiT and DINO",
    ("pre-training", "labels"),
    arms,
    (ACCURACY, NLL),
    claims=(
        Claim(
            "masked patch prediction is better than no pre-training",
            ("masked-patch-1",),
            ("scratch-1",),
        ),
        Claim(
            "supervised pre-training is better than masked patch prediction",
            ("supervised-1",),
            ("masked-patch-1",),
        ),
    ),
    picture=Picture(kind="lines", x="share of the labels", log=True),
    note=(
        "Within a budget all methods have the same multiply-adds of training: 1 before fine-tuning "
        "and 0.1, 0.25 or 0.5 on 1%, 10% or all of the labels; from scratch, both together on the "
        "same labels. Those of decoder, momentum teacher, further crops and tokenizer are counted, "
        "but not the training of BEiT's tokenizer, which is shared by all seeds. Supervised "
        "pre-training has seen all labels of its data. Patches have at least 8 pixels, and of "
        "smaller ones there are at most 6 x 6: small images are enlarged to 48 pixels."
    ),
)
