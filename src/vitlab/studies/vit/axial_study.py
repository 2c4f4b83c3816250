"""Axial attention in ViTs and ResNets, against global attention and convolutions (ViT, Fig. 13)."""

from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import ACCURACY, MACS, NLL, PARAMS, Arm, Column, Study
from vitlab.studies.grid.paper_claims import Claim

PAPER = ("ViT-B/32", "ViT-B/16", "Axial-ViT-B/32", "Axial-ViT-B/16", "BiT-R50x1", "Axial-ResNet-50")

COARSE = (0, 2)  # the models among these that have the larger patches


def arms(base: Base) -> tuple[Arm, ...]:
    """Return ViTs, axial ViTs, a ResNet and an axial ResNet.

    Axial ViTs have no class token and 2-D positions. Within a budget, the patches are 4 and 8
    pixels of 32, and the ResNets have a unit in each of two stages.
    """
    names = PAPER if base.paper else _small(base)
    return tuple(_arm(base, name, number in COARSE) for number, name in enumerate(names))


def _small(base: Base) -> tuple[str, ...]:
    coarse, fine = base.shape.changed(patch=2 * base.shape.patch).name, base.shape.name
    vits = (coarse, fine, f"Axial-{coarse}", f"Axial-{fine}")
    return (*vits, "BiT-R(1-1)x1", "Axial-ResNet-(1-1)")


def _arm(base: Base, name: str, coarse: bool) -> Arm:
    recipe = base.published("vit-imagenet21k", name) if base.paper else base.model(name)
    axial, vit = name.startswith("Axial"), "ViT" in name
    kind = ("axial " if axial else "") + ("ViT" if vit else "ResNet")
    patch = f"{name.rsplit('/', 1)[1]}" if vit else ""
    label = kind.replace(" ", "-").lower() + ("-coarse" if coarse else "")
    return Arm(label, recipe, (kind, patch), line=kind)


STUDY = Study(
    "Axial attention",
    "ViT paper, Figure 13 and D.6",
    ("model", "patch"),
    arms,
    (
        ACCURACY,
        NLL,
        PARAMS,
        MACS,
        Column("images_per_second", "images/s in training", lambda rate: f"{rate:,.0f}", once=True),
    ),
    claims=(
        Claim(
            "axial ViTs are better than their counterparts, at more compute",
            ("axial-vit-coarse", "axial-vit"),
            ("vit-coarse", "vit"),
        ),
        Claim(
            "axial ResNets are slower than ResNets",
            ("resnet",),
            ("axial-resnet",),
            by="images_per_second",
        ),
    ),
)
