"""Several runs that a user names: their folders, and a short name for each."""

from collections.abc import Sequence
from pathlib import Path

from vitlab.errors import OptionError, RunError
from vitlab.files import CAMPAIGN_FILE
from vitlab.runs.run_folder import RunFolder

MOST = 20  # runs that are compared at once


def several_runs(places: Sequence[str]) -> list[RunFolder]:
    """Return the runs in some folders, in their order; a sweep, series or folds by its runs.

    Raises:
        RunError: no such folder, no run in it, or the same run twice.
        OptionError: fewer than two runs, or too many.
    """
    found: dict[Path, RunFolder] = {}
    for place in places:
        for folder in _runs_in(Path(place).expanduser()):
            if (same := folder.path.resolve()) in found:
                raise RunError(f"{folder.path} is named twice: name each run once")
            found[same] = folder
    if len(found) < 2:
        raise OptionError("there is only one run: name at least two to compare")
    if len(found) > MOST:
        raise OptionError(f"these are {len(found)} runs: compare at most {MOST} at once")
    return list(found.values())


def check_runs(places: Sequence[str]) -> None:
    """Refuse what `several_runs` refuses."""
    several_runs(places)


def _runs_in(path: Path) -> list[RunFolder]:
    """Return the run in a folder, or those of the campaign in it."""
    if (folder := RunFolder(path)).started:
        return [folder]
    inside = sorted(path.iterdir()) if (path / CAMPAIGN_FILE).is_file() else []
    if runs := [each for each in map(RunFolder, inside) if each.started]:
        return runs
    if not path.is_dir():
        raise RunError(f"no such folder: {path}")
    raise RunError(f"{path} contains no run: name the folder of a run, which contains run.toml")


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return as many last parts of each path as it takes to tell all of them apart."""
    parts = [path.resolve().parts for path in paths]
    names: list[str] = []
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            break
    return names
