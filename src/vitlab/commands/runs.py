"""`vitlab runs`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.options import Options, argument
from vitlab.terminal import print_rows

SHOWN = (
    "name", "kind", "state", "runs", "done", "epoch", "accuracy", "map", "ap50", "miou", "r2",
    "loss", "seconds", "options",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Runs(Options):
    """The folder."""

    folder: str = argument("folder of runs, of an experiment or of one run", default="runs")


def run(options: Runs) -> dict[str, Any]:
    """Read what the runs have left."""
    from vitlab.experiments.listing import list_runs

    return list_runs(options.folder)


def show(result: dict[str, Any]) -> None:
    """Print the experiments, then the runs."""
    for rows in (result["experiments"], result["runs"]):
        print_rows([{key: row[key] for key in SHOWN if key in row} for row in rows])


COMMAND = Command(run, show=show)
