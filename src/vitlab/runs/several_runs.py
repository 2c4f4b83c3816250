"""Several runs that a user names by their folders, or by those of sweeps, seeds, folds, studies."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlab.documents import read_json
from vitlab.errors import OptionError, RunError
from vitlab.files import CAMPAIGN_FILE, SWEEP_FOLDER
from vitlab.runs.run_folder import RunFolder
from vitlab.values import fits

SWEEP = "sweep"  # a kind of campaign


def several_runs(places: Sequence[str]) -> list[RunFolder]:
    """Return the runs in some folders, in their order; that of a campaign stands for its runs.

    Of a study these are the runs of its rows, without those that chose their learning rates. A
    sweep stands for its best run, and for all if it is named alone.

    Raises:
        RunError: no such folder, no run in it, or the same run twice.
        OptionError: fewer than two runs.
    """
    found: dict[Path, RunFolder] = {}
    for place in places:
        for folder in _runs_in(Path(place).expanduser(), alone=len(places) == 1):
            if (same := folder.path.resolve()) in found:
                raise RunError(f"{folder.path} is named twice: name each run once")
            found[same] = folder
    if len(found) < 2:
        raise OptionError("there is only one run: name at least two to compare")
    return list(found.values())


def check_runs(places: Sequence[str]) -> None:
    """Refuse what `several_runs` refuses."""
    several_runs(places)


def _runs_in(path: Path, *, alone: bool) -> list[RunFolder]:
    """Return the run in a folder, or those of the campaign in it."""
    if alone and (path / SWEEP_FOLDER / CAMPAIGN_FILE).is_file():
        path /= SWEEP_FOLDER  # of the run that it chose a learning rate for
    if (folder := RunFolder(path)).started:
        return [folder]
    inside = sorted(path.iterdir()) if (path / CAMPAIGN_FILE).is_file() else []
    if runs := [each for each in map(RunFolder, inside) if each.started]:
        record = read_json(path / CAMPAIGN_FILE, RunError)
        if record.get("campaign") != SWEEP:
            return [each for each in runs if not _chooses(each)] or runs
        return runs if alone else [_best(path, record.get("result"))]
    if not path.is_dir():
        raise RunError(f"no such folder: {path}")
    raise RunError(f"{path} contains no run: name the folder of a run, which contains run.toml")


def _chooses(run: RunFolder) -> bool:
    """Whether a run of a campaign is tested on training images, to choose a learning rate."""
    return bool(run.tables.get("data", {}).get("dev_share"))


def _best(path: Path, result: Any) -> RunFolder:
    """Return the best run of a sweep.

    Raises:
        RunError: it is not finished, or its file is damaged.
    """
    if result is None:
        raise RunError(
            f"the sweep in {path} is not finished: run its command again with --resume, or name "
            "one of its runs"
        )
    about: dict[str, Any] = result if isinstance(result, dict) else {}
    number = about.get("best")
    rows = about.get("runs")
    best = None
    if isinstance(number, int) and isinstance(rows, list) and 0 <= number < len(rows):
        best = rows[number]
    if isinstance(best, dict) and fits(best.get("run"), str):
        run = RunFolder(path / Path(best["run"]).name)  # the folder may have moved
        if run.started:
            return run
    raise RunError(f"{path / CAMPAIGN_FILE} is damaged: it does not name the best run")
