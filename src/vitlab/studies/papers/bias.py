"""What a ViT, a hybrid and a ResNet of similar cost rely on, and how many images they need.

The models are trained on all images, a tenth and a hundredth of them, for the same number of steps,
so that all runs cost the same; fewer images are passed over more often. Each architecture chooses
its learning rate on held-out training images, with all images, and keeps it with fewer, as in the
ViT paper (4.3). Within a budget, the ResNet is BiT-R(1-1-1)x1 and the hybrid has a stage of one
bottleneck below a ViT of one block less and narrower MLPs: with the usual small ViT, both are
within 2% of its multiply-adds.
"""

import math

from vitlab.evaluation.inductive_bias import inductive_bias
from vitlab.studies.base import KINDS, Base
from vitlab.studies.design import ACCURACY, Arm, Picture, Study, Trained, share_column
from vitlab.studies.papers import claims_of

SHARES = {"100": 1.0, "10": 0.1, "1": 0.01}  # of the training images, by percent
SMALL_RESNET = "BiT-R(1-1-1)x1"
RATES = (0.3, 1.0, 3.0)
IMAGES = 1000  # that are probed within a budget
RELATIVE = ("shuffled", "occluded", "shift", "low_pass", "high_pass")


def arms(base: Base) -> tuple[Arm, ...]:
    """Return an arm for each architecture and share of the training images."""
    return tuple(_arm(base, kind, percents) for percents in SHARES for kind in KINDS)


def _arm(base: Base, kind: str, percents: str) -> Arm:
    share = SHARES[percents]
    whole = share == 1
    model = base.of_similar_cost(SMALL_RESNET)[kind]
    recipe = base.either("vit-imagenet", model)
    if not whole:
        recipe = recipe.changed(train_images=share).lasting(recipe.epochs / share)
    return Arm(
        f"{kind}-{percents}",
        recipe,
        (KINDS[kind], f"{percents}%"),
        rates=RATES if whole and not base.paper else (),
        x=100 * share,
        line=KINDS[kind],
        rate_of="" if whole else f"{kind}-100",
    )


def measure(trained: Trained) -> dict[str, float]:
    """Return what `vitlab.inductive_bias` finds on test images, and shares of the accuracy kept.

    `kept_shuffled_4` is `shuffled_4` above chance, divided by `clean` above chance, which compares
    models of different accuracy: 0 is guessing, and below it is worse than that. What is undefined
    is left out, and so is all of it for a model that is no better than chance.
    """
    found = inductive_bias(
        trained.model, trained.splits.test, images=IMAGES, device=str(trained.device)
    )
    chance = 1 / len(trained.splits.classes)
    clean = found["clean"] - chance
    kept = {
        f"kept_{key}": (value - chance) / clean
        for key, value in found.items()
        if clean > 0 and key.startswith(RELATIVE)
    }
    return {key: value for key, value in (found | kept).items() if not math.isnan(value)}


BIAS = Study(
    "What a ViT, a hybrid and a ResNet rely on",
    "Naseer et al. (2021), Park and Kim (2022), Tuli et al. (2021), Geirhos et al. (2019), and the "
    "ViT paper, 4.3 and 4.4",
    ("model", "training images"),
    arms,
    (
        ACCURACY,
        share_column("kept_shuffled_2", "kept: 2x2 tiles shuffled"),
        share_column("kept_shuffled_4", "kept: 4x4 tiles shuffled"),
        share_column("kept_occluded_25", "kept: 25% occluded"),
        share_column("kept_occluded_50", "kept: 50% occluded"),
        share_column("kept_occluded_75", "kept: 75% occluded"),
        share_column("kept_occluded_salient_25", "kept: salient 25% occluded"),
        share_column("consistency_1", "same class: shift of 1 pixel"),
        share_column("consistency_4", "same class: shift of 4 pixels"),
        share_column("shape_bias", "shape bias"),
        share_column("kept_low_pass_25", "kept: lowest frequencies"),
        share_column("kept_low_pass_50", "kept: low frequencies"),
        share_column("kept_high_pass_25", "kept: high frequencies"),
    ),
    measure=measure,
    claims=claims_of("bias"),
    picture=Picture(kind="lines", x="training images (%)", log=True),
    note="Every row has the same number of steps. Kept: the accuracy above chance on changed "
    "images, divided by that on unchanged ones; 0% is guessing. Shape bias: of the images with the "
    "phases of one class and the amplitudes of another that are taken for either, the share taken "
    "for that of the phases; Geirhos et al. and Tuli et al. transfer styles instead. Salient "
    "patches are those of the model's own gradients.",
)  # fmt: skip
