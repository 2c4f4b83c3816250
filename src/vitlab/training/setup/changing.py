"""What a run that goes on may have otherwise than before: nothing, or some options if asked."""

from typing import Any

from vitlab.data.presence import IN_MEMORY
from vitlab.data.settings import Augment
from vitlab.errors import RunError
from vitlab.options import hints
from vitlab.recipes.choices import Schedule
from vitlab.recipes.model_part import OF_TRAINING
from vitlab.recipes.recipe import Recipe
from vitlab.runs.run_folder import RunFolder

# By the table of run.toml. Not here: what decides on data, model, order of the images, or state.
MAY_CHANGE: dict[str, tuple[str, ...]] = {
    "recipe": ("epochs", "steps"),
    "model": OF_TRAINING,
    "augment": tuple(name for name in hints(Augment) if name != "repeats"),
    "objective": ("label_smoothing", "bce_threshold", "weight_beta", "focal_gamma"),
    "optimizer": ("lr", "weight_decay", "betas", "momentum", "eps", "clip", "rho"),
    "schedule": tuple(hints(Schedule)),
}


def differences(folder: RunFolder, recipe: Recipe) -> list[tuple[str, str, Any, Any]]:
    """Return table, option, value in the run and value now of each option that differs."""
    old, new = folder.recipe.as_tables(), recipe.as_tables()
    return [
        (part, key, old[part].get(key), new[part].get(key))
        for part in old
        for key in {**old[part], **new[part]}
        if old[part].get(key) != new[part].get(key)
        and key not in ("allow_outside", "cache_data", "cache_gb")  # they change nothing
    ]


def check_same(
    folder: RunFolder,
    recipe: Recipe,
    mark: str,
    origin: str = "",
    change: bool = False,
    guide: str = "",
) -> None:
    """Refuse to continue a run with another recipe, on other data, or from other weights.

    Args:
        folder: the run's
        recipe: as it is to go on
        mark: fingerprint of the data
        origin: fingerprint of the weights that the run starts from
        change: whether those options may differ that can
        guide: fingerprint of the tokenizer or the teacher

    Raises:
        RunError: an option has another value than in the run; the data or the weights that the run
            started from have changed.
    """
    for part, key, before, now in differences(folder, recipe):
        _check_change(folder, recipe, part, f"{key}={before}, not {now}", key, change)
    if folder.base != origin:
        raise RunError(
            f"{recipe.start.weights or 'the model to start from'} has changed since {folder.path} "
            "was started: choose another --out"
        )
    if folder.guided_by != guide:
        raise RunError(
            f"the tokenizer or teacher has changed since {folder.path} was started: choose another "
            "--out"
        )
    if folder.fingerprint != mark and recipe.data.data == IN_MEMORY:
        raise RunError(
            f"{folder.path} was started with other images: give the same ones with the same labels "
            "in the same order, or choose another --out"
        )
    if folder.fingerprint != mark:
        raise RunError(
            f"{recipe.data.data} has changed since {folder.path} was started: choose another --out"
        )


def _check_change(
    folder: RunFolder, recipe: Recipe, part: str, what: str, key: str, change: bool
) -> None:
    """Refuse another value of one option, unless it may change."""
    able = key in MAY_CHANGE.get(part, ()) and not (recipe.budget and part == "recipe")
    if able and not change:
        raise RunError(
            f"{folder.path} was started with {what}: leave the option out, or pass --change to "
            "continue with it"
        )
    if not able:
        why = f", and {key} cannot change within a run" if change else ""
        raise RunError(
            f"{folder.path} was started with {what}{why}: leave the option out, or choose another "
            "--out"
        )
    if folder.result():
        raise RunError(
            f"the run in {folder.path} is finished, with {what}: choose another --out to train with"
            " it"
        )


def keep_changes(folder: RunFolder, recipe: Recipe, code: dict[str, str], step: int) -> list[str]:
    """Write down what differs from a step on; return a sentence for the user on each option.

    Args:
        folder: the run's
        recipe: as it goes on
        code: names and digests of the user's own functions, as it goes on
        step: of the checkpoint that it goes on from

    Raises:
        DiskError: `run.toml` cannot be written.
    """
    found = [each[1:] for each in differences(folder, recipe)]
    old = folder.code
    found += [
        (name, old.get(name), code.get(name))
        for name in {**old, **code}
        if old.get(name) != code.get(name)
    ]
    rows = [{"option": name, "before": before, "after": now} for name, before, now in found]
    changes = [{key: value for key, value in row.items() if value is not None} for row in rows]
    folder.change(recipe, code, changes, step)
    return [
        f"{name}={before} until step {step:,}, {name}={now} from there on"
        for name, before, now in found
    ]
