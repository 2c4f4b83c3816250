"""What a study keeps in its folder, so that the same command goes on with it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

from vitlab.errors import RunError
from vitlab.files import CAMPAIGN_FILE
from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.jobs import Figures, Job
from vitlab.studies.grid.runs.one_run import kept_figures
from vitlab.studies.grid.runs.study_plan import Plan
from vitlab.transfer.campaign_folder import CampaignFolder
from vitlab.units import duration

TIMING = "vitlab-study-"  # prefix of the folder of runs that are timed; it vanishes with them


class KeptStudy:
    """A study in its folder; one of which nothing was run yet gives way to any other.

    Args:
        folder: gets a run folder per run
    """

    def __init__(self, folder: CampaignFolder) -> None:
        self.folder = folder
        self.file = folder.path / "plan.json"

    def begin(self, settings: dict[str, Any], recipe: Recipe, command: str) -> None:
        """Start the study, or continue it.

        Raises:
            RunError: the folder contains something else, or a study that was begun otherwise.
            DiskError: it cannot be written to.
        """
        if self.folder.started and self.folder.record["campaign"] == "study":
            self.withdraw()
            if self.file.is_file():
                self._check_length(settings)
            elif self.folder.started:
                raise RunError(f"{self.file} is missing: choose another --out")
        self.folder.begin("study", settings, recipe, resume=True, command=command)

    def plan(self) -> Plan | None:
        """Return the plan that the study was begun with; None if there is none yet.

        Raises:
            RunError: it is damaged.
        """
        return Plan.read(self.file) if self.file.is_file() else None

    def done(self, jobs: Sequence[Job]) -> dict[str, Figures]:
        """Return the figures of the runs that are finished, by their names."""
        found = {job.name: kept_figures(self.place(job)) for job in jobs}
        return {name: figures for name, figures in found.items() if figures is not None}

    def place(self, job: Job) -> Path:
        """Return the folder of a run."""
        return self.folder.path / job.name

    def withdraw(self) -> None:
        """Leave no trace of a study that has no plan yet, and of runs that were timed."""
        for each in self.folder.path.glob(f"{TIMING}*"):
            rmtree(each, ignore_errors=True)
        if [each.name for each in self.folder.path.glob("*")] == [CAMPAIGN_FILE]:
            self.folder.withdraw()

    def _check_length(self, settings: Mapping[str, Any]) -> None:
        kept = self.folder.record["settings"]
        old, new = _length(kept), _length(settings)
        if kept.get("study") == settings["study"] and old != new:
            raise RunError(
                f"{self.folder.path} was begun with {old}, not {new}: ask for the same, or choose "
                "another --out"
            )


def _length(settings: Mapping[str, Any]) -> str:
    """Return how the length of a study was asked for."""
    if settings["epochs"]:
        return f"--epochs {settings['epochs']:g}"
    return f"a budget of {duration(settings['budget'])}" if settings["budget"] else "budget=paper"
