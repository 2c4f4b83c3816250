"""`vitlab vtab`."""

from dataclasses import MISSING, dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import WEIGHTS, print_costs
from vitlab.experiments.several import Jobs, VtabSetting
from vitlab.options import argument, option
from vitlab.places import check_run_folder
from vitlab.recipes.recipe import RunOptions
from vitlab.terminal import print_table
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import OfNetwork


@dataclass(frozen=True, kw_only=True)
class Vtab(RunOptions):
    """The weights, the tasks, how each is learned, and where."""

    weights: str = argument(WEIGHTS, check_weights)
    data: str = option(MISSING, "folder with a sub-folder per task, such as cifar100")
    out: str | None = option(
        None, "folder of the runs (default: a new one, runs/vtab-WEIGHTS)", check=check_run_folder
    )
    resume: bool = option(False, "continue the runs in that folder; none is repeated")
    tasks: tuple[str, ...] = option((), "tasks to learn (default: all that there is data for)")
    setting: VtabSetting = VtabSetting()
    jobs: Jobs = Jobs()
    file: OfNetwork = OfNetwork()


def run(options: Vtab) -> dict[str, Any]:
    """Learn every task; what is finished is not repeated."""
    from vitlab.studies.vtab import vtab

    how = options.values("tasks setting resume host command") | options.jobs.values(
        "jobs cells on dry_run"
    )
    known = options.file.arguments()
    return vtab(options.weights, options.data, options.out, known=known, **how)


def show(result: dict[str, Any]) -> None:
    """Print the table, and what its means leave out."""
    from vitlab.studies.vtab import HEAD, remark, table

    if print_costs(result):
        return
    print_table(HEAD, table(result))
    if text := remark(result):
        print(text)


COMMAND = Command(run, show=show)
