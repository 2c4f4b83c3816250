"""`vitlab runs`."""

from dataclasses import dataclass
from typing import Any

from vitlab.options import Options, option
from vitlab.terminal import print_rows

SUMMARY = "List the runs and experiments in a folder."


@dataclass(frozen=True, kw_only=True)
class Runs(Options):
    """The folder."""

    folder: str = option("runs", "folder of runs, of an experiment or of one run", positional=True)


def run(options: Runs) -> dict[str, Any]:
    """Read what the runs have left."""
    from vitlab.experiments.listing import list_runs

    return list_runs(options.folder)


def show(result: dict[str, Any]) -> None:
    """Print the experiments, then the runs with the options in which they differ from most."""
    hidden = {"run", "model", "seed", "step", "best", "images", "params", "macs", "std", "error"}
    apart = {row["name"]: "" for row in result["runs"] if row["state"] != "damaged"}
    for flag, values in result["recipe"].items():
        usual = max(values, key=values.count)
        for name, value in zip(apart, values, strict=True):
            apart[name] += f" {flag} {value}" * (value != usual)
    rows = [row | {"options": apart.get(row["name"], "").strip()} for row in result["runs"]]
    for each in (result["experiments"], rows):
        print_rows([{key: row[key] for key in row if key not in hidden} for row in each])
