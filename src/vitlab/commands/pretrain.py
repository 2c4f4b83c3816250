"""`vitlab pretrain`."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vitlab.command_table import Command
from vitlab.commands import train
from vitlab.commands.train import Train, show
from vitlab.errors import OptionError
from vitlab.experiments.several import SeveralRuns
from vitlab.options import options_of
from vitlab.recipes.losses import Distill, ObjectivePart
from vitlab.recipes.pretraining import PRETRAINING
from vitlab.recipes.recipe import Recipe
from vitlab.runs.run_folder import RunFolder

TASKS = "masked-patch, tokenizer, beit, mae, dino or lejepa"
LABELED = (
    *options_of(ObjectivePart), *options_of(Distill), "mixup", "cutmix", "mix_switch", "tune",
    "lora_rank", "lora_alpha", "lora_targets", "dev_share", "fold", "classes", "object_queries",
    "query_blocks", "mask_queries", "targets",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Pretrain(Train):
    """The options of `vitlab train` that need no labels, and those of the task; a single run."""

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
            Literal["masked-patch", "tokenizer", "beit", "mae", "dino", "lejepa"],
            "masked-patch: colors or pixels of hidden patches (ViT paper, B.1.2); tokenizer: a "
            "discrete VAE, whose codes BEiT predicts; beit: codes of hidden patches; mae: pixels "
            "of hidden patches, from the visible ones alone; dino: the outputs of a momentum "
            "teacher to other crops; lejepa: one embedding for all crops of an image, and a "
            "Gaussian for all images. It names the recipe, if --recipe does not",
        ),
    }

    HIDDEN: ClassVar[frozenset[str]] = frozenset(options_of(SeveralRuns))

    @staticmethod
    def check_task(recipe: Recipe, given: dict[str, Any], what: str) -> None:
        """Refuse a recipe, or a run, of labels or of another task than the one named."""
        task = recipe.pretext.task
        if task in ("classify", *train.ANNOTATED):
            raise OptionError(
                f"{what} learns from labels: use vitlab train, or name another recipe"
            )
        if given.get("task", task) != task:
            raise OptionError(
                f"task={given['task']}, but {what} is for task={task}: leave one of them out"
            )


def build(given: dict[str, Any]) -> Pretrain:
    """Return options that start from the recipe of the task, or from the run to continue.

    Without a task there is nothing to start from but the defaults, which `--help` shows.

    Args:
        given: options by name
    """
    task, out = given.get("task", ""), given.get("out")
    if task or given.get("recipe") or (given.get("resume") and out and RunFolder(out).started):
        return Pretrain.built(given, _recipe_of(task) if task else "")
    return Pretrain().changed(**given)


def begin(options: Pretrain) -> None:
    """Refuse a missing task, a folder in the way and missing packages; say what begins."""
    _check_named(options)
    train.begin(options)


def run(options: Pretrain) -> dict[str, Any]:
    """Train; of several processes only the first one has a result to print."""
    _check_named(options)
    return train.run(options)


def _recipe_of(task: str) -> str:
    """Return the name of the recipe of a task, the first of several."""
    made = [make() for make in reversed(PRETRAINING)]
    by_task = {each.pretext.task: each.recipe for each in made if not each.pretext.labeled}
    if task not in by_task:
        raise OptionError(f"task must be {TASKS}, not {task!r}")
    return by_task[task]


def _check_named(options: Pretrain) -> None:
    if options.recipe.pretext.task == "classify":
        raise OptionError(f"name what to learn with --task: {TASKS}")


COMMAND = Command(run, show=show, build=build, begin=begin)
