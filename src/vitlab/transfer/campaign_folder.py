"""A campaign's folder: several runs with one purpose, each an ordinary run folder inside.

campaign.json   what the campaign is, which may not change; what diverged; the result
report.html     the result as a page
NAME/           the runs (runs/run_folder.py)
"""

import json
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError, RunError
from vitlab.files import (
    CAMPAIGN_FILE,
    LOCK,
    SWEEP_FOLDER,
    is_empty,
    remove_empty,
    tidy,
    with_new_parents,
    write_text,
)
from vitlab.recipes.recipe import Recipe
from vitlab.runs.run_folder import RunFolder

MOST = 9_999  # runs of a campaign


class CampaignFolder:
    """The files of one campaign; reading never changes them.

    Args:
        path: the folder, which need not exist yet

    Attributes:
        report: the page of the result
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.report = self.path / "report.html"
        self._file = self.path / CAMPAIGN_FILE
        self._record: dict[str, Any] | None = None
        self._new = [self.path]

    @property
    def started(self) -> bool:
        """Whether the folder contains a campaign."""
        return self._file.is_file()

    @property
    def record(self) -> dict[str, Any]:
        """What the campaign is and has come to.

        `campaign` (its kind), `settings`, `recipe` (the tables of `run.toml`), `command`,
        `diverged` (a message by the name of the run) and `result` (None until it is finished).

        Raises:
            RunError: the file is missing or damaged.
        """
        if self._record is None:
            try:
                record = json.loads(self._file.read_text(encoding="utf-8"))
                if not isinstance(record, dict) or not isinstance(record["settings"], dict):
                    raise ValueError("not a campaign")
            except (OSError, ValueError, KeyError) as error:
                raise self._damaged(error) from error
            self._record = record
        return self._record

    @property
    def recipe(self) -> Recipe:
        """The recipe that the campaign varies.

        Raises:
            RunError: the file is damaged or from another version.
        """
        try:
            return Recipe.from_tables(self.record["recipe"])
        except (OptionError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    def begin(
        self, kind: str, settings: dict[str, Any], recipe: Recipe, resume: bool, command: str = ""
    ) -> None:
        """Start the campaign, or continue it if it is the same one.

        Args:
            kind: what it is, in one word: `sweep`
            settings: JSON values by the names of their options
            recipe: that it varies
            resume: continue the campaign in the folder, if there is one
            command: what the user typed

        Raises:
            RunError: the folder contains something else, or a campaign that may not be continued.
            DiskError: it cannot be written to.
        """
        tables = _tables(settings, recipe)
        tidy(self.path, r"campaign\.json|report\.html")
        if not self.started:
            if not is_empty(self.path, LOCK):
                raise RunError(
                    f"{self.path} exists and contains no {kind}: choose a new or empty folder"
                )
            self._new = with_new_parents(self.path)
            self._write(
                {
                    "campaign": kind,
                    "settings": tables.pop("settings"),
                    "recipe": tables,
                    "command": command,
                    "diverged": {},
                    "result": None,
                }
            )
            return
        found = self.record
        if found.get("campaign") != kind:
            raise RunError(
                f"{self.path} contains a {found.get('campaign')}, not a {kind}: choose another "
                "--out"
            )
        if not resume:
            raise RunError(
                f"{self.path} already contains a {kind}: pass --resume to continue it, or choose "
                "another --out"
            )
        self._check_same({"settings": found["settings"]} | found["recipe"], tables)

    def holds(self, kind: str, settings: dict[str, Any], recipe: Recipe) -> bool:
        """Return whether the folder contains this very campaign."""
        if not self.started or self.record.get("campaign") != kind:
            return False
        found = {"settings": self.record["settings"]} | self.record.get("recipe", {})
        return found == _tables(settings, recipe)

    def _check_same(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        for part in old | new:
            before, now = old.get(part, {}), new.get(part, {})
            for key in before | now:
                if before.get(key) != now.get(key):
                    raise RunError(
                        f"{self.path} was started with {key}={before.get(key)}, not "
                        f"{now.get(key)}: leave the option out, or choose another --out"
                    )

    def withdraw(self) -> None:
        """Leave no trace of a campaign whose first run was refused."""
        self._file.unlink(missing_ok=True)
        remove_empty(self._new)

    def run(self, name: str) -> RunFolder:
        """Return the folder of a run."""
        return RunFolder(self.path / name)

    def note_divergence(self, name: str, message: str) -> None:
        """Write down that a run diverged: it is not repeated."""
        diverged = self.record["diverged"] | {name: message}
        self._write(self.record | {"diverged": diverged})

    def finish(self, result: dict[str, Any]) -> None:
        """Write down what the campaign has come to, as JSON values."""
        self._write(self.record | {"result": result})

    def _write(self, record: dict[str, Any]) -> None:
        write_text(self._file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        self._record = record

    def _damaged(self, error: Exception) -> RunError:
        return RunError(
            f"{self._file} is damaged or from another version ({error}): choose another --out"
        )


def _tables(settings: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Return what may not change, as JSON gives it back."""
    tables: dict[str, Any] = json.loads(json.dumps({"settings": settings} | recipe.as_tables()))
    return tables


def sweep_of(run: str | Path) -> CampaignFolder:
    """Return the folder of the sweep that chose a run's learning rate, if there was one."""
    return CampaignFolder(Path(run) / SWEEP_FOLDER)
