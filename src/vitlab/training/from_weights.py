"""The weights that a run starts from or learns from, and the model that it makes of them."""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from vitlab.data.target import Target
from vitlab.errors import HubError, OptionError, WeightsError
from vitlab.images import ImageSpec
from vitlab.models.config import ModelConfig, ViTConfig, config_of
from vitlab.models.create import assemble, resize_tensors, with_new_head
from vitlab.models.model import Model
from vitlab.objectives.distillation import check_teacher, remarks_of
from vitlab.objectives.pretext_tasks import pretext_task
from vitlab.options import check_known
from vitlab.recipes.model_part import OF_PIXELS, OF_RECIPE, OF_TRAINING, ModelPart
from vitlab.recipes.named import FROM_WEIGHTS, default_weights
from vitlab.recipes.recipe import Host, Recipe
from vitlab.recipes.start import Start, Tune
from vitlab.runs.run_folder import RunFolder
from vitlab.weights.assembly import empty, whole_state
from vitlab.weights.load import load
from vitlab.weights.stated import FIELDS

# What the recipe, the data or the new classifier decides; the weights are read without it.
FROM_RUN = (*OF_RECIPE, *OF_PIXELS, "positions_size", "classes", "labels", "pre_logits")
RANDOM = 0.02  # standard deviation of a classifier that starts at random, as in BEiT
OF_NEW_MODEL = ("pool", "positions")  # chosen for training, whatever the weights had


def starting_model(recipe: Recipe, given: Model | None) -> Model | None:
    """Return the model that a run starts from, as it was saved; None for random weights.

    Args:
        recipe: names the weights
        given: a model in hand, in place of weights

    Raises:
        OptionError: weights and a model; neither, where the recipe needs one of them.
        WeightsError: the weights cannot be loaded.
        HubError: the Hub does not have them, or cannot be reached.
    """
    weights, usual = recipe.start.weights, default_weights(recipe.recipe)
    if given is not None:
        if weights and weights not in (given.source, usual):
            raise OptionError(
                f"weights={weights} and a model to start from exclude each other: pass one of them"
            )
        return given
    if weights:
        try:
            return _loaded(recipe)
        except HubError as error:
            if weights != usual:
                raise
            raise type(error)(
                f"{error.__cause__ or error}; pass --from WEIGHTS to start from a model on this "
                "machine"
            ) from error
    if recipe.recipe in FROM_WEIGHTS or not recipe.model.model:
        raise OptionError(
            f"{recipe.recipe} starts from trained weights: name them with --from (weights=)"
        )
    for option, plain in (("tune", "all"), ("head_start", "zero")):
        if (chosen := getattr(recipe.start, option)) != plain:
            raise OptionError(
                f"{option}={chosen} needs trained weights: name them with --from (weights=)"
            )
    return None


def _loaded(recipe: Recipe) -> Model:
    """Load weights with the fields that a file may not say; if that is too little, with all chosen.

    A field such as `pool` is the new model's rather than that of the weights, and only helps if
    they cannot be read without it.
    """
    start, part = recipe.start, recipe.model
    chosen = {key: value for key, value in part.chosen().items() if key not in FROM_RUN}
    silent = {key: chosen[key] for key in FIELDS if key in chosen and key not in OF_NEW_MODEL}
    named: dict[str, Any] = {"part": start.weights_part, "drop": start.weights_drop}
    attempts = [{"name": start.weights_name} | silent]
    if chosen or part.model:
        attempts.append({"name": start.weights_name or part.model} | chosen)
    if chosen:  # what does not fit the weights is refused later, with what would
        attempts.append({"name": start.weights_name})
    problems = []
    for each in attempts:
        try:
            return load(start.weights, **named, **each)
        except HubError:  # whatever is said of them, they are not there
            raise
        except (WeightsError, OptionError) as error:
            problems.append(error)
    raise problems[min(1, len(problems) - 1)]


