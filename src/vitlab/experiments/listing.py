"""The runs and experiments in a folder: how far each is, its figures, what tells them apart."""

import os
from pathlib import Path
from typing import Any

from vitlab.errors import RunError, UserError
from vitlab.evaluation.metrics import MAIN, METRICS
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.files import CAMPAIGN_FILE
from vitlab.report.comparing.compared_run import ComparedRun, differing, entry_of
from vitlab.runs.run_folder import RunFolder

COSTS = ("images", "params", "macs", "seconds")
Listed = dict[str, Any]


def list_runs(folder: str | Path) -> Listed:
    """List the runs and the experiments in a folder, at any depth; nothing is changed.

    Args:
        folder: of runs, of an experiment, or of one run

    Returns:
        `runs`: of each its `run` (folder), `name` (its path in the folder), `state` (`done`,
        `running`, `stopped`, `diverged`, or `damaged` with the `error`), `model`, `seed`, `step`,
        `epoch`, the accuracy of its test or else the latest one (mAP for several labels, loss
        without labels), `best`, the best of these so far, what it cost, and `options`,
        those in which it differs from most others;
        `experiments`: of each its `run`, `name`, `kind`, `state`, `runs` and `done`, numbers of
        runs, and the figures of its result; `recipe`: the options that differ, each with its
        values in the order of the runs, those that are damaged left out.

    Raises:
        RunError: there is no run in it, or the file of an experiment is damaged.
    """
    place = Path(folder).expanduser()
    entries, runs = list[ComparedRun](), list[Listed]()
    for path in _holding(place, "run.toml"):
        about: Listed = {"run": str(path), "name": str(path.relative_to(place))}
        try:
            entry = entry_of(RunFolder(path), about["name"])
            runs.append(about | {"state": entry.folder.state} | _progress(entry))
            entries.append(entry)
        except UserError as error:
            runs.append(about | {"state": "damaged", "error": str(error)})
    if not runs:
        raise RunError(f"{place} is not a folder of runs: name one, such as runs")
    found = [_experiment(path, place, runs) for path in _holding(place, CAMPAIGN_FILE)]
    good, recipe = [run for run in runs if "options" in run], {}
    for option, values in differing(entries).items():
        usual = max(values, key=values.count)
        recipe[option] = list(values)
        for run, value in zip(good, values, strict=True):
            run["options"] += f"{option} {value} " * (value != usual)
    return {"folder": str(place), "runs": runs, "experiments": found, "recipe": recipe}


def _holding(place: Path, name: str) -> list[Path]:
    return sorted(Path(folder) for folder, _, files in os.walk(place) if name in files)


def _progress(entry: ComparedRun) -> Listed:
    """Return how far a run is, and how good."""
    facts = entry.facts
    found: Listed = {"model": facts.model, "seed": entry.seed, "options": ""}
    for point in sorted(facts.training + facts.testing, key=lambda point: point.step):
        found |= {"step": point.step, "epoch": point.epoch}
    for metric in (METRICS[name] for name in MAIN.values()):
        key = metric.name
        measured = [point.values[key] for point in facts.testing if key in point.values]
        values = [value for value in measured if value == value]
        if (last := facts.figures.get(key, values[-1] if values else None)) is not None:
            best = max(values or [last], key=metric.score)  # a fitted head has no curve
            found |= {"best": best, key: last}
            break
    return found | {key: facts.figures[key] for key in COSTS if key in facts.figures}


def _experiment(path: Path, place: Path, runs: list[Listed]) -> Listed:
    """Return how far an experiment is, from its file and the states of its runs."""
    record = CampaignFolder(path).record
    states = [run["state"] for run in runs if path in Path(run["run"]).parents]
    result = record.get("result") or {}
    return {
        "run": str(path),
        "name": str(path.relative_to(place)),
        "kind": record["campaign"],
        "state": "done" if result else "running" if "running" in states else "stopped",
        "runs": len(states),
        "done": states.count("done"),
        **{key: result[key] for key in (*MAIN.values(), "std", "chosen") if key in result},
    }
