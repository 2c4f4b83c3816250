"""What a recipe leaves to the data: how many images it learns from, and how each class counts."""

from dataclasses import replace

from vitlab.data.classes import missing_lines
from vitlab.data.sources.splits import Splits, with_train_images
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
