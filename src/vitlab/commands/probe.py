"""`vitlab probe`."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vitlab.command_table import Command
from vitlab.commands import shown
from vitlab.errors import OptionError
from vitlab.evaluation.probes.feature_options import CACHE
from vitlab.options import option, options_of
from vitlab.places import check_run_folder
from vitlab.progress import say
from vitlab.recipes.head_search import INSTEAD, OF_STEPS, HeadSearch, MaskOptions, probe_recipe
from vitlab.recipes.pretext import named_task
from vitlab.recipes.recipe import Host, Recipe, RunOptions
from vitlab.runs.run_folder import RunFolder
from vitlab.terminal import main_figures, print_figures

USED = ("device", "workers", "check_duplicates", "report", "max_bad", "timeout")  # of a host


@dataclass(frozen=True, kw_only=True)
class ProbeRun(RunOptions):
    """Data, weights, what is searched, and the run's folder."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "weights", "out", "task", "by", "layers", "folds", "image_size", "pool", "resume", "cache",
        "device", "workers", "precision",
    )  # fmt: skip
    ELSEWHERE: ClassVar[dict[str, str]] = dict.fromkeys(
        sorted(OF_STEPS | (options_of(Host).keys() - set(USED))), INSTEAD
    )
    HIDDEN: ClassVar[frozenset[str]] = frozenset({"model"})
    NARROWED: ClassVar[dict[str, tuple[Any, str]]] = {
        "task": (
            Literal["classify", "segment", "regress"],
            "what the head predicts: the class of an image, that of each pixel (docs/segment.md), "
            "learned from masks, or numbers, the --targets (docs/regress.md)",
        )
    }

    out: str | None = option(
        None,
        "folder of the run (default: runs/DATA-WEIGHTS-probe; then with -2, -3, …)",
        check=check_run_folder,
    )
    resume: bool = option(False, "finish the run in that folder, if it was interrupted")
    cache: str = option("auto", CACHE)
    search: HeadSearch = HeadSearch()
    masks: MaskOptions = MaskOptions()
    recipe: Recipe = Recipe()


def build(given: dict[str, Any]) -> ProbeRun:
    """Return options that start from the recipe of a probe."""
    given = named_task(given)
    return ProbeRun(recipe=probe_recipe(task=given.get("task", "classify"))).changed(**given)


def begin(options: ProbeRun) -> None:
    """Refuse a folder in the way, and a run in the place of data; say what begins."""
    data = options.recipe.data.data
    if data not in ("", "digits") and RunFolder(data).started:
        raise OptionError(f"{data} is a run, not data: to take its features, pass --from {data}")
    if options.out:
        RunFolder(options.out).may_be_used(options.resume)
    say(f"{options.recipe.start.weights} on {data}")


def run(options: ProbeRun) -> dict[str, Any]:
    """Fit, test and report."""
    from vitlab.transfer.head_runs import ProbeRequest
    from vitlab.transfer.linear_probe import probe_by

    asked = options.values("recipe out resume host cache command")
    request = ProbeRequest(
        searched=options.search, masks=options.masks, images=None, start=None, **asked
    )
    return probe_by(request).metrics


def show(result: dict[str, Any]) -> None:
    """Print the test figures; what was tried is in the report."""
    if not shown(result):
        print_figures(main_figures(result))


COMMAND = Command(run, show=show, build=build, begin=begin)