def config_from(
    base: ModelConfig, part: ModelPart, labels: tuple[str, ...], tune: Tune
) -> tuple[ModelConfig, list[str]]:
    """Return the configuration of a model that starts from another, and remarks for the user.

    Everything comes from the weights, but for the classes and the fields that were chosen.
    Positions that are trained are resampled once from those of the weights to the size of the run
    (ViT paper, section 3.2); others stay as they are stored.

    Args:
        base: of the weights
        part: the model of the recipe, with the chosen fields
        labels: the classes of the data
        tune: which parameters are trained

    Raises:
        OptionError: another model than that of the weights, or fields that do not go with it.
    """
    if part.model and config_of(part.model).name != base.name:
        raise OptionError(
            f'the weights are of {base.name}, not {part.model}: leave --model out (model="")'
        )
    known, chosen = {each.name for each in fields(base)}, part.chosen()
    chosen.pop("classes", None)
    skipped = [key for key in OF_TRAINING if key in chosen and key not in known]
    for key in skipped:
        del chosen[key]
    remarks = [f"{base.name} has no {' or '.join(skipped)}: left out"] if skipped else []
    check_known(chosen, known, f"{base.name} option")
    if isinstance(base, ViTConfig) and chosen.get("pool", base.pool) != base.pool:
        # the tokens are those of the weights, whatever the new pool needs
        chosen.setdefault("class_token", base.has_token)
    if chosen.get("fit", "native") != "native":
        chosen.setdefault("tokens", ImageSpec.tokens)  # those of the weights do not apply
    base = base.sized(chosen.pop("image_size", base.image_size))
    if tune in ("all", "attention", "ffn"):
        base = base.settled
    if not same_classes(base, labels):
        base = replace(base.with_classes(len(labels)), labels=labels)
        if units := chosen.pop("pre_logits", None):
            remarks.append(f"a new classifier has no layer before it: pre_logits={units} left out")
    return replace(base, **chosen), remarks


def same_classes(base: ModelConfig, labels: tuple[str, ...]) -> bool:
    """Return whether weights have a classifier of these classes, none if there are none."""
    return (base.labels, base.classes) == (labels, len(labels))


def made_from(
    base: Model, config: ModelConfig, start: Start, generator: torch.Generator | None = None
) -> Model:
    """Return a model of a configuration with the weights of another, which stays as it is.

    Unless the classes are the same, the classifier is new: zero (ViT paper, section 3.2), or with
    `head_start=random` drawn from the generator. Positions are resized as the family does.

    Raises:
        OptionError: a field of the configuration does not fit the weights, or the model is limited
            to one image size.
    """
    theirs: dict[str, Any] = vars(base.config)
    tensors = {name: weight.to("cpu", copy=True) for name, weight in whole_state(base).items()}
    if not same_classes(base.config, config.labels):
        tensors = with_new_head(tensors, config)
        if start.head_start == "random" and config.classes:
            classify = f"{type(base).head_names[0]}weight"
            nn.init.trunc_normal_(tensors[classify], std=RANDOM, generator=generator)
    tensors = resize_tensors(tensors, base.config, config)
    if {n: t.shape for n, t in tensors.items()} != {n: t.shape for n, t in empty(config).items()}:
        mine: dict[str, Any] = vars(config)
        names = [name for name, value in theirs.items() if value != mine[name]]
        given = [f"{name}={mine[name]}" for name in names if name not in FROM_RUN]
        raise OptionError(
            f"{' and '.join(given)} does not fit the weights {start.weights or base.config.name}: "
            "leave the option out"
        )
    return assemble(config, tensors)


def guiding(recipe: Recipe) -> str:
    """Return the weights of the tokenizer or the teacher that a recipe names; empty for none."""
    return recipe.pretext.tokenizer or recipe.distill.teacher


def guide_of(recipe: Recipe, folder: RunFolder, resume: bool) -> Model | None:
    """Return the frozen model whose answers are learned, a tokenizer or a teacher, if there is one.

    A run that goes on has a copy in its folder.

    Raises:
        WeightsError: it cannot be loaded.
        HubError: the Hub does not have it, or cannot be reached.
    """
    if not (weights := guiding(recipe)):
        return None
    return load(folder.guide if resume and folder.guide.is_dir() else weights)


def check_guide(
    recipe: Recipe, host: Host, config: ModelConfig, guide: Model | None, labels: Target
) -> list[str]:
    """Refuse a task or a teacher that has no meaning for a model or a host; return its remarks.

    Args:
        recipe: names the task or the teacher
        host: where and how
        config: of the model
        guide: tokenizer or teacher, if there is one
        labels: of the training images

    Raises:
        OptionError: the message says what would work.
    """
    name, taught = recipe.pretext.task, recipe.distill
    if host.shard and (recipe.pretext.unlabeled or taught.teacher):
        what = "a teacher" if taught.teacher else f"task={name}"
        raise OptionError(f"--shard does not support {what}: leave it out")
    if recipe.pretext.unlabeled:
        pretext_task(name).check(recipe.pretext, config, guide)
        return pretext_task(name).remarks(recipe.pretext, config)
    if guide is None:
        return []
    check_teacher(taught, config, guide, labels.several)
    return remarks_of(config, guide)
