"""The data of a run: opened, split, and refused where its recipe cannot learn from it."""

import re
from collections.abc import Sized
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from vitlab.data.box_targets import boxes_of
from vitlab.data.contents import Contents
from vitlab.data.exists import IN_MEMORY
from vitlab.data.holdout import take_partition, with_validation
from vitlab.data.open_splits import open_to_learn, with_identities
from vitlab.data.opened_data import OpenedData
from vitlab.data.sources.request import Given, MaskReading, TargetKind
from vitlab.data.splits import Splits
from vitlab.errors import OptionError, remedy_of
from vitlab.models.heads.mask_classes import MaskClasses
from vitlab.models.heads.segment import DenseClasses
from vitlab.recipes.named import default_data
from vitlab.recipes.recipe import Recipe, check_packages
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.same_data import is_same_data
from vitlab.training.resume import find_again
from vitlab.weights.segmenter import read_layer

# what Python makes of bytes that are not UTF-8, and neither run.toml nor config.json can hold
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class DataRead:
    """What was read for a run, before anything is worked out.

    Attributes:
        recipe: one that leads to its data
        splits: the images
        contents: what is known of their contents
        started: whether the folder already contains this run; only the first process knows
        layer: what the weights of a segmenter are, and its linear layer
    """

    recipe: Recipe
    splits: Splits
    contents: Contents
    layer: tuple[DenseClasses, dict[str, Tensor]] | None
    started: bool = False


def read_run_data(
    recipe: Recipe,
    folder: RunFolder,
    resume: bool,
    data: Sized | None,
    opened: OpenedData,
    at_once: int,
) -> DataRead:
    """Open the data of a run, and the linear layer of a segmenter that it starts from."""
    check_packages(recipe)
    check_names(recipe, folder)
    if resume and folder.started:
        recipe = folder.paths.reach(recipe)
    layer = None
    if recipe.pretext.task == "segment":
        layer = read_layer(recipe.start.weights or "task=segment without --from")
    like = layer[0] if layer else None
    recipe, splits, contents = find_again(
        folder, recipe, "data", lambda each: open_run_splits(each, data, opened, like, at_once),
        lambda contents: is_same_data(folder, contents), resume and data is None,
    )  # fmt: skip
    return DataRead(recipe, splits, contents, layer)


def learning_from(recipe: Recipe, data: Given | None) -> tuple[Recipe, Sized | None]:
    """Return the recipe with the data it learns from, and the images if they are in memory.

    Raises:
        OptionError: the recipe names other data.
    """
    if data is None:
        return recipe, None
    named = isinstance(data, str | Path)
    name = str(data) if named else IN_MEMORY
    if recipe.data.data not in ("", name, default_data(recipe.recipe)):
        raise OptionError(
            f"data={recipe.data.data} of the recipe and the data given exclude each other: leave "
            "one of them out"
        )
    recipe = replace(recipe, data=replace(recipe.data, data=name))
    return recipe, None if isinstance(data, str | Path) else data


def open_run_splits(
    recipe: Recipe,
    data: Sized | None,
    opened: OpenedData,
    like: MaskClasses | None,
    at_once: int,
) -> tuple[Splits, Contents]:
    """Return the images of the recipe's data, or of what was given, and their contents.

    Args:
        recipe: names the data
        data: images in memory, in its place
        opened: where the data may have been opened before
        like: the classes of a segmenter
        at_once: images of a data set with splits of its own that are read for it now
    """
    options = recipe.data
    target = target_of(recipe)
    if target == "numbers":
        options = replace(options, label_column=recipe.pretext.columns)
    masks = MaskReading(like=like) if target == "mask" else None
    if data is None:
        splits = opened.splits(options, target, masks)
    else:
        splits = with_identities(open_to_learn(data, target, options, masks))
    if target == "boxes":
        check_queries(splits, recipe.pretext.object_queries)
    if recipe.pretext.labeled:
        splits = take_partition(splits, options)
        if decides := recipe.chooses(len(splits.train)):
            splits = with_validation(splits, decides)
    contents = Contents(splits.whole or splits.train, at_once)
    if splits.whole is None and contents.is_at_hand:
        splits = replace(splits, train=contents.source)
    return splits, contents


TARGETS: dict[str, TargetKind] = {
    "classify": "label",
    "detect": "boxes",
    "segment": "mask",
    "regress": "numbers",
}
"""What each task learns of an image; every other one learns without labels."""


def target_of(recipe: Recipe) -> TargetKind:
    """Return what a recipe's task learns of each image."""
    return TARGETS.get(recipe.pretext.task, "optional")


def check_queries(splits: Splits, queries: int) -> None:
    """Refuse images of more objects than can be found in one.

    Raises:
        OptionError: one has more than there are queries.
    """
    most = max(boxes_of(each).shape[1] for each in splits.parts.values())
    if most > queries:
        raise OptionError(
            f"an image has {most} objects, more than can be found: pass --object-queries {most}"
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
            raise OptionError(f"the name {name!r} is not Unicode: {remedy_of(name)}")
