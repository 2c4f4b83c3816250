"""Growing subsets of the training images: ViTs against ResNets (ViT, Figures 3 and 4).

Figure 4 trains on random 9, 30 and 90 million of JFT's 303 million images, with the same
hyper-parameters and no more regularization for the smaller subsets, and shows the 5-shot accuracy
of the frozen features. Here every subset gets the same number of steps, which the paper does not
state. Its early stopping is kept for its own models, by 10% of the subset that are held out, 20
tests and a patience of 3 (our choice).

Small budgets have the same shares, 3, 10, 30 and 100%, for the base ViT, one with twice the
layers, a hybrid with one ResNet stage and a ResNet that costs what the base ViT does, without early
stopping. Their 5 images per class are of the same data, unless downstream data are named. The
accuracy on the test images stands for the fine-tuned one of Figure 3, whose pre-training sets
(ImageNet, ImageNet-21k, JFT) differ in more than their size.
"""

from collections.abc import Iterable

from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base
from vitlab.studies.design import (
    ACCURACY,
    NLL,
    TRAIN_LOSS,
    Arm,
    Column,
    Picture,
    Study,
    Trained,
)
from vitlab.studies.few_shot import FEW_SHOT, few_shot
from vitlab.studies.papers import claims_of

JFT = 303_000_000  # images
SUBSETS = {3: 9_000_000, 10: 30_000_000, 30: 90_000_000, 100: 0}  # by their percentage; 0: all
# ViT-S/32 is the paper's ViT-b/32: ViT-B with every width halved
PAPER_MODELS = {
    "vit-b": "ViT-S/32",
    "vit-small": "ViT-B/32",
    "vit-large": "ViT-L/32",
    "vit-large-fine": "ViT-L/16",
    "resnet": "BiT-R50x1",
    "resnet-large": "BiT-R152x2",
}
TESTS, PATIENCE = 20, 3
IMAGES = Column("train_images", "training images", lambda count: f"{count:,.0f}", once=True)


def arms(base: Base) -> tuple[Arm, ...]:
    """Return every model with each share of the training images."""
    return tuple(_published(base) if base.paper else _small(base))


def _published(base: Base) -> Iterable[Arm]:
    for name, model in PAPER_MODELS.items():
        first = base.published("vit-jft", model)
        for percentage, images in SUBSETS.items():
            epochs = first.epochs * JFT / images if images else first.epochs
            recipe = first.changed(
                train_images=images, epochs=epochs, test_every=epochs / TESTS, patience=PATIENCE
            )
            yield _arm(name, percentage, recipe)


def _small(base: Base) -> Iterable[Arm]:
    first = base.shape
    deep = first.changed(depth=2 * first.depth)
    models = {
        "vit-small": first.name,
        "vit-large": deep.name,
        "hybrid": base.hybrid(first),
        "resnet": "BiT-R(1-1-1)x1",
    }
    for name, model in models.items():
        recipe = base.model(model)
        for percentage in SUBSETS:
            share = percentage / 100
            part = recipe.changed(train_images=share if share < 1 else 0)
            yield _arm(name, percentage, part.lasting(recipe.epochs / share))


def _arm(name: str, percentage: int, recipe: Recipe) -> Arm:
    cells = (recipe.model.model, f"{percentage}%")
    return Arm(f"{name}-{percentage}", recipe, cells, line=recipe.model.model)


def measured(trained: Trained) -> dict[str, float]:
    """Return the number of training images, and the few-shot accuracy."""
    asked, whole = trained.recipe.data.train_images, len(trained.splits.train)
    count = round(asked * whole) if 0 < asked < 1 else asked or whole
    return {IMAGES.key: count} | few_shot(trained)


DATA_SIZE = Study(
    "Growing subsets of the training images",
    "ViT paper, Figures 3 and 4",
    ("model", "share"),
    arms,
    (ACCURACY, FEW_SHOT, IMAGES, NLL, TRAIN_LOSS),
    measured,
    claims_of("data-size"),
    picture=Picture(FEW_SHOT.key, "lines", IMAGES.title, log=True, by=IMAGES.key),
)
