"""`vitlab pretrain`."""

import sys
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vitlab.commands.train import beginning, check_data_of
from vitlab.errors import OptionError
from vitlab.options import Options, option, options_of, when
from vitlab.recipes.choices import Objective
from vitlab.recipes.distilling import Distill
from vitlab.recipes.named import RECIPES, start_from
from vitlab.recipes.pretraining import PRETRAINING
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs import naming
from vitlab.runs.recipe_file import recipe_in
from vitlab.runs.run_folder import RunFolder
from vitlab.runs.using import may_use
from vitlab.terminal import print_figures

SUMMARY = "Train a model on images without labels, to fine-tune it later."
TASKS = "masked-patch, tokenizer, beit, mae or dino"
LABELED = (
    *options_of(Objective), *options_of(Distill), "mixup", "cutmix", "mix_switch", "tune",
    "lora_rank", "lora_alpha", "lora_targets", "dev_share", "fold", "classes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pretrain(Options):
    """A recipe, where to train it, the run's folder, and what the user typed when."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "task", "model", "tokenizer", "mask_ratio", "weights", "out", "resume", "change", "recipe",
        "epochs", "budget", "batch", "lr", "image_size", "seed", "probe", "device", "workers",
    )  # fmt: skip
    ELSEWHERE: ClassVar[dict[str, str]] = dict.fromkeys(
        LABELED, "needs labels: use vitlab train or vitlab finetune"
    )
    NARROWED: ClassVar[dict[str, tuple[Any, str]]] = {
        "data": (
            str,
            "a folder of photographs, at any depth, or a glob pattern of them; or any DATA of "
            "vitlab train, of which the training images are learned from, without their labels",
        ),
        "task": (
            Literal["masked-patch", "tokenizer", "beit", "mae", "dino"],
            "masked-patch: colors or pixels of hidden patches (ViT paper, B.1.2); tokenizer: a "
            "discrete VAE, whose codes BEiT predicts; beit: codes of hidden patches; mae: pixels "
            "of hidden patches, from the visible ones alone; dino: the answers of a momentum "
            "teacher to other crops. It names the recipe, if --recipe does not",
        ),
    }

    out: str | None = option(
        None, "folder of the run (default: runs/DATA-MODEL-TASK, then runs/DATA-MODEL-TASK-2, …)"
    )
    resume: bool = option(False, "continue the run in that folder, or the newest of that name")
    change: bool = option(
        False,
        "with resume, continue with the options given, if they differ from the run's: learning "
        "rate, schedule, clipping, regularization, augmentation",
        only=when("resume"),
    )
    recipe: Recipe = Recipe()
    host: Host = Host()
    command: str = ""
    began: float = field(default_factory=time.monotonic)


def build(given: dict[str, Any]) -> Pretrain:
    """Return options that start from the recipe of the task, or from the run to continue.

    Without a task there is nothing to start from but the defaults, which `--help` shows.

    Args:
        given: options by name
    """
    out = given.get("out")
    if not (given.get("resume") and out and RunFolder(out).started):
        start, rest = _start_from(given)
        options = Pretrain(recipe=start).changed(**rest)
        if not options.resume:
            return options
        out = out or naming.newest(naming.run_name(options.recipe))
    if not out or not RunFolder(out).started:
        return options
    begun = RunFolder(out).recipe
    _check_task(begun, given, str(out))
    return Pretrain(recipe=begun).changed(**given)


def begin(options: Pretrain) -> None:
    """Refuse a missing task, a folder in the way and missing packages; say what begins."""
    _check_named(options)
    check_data_of(options.recipe)
    if options.out:
        may_use(RunFolder(options.out), options.resume)
    if options.recipe.data.data:
        print(beginning(options.recipe, options.resume), file=sys.stderr, flush=True)


def run(options: Pretrain) -> dict[str, Any]:
    """Train; of several processes only the first one has a result to print."""
    from vitlab.training.run import train

    _check_named(options)
    done = train(
        options.recipe,
        options.out,
        resume=options.resume,
        change=options.change,
        host=options.host,
        command=options.command,
        began=options.began,
    )
    return done.metrics if done.rank == 0 else {}


def show(result: dict[str, Any]) -> None:
    """Print the figures of the held-out images."""
    print_figures(result)


def _start_from(given: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """Return the recipe that options start from, and the remaining options."""
    task, named = given.get("task", ""), given.get("recipe", "")
    if not task and not named:
        return Recipe(), given
    start = recipe_in(named) if named and named not in RECIPES else None
    rest = {name: value for name, value in given.items() if name != "recipe"}
    if start is None:
        start, rest = start_from(given, named or _recipe_of(task))
    _check_task(start, given, f"recipe {start.recipe}")
    return start, rest


def _recipe_of(task: str) -> str:
    """Return the name of the recipe of a task, the first of several."""
    made = [make() for make in reversed(PRETRAINING)]
    by_task = {each.pretext.task: each.recipe for each in made if each.pretext.task != "classify"}
    if task not in by_task:
        raise OptionError(f"task must be {TASKS}, not {task!r}")
    return by_task[task]


def _check_task(start: Recipe, given: dict[str, Any], what: str) -> None:
    """Refuse a recipe, or a run, of labels or of another task than the one named."""
    task = start.pretext.task
    if task == "classify":
        raise OptionError(f"{what} learns from labels: use vitlab train, or name another recipe")
    if given.get("task", task) != task:
        raise OptionError(
            f"task={given['task']}, but {what} is for task={task}: leave one of them out"
        )


def _check_named(options: Pretrain) -> None:
    if options.recipe.pretext.task == "classify":
        raise OptionError(f"name what to learn with --task: {TASKS}")
