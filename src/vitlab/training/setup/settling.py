"""What a recipe leaves to the data, and what data, images and earlier runs ask of it."""

import re
from collections.abc import Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitlab import device as devices
from vitlab.data.holdout import with_train_images
from vitlab.data.presence import IN_MEMORY
from vitlab.data.sources.request import Given, Splits
from vitlab.data.summary import missing_lines
from vitlab.errors import DataError, OptionError
from vitlab.models.config import ModelConfig
from vitlab.objectives.balance import decided
from vitlab.precision import remark, resolved
from vitlab.recipes.model_part import ModelPart
from vitlab.recipes.named import RECIPES, default_data
from vitlab.recipes.recipe import Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.versions import processor

# what Python makes of bytes that are not UTF-8, and neither run.toml nor config.json can hold
SURROGATE = re.compile("[\ud800-\udfff]")


def learning_from(recipe: Recipe, data: Given | None) -> tuple[Recipe, Sized | None]:
    """Return the recipe with the data it learns from, and the images if they are in memory.

    Raises:
        OptionError: the recipe names other data.
    """
    if data is None:
        return recipe, None
    name = str(data) if isinstance(data, str | Path) else IN_MEMORY
    if recipe.data.data not in ("", name, default_data(recipe.recipe)):
        raise OptionError(
            f"data={recipe.data.data} of the recipe and the data given exclude each other: leave "
            "one of them out"
        )
    recipe = replace(recipe, data=replace(recipe.data, data=name))
    return recipe, None if isinstance(data, str | Path) else data


def settled(
    recipe: Recipe, splits: Splits, before: Recipe | None, own_loss: bool = False
) -> tuple[Recipe, Splits]:
    """Return the recipe with a number for `train_images` and without `balance=auto`.

    Args:
        recipe: as the user asked for it
        splits: all images
        before: the recipe of the run that goes on, whose decision stands
        own_loss: whether a function of the user's own takes the place of the loss

    Returns:
        The recipe, and splits with the chosen training images and a note on uneven classes.

    Raises:
        OptionError: more training images than there are, or too few; sampling by class where
            images have several.
        DataError: the name of a class cannot be written down.
    """
    recipe = recipe.decided_as(before) if before else recipe
    data, objective = recipe.data, recipe.objective
    labeled = not recipe.pretext.unlabeled
    if labeled and (odd := next(filter(SURROGATE.search, splits.classes), "")):
        raise DataError(f"the class name {odd!r} is not Unicode: rename it")
    if data.train_images and not data.dev_share:  # else `partitioned` has chosen them
        splits = with_train_images(splits, data.train_images)
        data = replace(data, train_images=len(splits.train))
    if labeled:
        objective, notes = decided(objective, splits.train.labels, len(splits.classes), own_loss)
        splits = replace(splits, notes=[*splits.notes, *missing_lines(splits), *notes])
    return replace(recipe, data=data, objective=objective), splits


def fitted(
    recipe: Recipe, images: int, before: Recipe | None, device: str
) -> tuple[Recipe, list[str]]:
    """Return the recipe with a batch that the data has and a precision that is decided, and why.

    A run that goes on keeps its own precision, whatever this machine does faster.

    Args:
        recipe: as the user asked for it
        images: to learn from
        before: the recipe of the run that goes on
        device: where to compute, by its name
    """
    where, kept = devices.choose(device), recipe.precision if before is None else before.precision
    if recipe.precision == "auto":
        recipe = replace(recipe, precision=resolved(kept, where))
    told = [remark(recipe.precision, where)]
    if images < recipe.batch:  # which would have images several times
        told.append(
            f"a batch is the {images:,} training images, not {recipe.batch:,}, which is more than "
            f"there are; the learning rate stays {recipe.optimizer.lr:g}"
        )
    return replace(recipe, batch=min(recipe.batch, images)), [line for line in told if line]


def elsewhere(folder: RunFolder) -> list[str]:
    """Return a remark on a run that goes on with another kind of processor than it began on."""
    began, here = folder.tables.get("versions", {}).get("processor"), processor()
    if began in (None, here):
        return []
    return [f"the run was started on {began} and continues on {here}: the last bits may differ"]


def for_channels(recipe: Recipe, channels: int) -> ModelPart:
    """Return the model; of a recipe's mean and std for RGB, gray images get the mean of the three.

    Args:
        recipe: as the user asked for it, whose own numbers stay
        channels: of the data or the weights, unless the user names others
    """
    part, own = recipe.model, RECIPES.get(recipe.recipe, Recipe)().model
    gray: dict[str, Any] = {}
    for name in ("mean", "std") if (part.channels or channels) == 1 else ():
        values = part.chosen().get(name)
        if values and values == getattr(own, name, None):
            gray[name] = (sum(values) / len(values),)
    return replace(part, **gray)


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


def check_names(recipe: Recipe, folder: RunFolder) -> None:
    """Refuse names that run.toml cannot hold: in a file system, any bytes are a name.

    Raises:
        OptionError: the first of them.
    """
    values = [value for part in recipe.as_tables().values() for value in part.values()]
    within = [each for value in values if isinstance(value, list) for each in value]
    for name in (str(folder.path), *values, *within):
        if isinstance(name, str) and SURROGATE.search(name):
            raise OptionError(f"the name {name!r} is not Unicode: rename it")
