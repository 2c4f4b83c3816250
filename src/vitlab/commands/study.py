"""`vitlab study`."""

from dataclasses import dataclass
from typing import Any, ClassVar

from vitlab.command_table import Command
from vitlab.commands import print_costs
from vitlab.experiments.several import ON
from vitlab.options import above, argument, at_least, option
from vitlab.places import On, check_run_folder
from vitlab.recipes.recipe import Recipe, RunOptions
from vitlab.runs.recipe_file import start_from
from vitlab.studies.base import small
from vitlab.studies.papers import ABOUT, STUDIES, budget_seconds, check_free
from vitlab.terminal import print_wide
from vitlab.units import duration


@dataclass(frozen=True, kw_only=True)
class StudyOptions(RunOptions):
    """A study, the recipe that it starts from, and where to train."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "name", "allowed", "seeds", "see", "dry_run", "out", "only", "length", "at_once",
        "on", "downstream", "lr_grid", "device",
    )  # fmt: skip
    HIDDEN: ClassVar[frozenset[str]] = frozenset({"budget", "epochs"})
    ELSEWHERE: ClassVar[dict[str, str]] = {"steps": "differs from row to row: use --epochs"}

    name: str = argument(ABOUT, choices=lambda: STUDIES)
    allowed: str = option(
        "",
        "time for all runs, such as 10m or 2h: their length is fitted into it (default: 10m)",
        flag="budget",
    )
    length: float = option(
        0.0,
        "length of the runs in epochs, in place of a budget (0: fitted); rows may have a multiple",
        at_least(0),
        flag="epochs",
    )
    seeds: int = option(3, "runs of each row", at_least(1))
    see: float = option(
        0.0,
        "the difference of accuracies, in points, that the runs are to see with a chance of 80%: "
        "chooses the seeds, by the deviations of an earlier result in the folder (0: --seeds)",
        at_least(0),
    )
    dry_run: bool = option(False, "estimate the cost by timing a few steps of one row")
    only: tuple[str, ...] = option((), "train only these rows (default: all)")
    at_once: int = option(
        0,
        "parallel runs, one process each (0: one per core for small models on a CPU, else one)",
        at_least(0),
    )
    on: On = option("", ON)
    downstream: str = option(
        "", "data that pre-trained models are transferred to (default: the same data)"
    )
    lr_grid: tuple[float, ...] = option(
        (),
        "factors of each row's learning rate to try, on training images that are held out "
        "(default: the study's own, if it has any)",
        above(0),
    )
    out: str | None = option(
        None, "folder of the study (default: runs/study-NAME-DATA)", check=check_run_folder
    )
    recipe: Recipe = Recipe()

    def __post_init__(self) -> None:
        """Check every option, and that the length is given once."""
        super().__post_init__()
        budget_seconds(self.allowed, self.length)


def build(given: dict[str, Any]) -> StudyOptions:
    """Return options that start from a small model unless a recipe is named.

    Raises:
        OptionError: an unknown study, or an option that it chooses itself.
    """
    name, given = given["name"], {"data": "digits"} | given
    check_free(StudyOptions(name=name).name, given)
    if "recipe" in given:
        start, rest = start_from(given)
    else:
        start, rest = small(given["data"], given.pop("model", "")), given
    return StudyOptions(name=name, recipe=start).changed(**rest)


def run(options: StudyOptions) -> dict[str, Any]:
    """Run the study, or say what it would cost."""
    from vitlab.studies.study import study

    same = "out seeds see only lr_grid downstream at_once on dry_run recipe host command"
    how = options.values(same) | {"budget": options.allowed, "epochs": options.length}
    return study(options.name, **how)


def show(result: dict[str, Any]) -> None:
    """Print the table."""
    if not result:
        return
    if print_costs(result):
        if sees := result["sees"]:
            seen = f"a difference of {100 * sees:.2g} points of accuracy with a chance of 80%"
            print(f"{result['seeds']} seeds see {seen}")
        return
    print_wide(result["head"], result["table"])
    for each in result["findings"]:
        print(each)
    for claim in result["claims"]:
        print(f"{claim['verdict']}: {claim['claim']} ({claim['source']})")
    print(f"{duration(result['seconds'])} in all; report: {result['report']}")


COMMAND = Command(run, show=show, build=build)
