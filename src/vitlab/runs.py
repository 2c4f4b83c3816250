"""A run's folder: the recipe written down, the journal, the lock."""

import fcntl
import json
import math
import os
import platform
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tomli_w

from vitlab.errors import UserError
from vitlab.files import explained, write_text
from vitlab.recipes.recipe import Host, Recipe

RECIPE, JOURNAL, CHECKPOINTS, MODEL, REPORT, LOCK = (
    "run.toml",
    "metrics.jsonl",
    "checkpoints",
    "model",
    "report.html",
    ".lock",
)


def holds_run(folder: Path) -> bool:
    """Whether a run was started here."""
    return (folder / RECIPE).is_file()


def write_recipe(folder: Path, recipe: Recipe, host: Host, command: str, data: str) -> None:
    """Write `run.toml`: the whole recipe, what ran it, and a fingerprint of the data."""
    run = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "fingerprint": data,
    }
    content = {"run": run, "versions": versions(), "host": _plain(asdict(host))}
    write_text(folder / RECIPE, tomli_w.dumps(content | as_tables(recipe)))


def read_recipe(folder: Path) -> tuple[Recipe, dict[str, Any]]:
    """The recipe in a run's `run.toml`, and the file's other tables.

    Raises:
        ValueError: the file is damaged or holds fields that this version does not know.
    """
    file = folder / RECIPE
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        default = Recipe()
        values: dict[str, Any] = {}
        for field in fields(Recipe):
            start = getattr(default, field.name)
            if is_dataclass(start) and not isinstance(start, type):
                values[field.name] = replace(start, **_tuples(content[field.name]))
            elif field.name in content["recipe"]:  # an earlier version had fewer fields
                values[field.name] = content["recipe"][field.name]
        return Recipe(**values), {key: content[key] for key in ("run", "versions", "host")}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file} is damaged or of another version: {error}") from error


def as_tables(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The recipe as the tables of `run.toml`; fields that say None are left out."""
    whole = _plain(asdict(recipe))
    parts = {key: value for key, value in whole.items() if isinstance(value, dict)}
    return {"recipe": {k: v for k, v in whole.items() if k not in parts}} | parts


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain = {k: _plain(v) if isinstance(v, dict) else v for k, v in values.items()}
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in plain.items()
        if value is not None
    }


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def versions() -> dict[str, str]:
    """What ran: our version and revision, and those whose arithmetic decides the result."""
    names = ("vitlab", "torch", "numpy", "pillow")
    own = {name: version(name) for name in names}
    revision = _revision()
    return own | {"python": platform.python_version()} | ({"git": revision} if revision else {})


def _revision() -> str:
    """The revision of our own source tree, where it is a git checkout; `+` marks local changes."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        tracked = git("ls-files", Path(__file__).name)
        changed = "+" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "HEAD") + changed if tracked else ""
    except (OSError, subprocess.CalledProcessError):
        return ""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a run's folder and hold it alone; when the process ends, however, so does the hold.

    Raises:
        ValueError: another process holds it, or it cannot be written to.
    """
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    with lock as file:
        try:
            # a record lock: workers that outlive a killed run do not inherit it, as they do flock's
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another process is training in {folder}") from None
        yield


class Journal:
    """`metrics.jsonl`: one object a line, appended, and cut back to the checkpoint on resuming.

    Args:
        folder: the run's
        mute: write nothing, as of several processes all but the first do
    """

    def __init__(self, folder: Path, mute: bool = False) -> None:
        self.file, self.mute = folder / JOURNAL, mute

    def cut(self, size: int) -> None:
        """Forget the lines behind the first `size` bytes: their steps are taken again."""
        if self.mute:
            return
        with self.file.open("ab") as stream:
            stream.truncate(size)

    def write(self, entry: dict[str, Any]) -> None:
        """Append one line."""
        if self.mute:
            return
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in entry.items()
        }
        with explained(self.file), self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(finite) + "\n")

    def sync(self) -> int:
        """Bring all lines to the disk; returns the size in bytes."""
        if self.mute:
            return 0
        with explained(self.file), self.file.open("ab") as stream:
            stream.flush()
            os.fsync(stream.fileno())
            return stream.tell()

    def read(self) -> list[dict[str, Any]]:
        """Every whole line."""
        if not self.file.exists():
            return []
        lines = self.file.read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]
