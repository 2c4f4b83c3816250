"""What a recipe leaves to the data, and what it asks of images that have no common size."""

from dataclasses import replace

from vitlab.data.classes import missing_lines
from vitlab.data.sources.splits import Splits, with_train_images
from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig
from vitlab.objectives.balance import decided
from vitlab.recipes.recipe import Recipe


def settled(recipe: Recipe, splits: Splits, before: Recipe | None) -> tuple[Recipe, Splits]:
    """Return the recipe with a number for `train_images` and without `balance=auto`.

    Args:
        recipe: as the user asked for it
        splits: all images
        before: the recipe of the run that goes on, whose decision stands

    Returns:
        The recipe, and splits with the chosen training images and a note on uneven classes.

    Raises:
        OptionError: more training images than there are, or too few; sampling by class where
            images have several.
    """
    data, objective = recipe.data, recipe.objective
    if data.train_images and not data.dev_share:  # else `partitioned` has chosen them
        splits = with_train_images(splits, data.train_images)
        data = replace(data, train_images=len(splits.train))
    if before is not None and objective.balance == "auto":
        objective = replace(objective, balance=before.objective.balance)
    objective, notes = decided(objective, splits.train.labels, len(splits.classes))
    splits = replace(splits, notes=[*splits.notes, *missing_lines(splits), *notes])
    return replace(recipe, data=data, objective=objective), splits


def check_native(recipe: Recipe, config: ModelConfig) -> None:
    """Refuse what mixes images that keep their aspect ratio, which have no common rectangle.

    Raises:
        OptionError: the first of them.
    """
    if config.fit != "native":
        return
    for name in ("mixup", "cutmix"):
        if getattr(recipe.augment, name):
            raise OptionError(
                f"{name} needs images of one size, which fit=native does not give: set {name}=0, "
                "or fit=crop"
            )
