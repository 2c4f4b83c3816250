"""A campaign's folder: several runs with one purpose, each an ordinary run folder inside.

campaign.json   what the campaign is, which may not change, and its result
report.html     the result as a page
NAME/           the runs (runs/run_folder.py), which know themselves whether they diverged
sweep/          the runs that chose a learning rate for the others, or for the run in this folder
"""

import json
from pathlib import Path
from typing import Any

from vitlab.documents import read_json
from vitlab.errors import OptionError, RunError
from vitlab.files import (
    CAMPAIGN_FILE,
    LOCK,
    is_empty,
    remove_empty,
    tidy,
    with_new_parents,
    write_text,
)
from vitlab.locks import Lock
from vitlab.recipes.recipe import Recipe
from vitlab.recorded_paths import is_same_place, places, seen_from
from vitlab.runs.local_paths import LocalPaths, nearby

MOST = 9_999  # runs of a campaign
PATHS = ("data", "downstream")  # of its settings
Tables = dict[str, Any]
TYPES: dict[str, Any] = {  # of what a record holds
    "campaign": str, "settings": dict, "recipe": dict, "command": str, "result": dict | None,
}  # fmt: skip


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
        self._new = [self.path]

    @property
    def started(self) -> bool:
        """Whether the folder contains a campaign."""
        return self._file.is_file()

    @property
    def record(self) -> Tables:
        """What the campaign is and has come to.

        `campaign` (its kind), `settings`, `recipe` (the tables of `run.toml`), `command` and
        `result` (None until it is finished).

        Raises:
            RunError: the file is missing or damaged.
        """
        try:
            record: Tables = read_json(self._file, RunError)
        except RunError as error:
            raise RunError(f"{error}: choose another --out") from error
        for key, kind in TYPES.items():
            if not isinstance(record.get(key), kind):
                raise self._damaged(ValueError(f"no {key} of a campaign"))
        return record

    @property
    def recipe(self) -> Recipe:
        """The recipe that the campaign varies, with paths that can be opened from here.

        Raises:
            RunError: the file is damaged or from another version.
        """
        try:
            return self.paths.here(Recipe.from_tables(self.record["recipe"]))
        except (OptionError, KeyError, TypeError) as error:
            raise self._damaged(error) from error

    @property
    def paths(self) -> LocalPaths:
        """The local paths that the campaign was started with, to be found again."""
        record = self.record
        return LocalPaths.of(record["recipe"] | {"nearby": record.get("nearby", {})}, self.path)

    def begin(
        self, kind: str, settings: Tables, recipe: Recipe, resume: bool, command: str = ""
    ) -> None:
        """Start the campaign, or continue it if it is the same one.

        Several processes may begin it at the same time.

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
        made = with_new_parents(self.path)
        lock = self.path / LOCK
        if not self.started and not is_empty(self.path, LOCK):
            raise RunError(
                f"{self.path} exists and contains no {kind}: choose a new or empty folder"
            )
        with Lock(lock, "begin it with one process only").held(wait=True):
            tidy(self.path, r"campaign\.json|report\.html")
            if self.started:
                self._check_same(kind, settings, recipe, resume)
            else:
                self._new = made
                about = {"campaign": kind, "settings": settings, "recipe": recipe.as_tables()}
                about |= {"nearby": self._nearby(settings, recipe)}
                self._write(about | {"command": command, "result": None})
            lock.unlink(missing_ok=True)

    def _check_same(self, kind: str, settings: Tables, recipe: Recipe, resume: bool) -> None:
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
        # with options of this version
        paths = self.paths
        then = Recipe.from_tables(found["recipe"])
        mine = paths.as_recorded(recipe)
        settings = settings | self._spell_as_recorded(found, settings)
        old, new = (
            json.loads(json.dumps({"settings": of} | each.as_tables()))
            for of, each in ((found["settings"], then), (settings, mine))
        )
        for part in old | new:
            before = old.get(part, {})
            now = new.get(part, {})
            for key in before | now:
                if before.get(key) != now.get(key):
                    raise RunError(
                        f"{self.path} was started with {key}={before.get(key)}, not "
                        f"{now.get(key)}: leave the option out, or choose another --out"
                    )

    def _nearby(self, settings: Tables, recipe: Recipe) -> dict[str, str]:
        """The local paths of recipe and settings, as seen from the folder."""
        given = {f"settings.{key}": settings.get(key) for key in PATHS}
        found = {key: seen_from(self.path, str(each)) for key, each in given.items() if each}
        own = {key: each for key, each in found.items() if each is not None}
        return nearby(recipe.as_tables(), self.path) | own

    def _spell_as_recorded(self, found: Tables, settings: Tables) -> Tables:
        """The paths of settings as they are recorded, if they lead to the same places."""
        before = found["settings"]
        near = found.get("nearby", {})
        same = Tables()
        for key in PATHS:
            old = before.get(key)
            now = settings.get(key)
            if isinstance(old, str) and isinstance(now, str) and old and now:
                where = places(old, near.get(f"settings.{key}"), self.path, self.path.parent)
                same |= {key: old} if any(is_same_place(now, p) for p in (old, *where)) else {}
        return same

    def withdraw(self) -> None:
        """Leave no trace of a campaign whose first run was refused."""
        self._file.unlink(missing_ok=True)
        remove_empty(self._new)

    def finish(self, result: Tables) -> None:
        """Write down what the campaign has come to, as JSON values."""
        self._write(self.record | {"result": result})

    def _write(self, record: Tables) -> None:
        write_text(self._file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")

    def _damaged(self, error: Exception) -> RunError:
        return RunError(
            f"{self._file} is damaged or from another version ({error}): choose another --out"
        )
