"""A run's folder: the only code that knows its files and their formats.

    run.toml        the recipe with every field, what started the run, and what the run decided
    metrics.jsonl   the journal: one JSON object per line
    duplicates.json test images among the training images, and which images were left out
    checkpoints/    step-000000123/ and so on (training/checkpoints.py)
    model/          the trained model, as `vitlab.save` writes it
    delta.safetensors  what a run that trained only some weights changed (`vitlab.Delta`)
    predictions.safetensors  what the model answered to each test image
    segment.safetensors  the classifier of patches, of a run that segments
    detect.safetensors  queries and heads, of a run that detects
    regress.safetensors the linear layer, of a run that answers with numbers
    report.html     the report
    sweep/          the runs that chose the learning rate (experiments/campaign_folder.py)
    .lock           held by the process that trains

`run.toml` states its format, which `read_tables` (runs/recipe_file.py) checks.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from vitlab.data.data_mark import DataMark
from vitlab.documents import read_json
from vitlab.errors import OptionError, RunError, one_line
from vitlab.files import (
    CAMPAIGN_FILE,
    HEADS,
    LOCK,
    MODEL_FOLDER,
    SWEEP_FOLDER,
    WRITTEN,
    explained,
    is_empty,
    remove_empty,
    tidy,
    with_new_parents,
    write_text,
)
from vitlab.locks import Lock
from vitlab.recipes.recipe import Decisions, Host, Recipe
from vitlab.runs.journal import Journal
from vitlab.runs.local_paths import LocalPaths, nearby
from vitlab.runs.recipe_file import FORMAT, read_tables
from vitlab.runs.versions import versions
from vitlab.values import fits

DUPLICATES = "duplicates.json"
Numbers = tuple[int, ...]
LEAKS: dict[str, Any] = {  # the types of what it holds (training/leaks.py)
    "kind": str, "train": Numbers, "test": Numbers, "validation": Numbers, "exact": int,
    "dropped": bool, "seconds": float, "doubtful": tuple[tuple[int, int], ...],
    "seen_test": Numbers, "seen_validation": Numbers, "learned_from": int,
    "seen_without_labels": int, "damaged": tuple[str, ...],
}  # fmt: skip
NEEDED = {"kind", "train", "test", "dropped"}  # in every version
SAMPLE = {"train", "other", "found"}  # numbers of images, where a sample was compared
TABLE: dict[str, Any] = {  # the types of a table of a report
    "title": str, "head": tuple[str, ...], "rows": tuple[tuple[str, ...], ...],
    "marked": int | None, "note": str, "texts": int,
}  # fmt: skip


class RunFolder:
    """The files of one run; reading never changes them.

    Args:
        path: the folder, which need not exist yet
        silent: leave the journal alone, as every process but the first does

    Attributes:
        checkpoints: folder of the checkpoints
        model: folder of the trained model
        guide: folder of a copy of the tokenizer or the teacher that the run learns from
        delta: file of what changed, if the run trained only some of the weights
        head_start: file of the classifier that the run started from, if it was fitted: a delta
        predictions: file of what the model answered to each test image (runs/kept_arrays)
        report: the report's file
        journal: the lines of metrics.jsonl
    """

    def __init__(self, path: str | Path, silent: bool = False) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.model = self.path / MODEL_FOLDER
        self.guide = self.path / "guide"
        self.delta = self.path / "delta.safetensors"
        self.head_start = self.path / "head-start.safetensors"
        self.predictions = self.path / "predictions.safetensors"
        self.report = self.path / "report.html"
        self.journal = Journal(self.path / "metrics.jsonl", silent)
        self._file, self._duplicates = self.path / "run.toml", self.path / DUPLICATES
        self._lock = Lock(self.path / LOCK, "let no other process train in it meanwhile")
        self._tables: dict[str, Any] | None = None
        self._new = [self.path]

    @property
    def started(self) -> bool:
        """Whether the folder contains a run."""
        return self._file.is_file()

    @property
    def free(self) -> bool:
        """Whether the folder is missing or empty, but for a sweep before the run.

        What is left of a start that was killed is not in the way.
        """
        ours = False
        with suppress(RunError):
            ours = "dropped" in (self.duplicates or {})  # or the user's?
        return is_empty(self.path, LOCK, SWEEP_FOLDER, *[DUPLICATES] * ours)

    def may_be_used(self, resume: bool) -> bool:
        """Return whether the folder contains a run, which must not be in the way.

        Raises:
            RunError: it contains a run and `resume` is off, or it contains something else.
        """
        if self.started and not resume:
            raise RunError(
                f"{self.path} already contains a run: pass --resume to continue it, or choose "
                "another --out"
            )
        if not self.started and not self.free:
            raise RunError(f"{self.path} exists and contains no run: choose a new or empty folder")
        return self.started

    def start(
        self,
        recipe: Recipe,
        host: Host,
        command: str,
        fingerprint: str,
        base: str = "",
        code: dict[str, str] | None = None,
        guide: str = "",
        head: dict[str, Any] | None = None,
        mark: DataMark | None = None,
        order: str = "",
    ) -> None:
        """Write `run.toml`, which is what makes the folder a run's.

        Args:
            recipe: with every field, as it will be trained
            host: where and how
            command: what the user typed, for the report
            fingerprint: of the data, so that changed data is noticed on resuming; empty as long as
                its contents are not read
            base: fingerprint of the weights that the run starts from; empty for random ones
            code: names and digests of the user's own functions in the run
            guide: fingerprint of the tokenizer or the teacher; empty for none
            head: how the classifier was fitted, of a run that fits one to features
            mark: of the data's files, which stands for contents that are not read
            order: of the training images in an epoch, by name

        Raises:
            DiskError: the file cannot be written.
        """
        run = {
            "format": FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": one_line(command),  # names in it may be any bytes
            "fingerprint": fingerprint,
            **({} if mark is None else {"data_files": mark.files, "data_times": mark.times}),
            **({"base": base} if base else {}),
            **({"guide": guide} if guide else {}),
            **({"order": order} if order else {}),
        }
        about = {"run": run, "versions": versions(), "host": host.as_table()}
        own = {"code": code, "head": head, "nearby": self._nearby(recipe, host.as_table())}
        more = {name: each for name, each in own.items() if each}
        self._write(about | recipe.as_tables() | more)

    def withdraw(self) -> None:
        """Remove a run that was refused before its first step, or a probe that was interrupted."""
        begun = self._file, self.journal.file, self._lock.file, self.head_start, self._duplicates
        heads = (self.path / name for name in HEADS)
        for file in (*begun, self.delta, self.predictions, self.report, *heads):
            file.unlink(missing_ok=True)
        for folder in (self.guide, self.model):
            shutil.rmtree(folder, ignore_errors=True)
        remove_empty([self.checkpoints, *self._new])

    @property
    def tables(self) -> dict[str, dict[str, Any]]:
        """The tables of `run.toml`, parsed once: `run`, `versions`, `host`, the recipe's parts.

        Raises:
            RunError: the file is missing or damaged.
        """
        if self._tables is None:
            self._tables = read_tables(self._file, "choose another --out")
        return self._tables

    @property
    def recipe(self) -> Recipe:
        """The recipe in `run.toml`.

        Raises:
            RunError: the file is damaged, or has fields that this version does not know.
        """
        try:
            return Recipe.from_tables(self.tables)
        except (OptionError, TypeError) as error:
            raise self._damaged(error) from error

    @property
    def paths(self) -> LocalPaths:
        """The local paths that the run was started with, to be found again.

        Raises:
            RunError: the file is damaged.
        """
        return LocalPaths.of(self.tables, self.path)

    @property
    def recipe_here(self) -> Recipe:
        """The recipe in `run.toml`, whose paths lead from here to what they led to then.

        Raises:
            RunError: as `recipe`.
        """
        return self.paths.here(self.recipe)

    def _nearby(self, recipe: Recipe, host: dict[str, Any]) -> dict[str, str]:
        return nearby(recipe.as_tables() | {"host": host}, self.path)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the data that the run was started with."""
        return self._known("fingerprint")

    @property
    def mark(self) -> DataMark | None:
        """The mark of the files of the data that the run was started with, where it was needed."""
        files = self._known("data_files")
        return DataMark(files, self._known("data_times")) if files else None

    @property
    def data_checksum(self) -> str:
        """What tells the data from others: its fingerprint, or the mark of files not yet read."""
        return self.fingerprint or self._known("data_files")

    @property
    def data(self) -> str:
        """The data that the run was started with, as it was named."""
        return str(self.tables.get("data", {}).get("data", ""))

    def keep_fingerprint(self, fingerprint: str) -> None:
        """Write down the fingerprint of the data, whose contents were read during the run.

        Raises:
            RunError: the folder was removed or replaced meanwhile.
            DiskError: the file cannot be written.
        """
        self.check()
        self._write(self.tables | {"run": self.tables["run"] | {"fingerprint": fingerprint}})

    @property
    def base(self) -> str:
        """The fingerprint of the weights that the run started from; empty for random ones."""
        return self._known("base")

    @property
    def guided_by(self) -> str:
        """The fingerprint of the tokenizer or the teacher of the run; empty for none."""
        return self._known("guide")

    @property
    def order(self) -> str:
        """The name of the order of the training images in an epoch; empty if none is named."""
        return self._known("order")

    def _known(self, name: str) -> str:
        return str(self.tables.get("run", {}).get(name, ""))

    def change(
        self, recipe: Recipe, code: dict[str, str], changes: list[dict[str, Any]], step: int
    ) -> None:
        """Keep the recipe and the functions that hold from a step on, and what they replace.

        Where the run has fallen back to a checkpoint from before an earlier change, that change
        holds from there.

        Args:
            recipe: with every field
            code: as for `start`
            changes: `option`, and `before` and `after` as far as there are such values
            step: of the checkpoint that the run goes on from

        Raises:
            DiskError: the file cannot be written.
        """
        stored: Any = self.tables.get("changes", [])
        entries = [each | {"step": min(each["step"], step)} for each in stored]
        entries += [{"step": step} | each for each in changes]
        if entries != stored:
            # it may go back as often
            self.decide(replace(self.decisions, rollbacks=(), diverged=""))
        elif self.paths.leads_to(recipe):
            return
        near = self.tables.get("nearby", {}) | self._nearby(recipe, self.tables.get("host", {}))
        parts = {"code": code, "nearby": near, "changes": entries}
        self._write(self.tables | recipe.as_tables() | {k: v for k, v in parts.items() if v})

    @property
    def code(self) -> dict[str, Any]:
        """Names and digests of the user's own functions that the run was started with."""
        return self.tables.get("code", {})

    @property
    def decisions(self) -> Decisions:
        """What the run has decided so far."""
        table = self.tables.get("decided", {})
        plan, rollbacks = (
            tuple((int(first), int(second)) for first, second in table.get(key, ()))
            for key in ("plan", "rollbacks")
        )
        return Decisions(table.get("micro_batch"), plan, rollbacks, table.get("diverged", ""))

    def decide(self, decisions: Decisions) -> None:
        """Keep decisions beside the recipe.

        Raises:
            RunError: the folder was removed or replaced meanwhile.
            DiskError: the file cannot be written.
        """
        self.check()
        table = {key: each for key, each in vars(decisions).items() if each not in (None, (), "")}
        self._write(self.tables | {"decided": table})

    @property
    def duplicates(self) -> dict[str, Any] | None:
        """What was found of test images among the training images; None if nothing is kept.

        Raises:
            RunError: the file is damaged.
        """
        file = self._duplicates
        if not file.is_file():
            return None
        found = read_json(file, RunError)
        if not are_duplicates(found):
            raise RunError(f"{file} is damaged: choose another --out")
        return found

    def keep_duplicates(self, found: dict[str, Any] | None) -> None:
        """Keep what was found, so that a resumed run learns from the same images.

        Raises:
            DiskError: the file cannot be written.
        """
        if found is not None:
            write_text(self._duplicates, json.dumps(found))

    @property
    def state(self) -> str:
        """`done`, `diverged`, `running` (another process trains it) or `stopped`; empty: no run.

        Raises:
            RunError: its files are damaged.
        """
        if not self.started:
            return ""
        with (
            self._lock.held(shared=True) if self._lock.file.exists() else nullcontext(True) as free
        ):
            last = "diverged" if self.decisions.diverged else "stopped"
            return "done" if self.result() else last if free else "running"

    def result(self) -> dict[str, Any] | None:
        """Return the figures of a finished run (the keys of the command's JSON), else None.

        Raises:
            RunError: the journal cannot be read.
        """
        for line in self.journal.read():
            if line["kind"] == "result":
                return {k: line[k] for k in line if k not in ("kind", "report")} | self.places
        return None

    def continue_from(self, journal: bytes | None, size: int) -> str:
        """Make the journal what it was at a checkpoint, and make room for the next ones.

        Args:
            journal: the checkpoint's copy, if it has one
            size: bytes that the journal had then

        Returns:
            A remark for the user if the journal had to be repaired; else nothing.

        Raises:
            DiskError: the folder cannot be written to.
        """
        if not self.journal.silent:
            with explained(self.checkpoints):
                self.checkpoints.mkdir(exist_ok=True)
        self._tables = None  # the first process may change them now
        return self.journal.restore(journal, size)

    def sweep(self) -> dict[str, Any] | None:
        """Return the result of the sweep that chose the learning rate; None if there was none."""
        file = self.path / SWEEP_FOLDER / CAMPAIGN_FILE
        if not file.is_file():
            return None
        try:
            record = read_json(file, RunError)
            result = record.get("result")
            if "result" in record and (result is None or is_sweep(result)):
                return result
            error = f"{file} is damaged: it has no result of a sweep"
        except RunError as reason:
            error = str(reason)
        from vitlab.progress import say  # slow to import

        say(f"{error}; it was skipped")
        return None

    @property
    def places(self) -> dict[str, str]:
        """Where the run and its report, if there is one, are, as the command's JSON names them."""
        report = {"report": str(self.report)} if self.report.is_file() else {}
        return {"run": str(self.path)} | report

    def final_places(self, host: Host) -> dict[str, str]:
        """Where the run is and, if it is to have one, its report, which is written last."""
        report = {"report": str(self.report)} if host.draws_report else {}
        return self.places | report

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and hold it for this process alone, until the block or process ends.

        Drafts that a killed process left are removed.

        Raises:
            RunError: another process holds it.
            DiskError: it cannot be written to.
        """
        self._new = with_new_parents(self.path)
        with self._lock.held() as mine:
            if not mine:
                raise RunError(
                    f"another process is training in {self.path}: wait for it, or choose another "
                    "--out"
                )
            self._tables = None  # the process that held it before may have decided something
            tidy(self.path, WRITTEN)
            yield

    def check(self) -> None:
        """Refuse to go on if the folder was removed or replaced while this process held it.

        Raises:
            RunError: it was, or `run.toml` or the checkpoints were.
        """
        if self._lock.lost:
            raise RunError(
                f"{self.path} was removed or replaced during the run: nothing more was written; "
                "start the run again with another --out"
            )
        for each in (self._file, self.checkpoints):
            if self._lock.held_here and not each.exists():
                raise RunError(
                    f"{each} was removed during the run: nothing more was written; put it back and "
                    "pass --resume, or start the run again with another --out"
                )

    def _write(self, tables: dict[str, Any]) -> None:
        write_text(self._file, tomli_w.dumps(tables))
        self._tables = tables

    def _damaged(self, error: Exception) -> RunError:
        return RunError(
            f"{self._file} is damaged or from another version ({error}): choose another --out"
        )


def are_duplicates(found: dict[str, Any]) -> bool:
    """Return whether an object is what a run keeps of test images among the training images."""
    moved = found.get("moved", {})
    sample = found.get("sample", {})
    sides = moved.values() if isinstance(moved, dict) else [None]
    counts = sample if isinstance(sample, dict) else {"": None}
    if counts and (
        counts.keys() != SAMPLE or not all(fits(count, int) for count in counts.values())
    ):
        return False
    known = {name: each for name, each in found.items() if name not in ("moved", "sample")}
    if not NEEDED <= known.keys() <= LEAKS.keys() or not all(fits(each, Numbers) for each in sides):
        return False
    if not all(fits(each, LEAKS[name]) for name, each in known.items()):
        return False
    numbered = [known[name] for name in known if LEAKS[name] == Numbers]
    return all(0 <= number < 2**40 for own in (*numbered, *sides) for number in own)


def is_sweep(result: object) -> bool:
    """Return whether a value is the result of a sweep, with its table."""
    table = result.get("table") if isinstance(result, dict) else None
    if not isinstance(table, dict) or not {"title", "head", "rows"} <= table.keys():
        return False
    known = all(name in TABLE and fits(each, TABLE[name]) for name, each in table.items())
    return known and all(len(row) == len(table["head"]) for row in table["rows"])
