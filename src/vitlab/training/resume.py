"""Resuming a run: which folder it has, and what it may have otherwise than before."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from vitlab.data.exists import IN_MEMORY
from vitlab.data.loading.order import LISTED, ORDERS
from vitlab.data.settings import Augment
from vitlab.distributed.world import World
from vitlab.errors import DataError, HubError, RunError, WeightsError
from vitlab.files import explained
from vitlab.options import hints
from vitlab.progress import say
from vitlab.recipes.model_part import OF_TRAINING
from vitlab.recipes.recipe import Recipe
from vitlab.recipes.schedule import Schedule
from vitlab.recorded_paths import is_there, read_agreeing
from vitlab.runs import naming
from vitlab.runs.local_paths import PARTS, PATHS
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
Content = TypeVar("Content")
Mark = TypeVar("Mark")
WITHOUT_EFFECT = ("allow_outside", "cache_data", "cache_gb")


def placed(out: str | Path | None, name: Path, *, resume: bool, world: World) -> Path:
    """Return the folder to use: the given one, the newest of a name, or a new one of that name.

    The first process decides for all of them.

    Args:
        out: the folder that the user gave
        name: the first folder of the name; further ones get a number
        resume: continue the newest one, if there is one
        world: this process among those of the run

    Raises:
        DiskError: nothing can be there.
    """
    if out:
        with explained(Path(out)):
            for part in Path(out).parts:
                with suppress(FileNotFoundError):
                    Path(part).lstat()  # a name may be too long
        return Path(out)
    chosen = ""
    with world.agreed():
        if world.first:
            newest = naming.newest(name)
            # after a restart the newest one is this run's own, unless that had not begun yet
            own = newest is not None and world.restarted and RunFolder(newest).result() is None
            if newest is not None and (resume or own):
                world.say(f"continuing {newest}")
                chosen = str(newest)
            else:
                chosen = str(naming.next_free(name))
    return Path(world.broadcast(chosen))


def find_again(
    folder: RunFolder,
    recipe: Recipe,
    part: str,
    read: Callable[[Recipe], tuple[Content, Mark]],
    agrees: Callable[[Mark], bool],
    resume: bool = True,
) -> tuple[Recipe, Content, Mark]:
    """Return a recipe that leads to what a run learns or starts from, that, and what marks it.

    Of the places that the recorded paths lead to, it is the first whose mark agrees with the run's.

    Args:
        folder: of the run
        recipe: as it is typed now
        part: of the recipe, whose paths are tried: `data` or `start`
        read: opens them, and returns what marks it, too
        agrees: whether that is as in the run
        resume: whether there may be a run, and its places are asked for

    Raises:
        UserError: nothing can be read: what `read` raises of the first place.
    """
    if not resume or not folder.started:
        return recipe, *read(recipe)
    name = PARTS[part][0]
    option = "DATA (data=)" if part == "data" else "--from (weights=)"
    then = getattr(getattr(recipe, part), name)
    try:
        (here, content, mark), _ = read_agreeing(
            folder.paths.ways(recipe, part),
            lambda each: (each, *read(each)),
            lambda found: agrees(found[2]),
        )
    except (DataError, WeightsError, HubError) as error:
        if is_there(then) or not folder.paths.is_place(name, then):
            raise
        raise type(error)(
            f"{error}; {folder.path} was started with it: name its place with {option}"
        ) from error
    now = getattr(getattr(here, part), name)
    if now != then and is_there(then):
        say(f"{then} is not what {folder.path} was started with, but {now} is: it is used")
    return here, content, mark


def order_in(folder: RunFolder) -> str:
    """Return the order of the images of an epoch that a run has; of a file without one, the oldest.

    Raises:
        RunError: this version does not know it.
    """
    order = folder.order or LISTED
    if order not in ORDERS:
        raise RunError(
            f"{folder.path} was started with the order {order} of images, which this version of "
            "ViTLab does not know: pip install -U vitlab"
        )
    return order


def differences(folder: RunFolder, recipe: Recipe) -> list[tuple[str, str, Any, Any]]:
    """Return table, option, value in the run and value now of each option that differs."""
    old = folder.recipe.as_tables()
    new = recipe.as_tables()
    return [
        (part, key, old[part].get(key), new[part].get(key))
        for part in old
        for key in {**old[part], **new[part]}
        if old[part].get(key) != new[part].get(key) and key not in WITHOUT_EFFECT
    ]


def check_same(
    folder: RunFolder,
    recipe: Recipe,
    same_data: bool,
    origin: str = "",
    change: bool = False,
    guide: str = "",
) -> None:
    """Refuse to continue a run with another recipe, on other data, or from other weights.

    Args:
        folder: the run's
        recipe: as it is to go on
        same_data: whether the data is that of the run
        origin: fingerprint of the weights that the run starts from
        change: whether those options may differ that can
        guide: fingerprint of the tokenizer or the teacher

    Raises:
        RunError: an option has another value than in the run; the data or the weights that the run
            started from have changed; it has an order of images that is not known.
    """
    place = folder.path
    other = "choose another --out"
    order_in(folder)
    known = {"data": same_data, "start": folder.base == origin}
    known |= dict.fromkeys(("pretext", "distill"), folder.guided_by == guide)
    for part, key, before, now in differences(folder, recipe):
        if key in PATHS and known[part]:  # it is there, wherever that is
            continue
        what = f"{place} was started with {key}={before}, not {now}"
        able = key in MAY_CHANGE.get(part, ()) and not (recipe.budget and part == "recipe")
        if not able:
            why = f", and {key} cannot change within a run" if change else ""
            raise RunError(f"{what}{why}: leave the option out, or {other}")
        if not change:
            raise RunError(f"{what}: leave the option out, or pass --change to continue with it")
        if folder.result():
            raise RunError(
                f"the run in {place} is finished, with {key}={before}, not {now}: {other} to train "
                "with it"
            )
    if folder.base != origin:
        what = recipe.start.weights or "the model to start from"
        raise RunError(f"{what} has changed since {place} was started: {other}")
    if folder.guided_by != guide:
        raise RunError(f"the tokenizer or teacher has changed since {place} was started: {other}")
    if not same_data:
        if recipe.data.data == IN_MEMORY:
            raise RunError(
                f"{place} was started with other images: give the same ones with the same labels "
                f"in the same order, or {other}"
            )
        raise RunError(f"{recipe.data.data} has changed since {place} was started: {other}")


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
    old = folder.code
    pairs = [(name, old.get(name), code.get(name)) for name in {**old, **code}]
    found = [each[1:] for each in differences(folder, recipe) if each[1] not in PATHS]
    found += [each for each in pairs if each[1] != each[2]]
    rows = [{"option": name, "before": before, "after": now} for name, before, now in found]
    changes = [{key: value for key, value in row.items() if value is not None} for row in rows]
    folder.change(recipe, code, changes, step)
    return [
        f"{name}={before} until step {step:,}, {name}={now} from there on"
        for name, before, now in found
    ]
