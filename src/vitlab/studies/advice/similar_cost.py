"""A ViT, a hybrid and a ResNet whose multiply-adds are about the same."""

from vitlab.studies.grid.base import Base

LABELS = {"vit": "ViT", "hybrid": "hybrid", "resnet": "ResNet"}
PUBLISHED = {"vit": "ViT-B/16", "hybrid": "R50+ViT-B/16", "resnet": "BiT-R50x2"}


def of_similar_cost(base: Base, resnet: str) -> dict[str, str]:
    """Return the names of the models, by the keys of `LABELS`.

    Within a budget, the ViT is the base's own; the hybrid is one stage of one bottleneck below a
    ViT of one block less and MLPs two thirds as wide.

    Args:
        base: of the study
        resnet: the ResNet within a budget
    """
    if base.paper:
        return PUBLISHED
    shape = base.shape
    above = shape.changed(depth=max(1, shape.depth - 1), mlp=2 * shape.mlp // 3, patch=4)
    return {"vit": base.recipe.model.model, "hybrid": base.hybrid(above), "resnet": resnet}
