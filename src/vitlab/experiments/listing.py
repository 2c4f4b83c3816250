"""The runs and experiments in a folder: how far each is, its figures, what tells them apart."""

from pathlib import Path
from typing import Any

from vitlab.errors import RunError, UserError
from vitlab.experiments.campaign_folder import CampaignFolder
from vitlab.files import CAMPAIGN_FILE
from vitlab.report.comparing.entry import Entry, entry_of
from vitlab.report.comparing.recipes_apart import differing
from vitlab.runs.run_folder import RunFolder

OF_RESULT = ("accuracy", "map", "loss", "images", "params", "macs", "seconds")


def list_runs(folder: str | Path) -> dict[str, Any]:
    """List the runs and the experiments in a folder, at any depth; nothing is changed.

    Args:
        folder: of runs, of an experiment, or of one run

    Returns:
        `runs`: of each its `run` (folder), `name` (its path in the folder), `state` (`done`,
        `running`, `stopped`, `diverged`, or `damaged` with the `error`), `model`, `seed`, `step`,
        `epoch`, the figures of its test, or else its latest accuracy (mAP for several labels, loss
        without labels), and `best`, the best of these so far;
        `experiments`: of each its `run`, `name`, `kind`, `state`, `runs` and `done`, numbers of
        runs, and the figures of its result; `recipe`: the options that differ, each with its
        values in the order of the runs, those that are damaged left out.

    Raises:
        RunError: there is no such folder, or no run in it.
    """
    place = Path(folder).expanduser()
    entries, rows = list[Entry](), list[dict[str, Any]]()
    for file in sorted(place.rglob("run.toml")):
        about = {"run": str(file.parent), "name": str(file.parent.relative_to(place))}
        try:
            run = RunFolder(file.parent)
            entries.append(entry_of(run, about["name"]))
            rows.append(about | {"state": run.state} | _figures(entries[-1]))
        except UserError as error:
            rows.append(about | {"state": "damaged", "error": str(error)})
    if not rows:
        missing = "contains no run" if place.is_dir() else "is no folder"
        raise RunError(f"{place} {missing}: name a folder of runs, such as runs")
    found = [_experiment(file.parent, place, rows) for file in sorted(place.rglob(CAMPAIGN_FILE))]
    recipe = {each.option: list(each.values) for each in differing(entries)}
    return {"folder": str(place), "runs": rows, "experiments": found, "recipe": recipe}


def _figures(entry: Entry) -> dict[str, Any]:
    """Return how far a run is, and how good."""

    def values(key: str) -> list[float]:
        measured = (getattr(point, key) for point in entry.testing)
        return [value for value in measured if value is not None and value == value]

    last = max([*entry.training, *entry.testing], key=lambda point: point.step, default=None)
    far = {"step": last.step, "epoch": last.epoch} if last else {}
    key = next((key for key in ("map", "accuracy", "loss") if values(key)), "")
    best = (min if key == "loss" else max)(values(key)) if key else None
    figures = {"best": best, key: values(key)[-1]} if key else {}
    figures |= {key: entry.result[key] for key in OF_RESULT if key in entry.result}
    return {"model": entry.model, "seed": entry.seed} | far | figures


def _experiment(path: Path, place: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how far an experiment is, from its file and the states of its runs."""
    about: dict[str, Any] = {"run": str(path), "name": str(path.relative_to(place))}
    try:
        record = CampaignFolder(path).record
    except RunError as error:
        return about | {"state": "damaged", "error": str(error)}
    states = [row["state"] for row in rows if path in Path(row["run"]).parents]
    result = record.get("result") or {}
    state = "done" if result else "running" if "running" in states else "stopped"
    figures = {key: result[key] for key in ("accuracy", "map", "std", "chosen") if key in result}
    about |= {"kind": record["campaign"], "state": state, "runs": len(states)}
    return about | {"done": states.count("done")} | figures
