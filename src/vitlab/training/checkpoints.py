"""Checkpoints that are complete or not there: safetensors, JSON and a manifest of checksums.

Nothing here unpickles. A checkpoint is staged beside its place, synced and renamed; its manifest
holds the size and sha256 of every file, and a checkpoint that does not match it is skipped.

Of a sharded model every process writes, syncs and checksums its own slices in a folder beside the
checkpoint's place. When all are done, the first one moves the files into the checkpoint's draft.
The folder must be on a file system that all machines see.
"""

import json
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlab import files
from vitlab.distributed.parallel import is_sharded
from vitlab.distributed.world import World
from vitlab.documents import read_json
from vitlab.errors import RunError
from vitlab.files import explained, sha256, staged_folder, sync
from vitlab.optim.sliced import is_sliced, local
from vitlab.training.state import Checkpoint, RunState
from vitlab.values import fits

TENSORS, STATE, MANIFEST = "state.safetensors", "state.json", "manifest.json"
JOURNAL = "metrics.jsonl"  # a copy of the run's, as it was then
SHARDS = "shards.json"  # of a checkpoint that several processes wrote
KEEP = 2  # the newest may turn out to be damaged, or not to be good
DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)


def save(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint of a step into a run's folder of checkpoints, and drop older ones.

    Raises:
        DiskError: the disk is full or refuses; every earlier checkpoint is left as it was.
    """
    with staged_folder(place_of(folder, step)) as draft:
        tensors = {k: t.detach().contiguous() for k, t in checkpoint.tensors.items()}
        save_file(tensors, draft / TENSORS)
        _complete(draft, step, checkpoint, {TENSORS: entry(draft / TENSORS)})
    prune(folder, checkpoint.state)
    return place_of(folder, step)


def _complete(draft: Path, step: int, checkpoint: Checkpoint, listed: dict[str, Any]) -> None:
    """Write what a checkpoint has besides tensors, the manifest last.

    Args:
        draft: the folder, with the tensors
        step: of the checkpoint
        checkpoint: state and journal
        listed: entries of the files with tensors
    """
    (draft / STATE).write_text(json.dumps(checkpoint.state), encoding="utf-8")
    if checkpoint.journal is not None:
        (draft / JOURNAL).write_bytes(checkpoint.journal)
    for name in (SHARDS, STATE, JOURNAL):
        if (draft / name).exists():
            listed[name] = entry(draft / name)
    write_manifest(draft, step, listed)


def place_of(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:09d}"


def entry(file: Path) -> dict[str, Any]:
    """Return a file's entry in the manifest."""
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def write_manifest(draft: Path, step: int, files: dict[str, dict[str, Any]]) -> None:
    """Write the sign that a checkpoint is complete, after everything else."""
    text = json.dumps({"step": step, "files": files}, indent=1)
    (draft / MANIFEST).write_text(text, encoding="utf-8")


def places(folder: Path) -> list[Path]:
    """Return the checkpoints that have a manifest, newest first."""
    return sorted((file.parent for file in folder.glob(f"step-*/{MANIFEST}")), reverse=True)


def is_good(place: Path, until: int) -> bool:
    """Return whether a checkpoint is of a step up to `until`, and its own last loss was normal."""
    if place > place_of(place.parent, until):
        return False
    try:
        state = read_state(place)
        return bool(state.get("sound", state["step"]) >= state["step"] - 1)
    except DAMAGE:
        return False


def read_state(place: Path) -> dict[str, Any]:
    """Return what a checkpoint holds besides tensors: an object with the number of its step.

    Raises:
        RunError: it is damaged, or something else.
    """
    state = read_json(place / STATE, RunError)
    numbers = [state.get("step"), state.get("sound", 0)]
    if not all(type(each) is int and -1 <= each < 2**53 for each in numbers):
        raise RunError(f"{place / STATE} is damaged: it has no step")
    return state


def prune(folder: Path, state: dict[str, Any]) -> None:
    """Drop all but the newest checkpoints and the newest one that has proved good.

    Args:
        folder: of the checkpoints
        state: of the newest one
    """
    found, until = places(folder), state.get("sound", -1)
    good = next((place for place in found if is_good(place, until)), None)
    for old in found[KEEP:]:
        if old != good:
            shutil.rmtree(old, ignore_errors=True)
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove drafts that a killed process left, and what it did not finish removing."""
    files.tidy(folder, r"step-\d+")
    halves = [each for each in folder.glob("step-*") if not (each / MANIFEST).is_file()]
    # parts of shards, and drafts as they were named before
    for left in (*halves, *folder.glob(".step-*")):
        shutil.rmtree(left, ignore_errors=True)


def load(folder: Path, until: int | None = None) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest undamaged checkpoint, if any, and a remark on each that was skipped.

    Args:
        folder: of the checkpoints
        until: the last step that will do, if the checkpoint is to be a good one
    """
    remarks: list[str] = []
    for place in places(folder):
        if until is not None and not is_good(place, until):
            continue
        try:
            return read(place), remarks
        except DAMAGE as error:
            remarks.append(f"checkpoint {place} is damaged and was skipped: {error}")
    return None, remarks


def read(place: Path) -> Checkpoint:
    """Return one checkpoint; the slices of a sharded one are joined.

    Raises:
        One of `DAMAGE`: something is missing, or is not what the manifest says.
    """
    listed = read_json(place / MANIFEST, RunError)["files"]
    if not isinstance(listed, dict):
        raise ValueError(f"{MANIFEST} lists no files")
    for name, expected in listed.items():
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not a file name")
        if entry(place / name) != expected:
            raise ValueError(f"{name} does not match its checksum")
    state = read_state(place)
    if SHARDS in listed:
        tensors = _join(place, listed)
    else:
        tensors = {name: t.clone() for name, t in load_file(place / TENSORS).items()}
    journal = (place / JOURNAL).read_bytes() if JOURNAL in listed else None
    return Checkpoint(tensors, state, journal)


def _join(place: Path, listed: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a sharded checkpoint, whose slices are along the first dimension."""
    layout = read_json(place / SHARDS, RunError)
    types = {"files": tuple[str, ...], "whole": tuple[str, ...], "sliced": dict}
    if not all(fits(layout[name], kind) for name, kind in types.items()):
        raise ValueError(f"{SHARDS} does not list shards")
    if not set(layout["files"]) <= set(listed):
        raise ValueError("its manifest does not list all shards")
    with ExitStack() as stack:
        shards = [
            stack.enter_context(safe_open(place / name, "pt", "cpu")) for name in layout["files"]
        ]
        tensors = {name: shards[0].get_tensor(name).clone() for name in layout["whole"]}
        for name, shape in layout["sliced"].items():
            tensors[name] = torch.cat([shard.get_tensor(name) for shard in shards])
            if list(tensors[name].shape) != shape:
                raise ValueError(f"the slices of {name} do not add up to {shape}")
    return tensors


@dataclass
class Saver:
    """Writes checkpoints and finds them again, for all processes of a run.

    Attributes:
        world: this process among those of the run
        folder: the run's folder of checkpoints
        every: seconds between two checkpoints
    """

    world: World
    folder: Path
    every: float
    last: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return time.monotonic() - self.last >= self.every

    def save(self, state: RunState, journal: bytes | None = None) -> None:
        """Save a checkpoint; all processes call this at the same step.

        Args:
            state: where the run stands
            journal: the content of metrics.jsonl

        Raises:
            DiskError: the disk is full or refuses; every earlier checkpoint is left as it was.
        """
        content = replace(state.checkpoint(), journal=journal)
        if is_sharded(state.model):
            self._save_slices(state.step, content)
        else:
            with self.world.agreed():
                if self.world.first:
                    save(self.folder, state.step, content)
        self.last = time.monotonic()

    def _save_slices(self, step: int, content: Checkpoint) -> None:
        """Write each process's slices beside the checkpoint's place, and turn them into one."""
        world, size = self.world, self.world.size
        parts = self.folder / f".step-{step:09d}.parts"  # which `tidy` would remove
        names = [f"state-{rank + 1:05d}-of-{size:05d}.safetensors" for rank in range(size)]
        with world.agreed(), explained(parts):
            if world.first:
                shutil.rmtree(parts, ignore_errors=True)
                parts.mkdir(parents=True)
        sliced = {name: list(t.shape) for name, t in content.tensors.items() if is_sliced(t)}
        whole = [name for name in content.tensors if name not in sliced]
        own = {
            name: local(content.tensors[name]).detach().to("cpu", copy=True).contiguous()
            for name in (*sliced, *(whole if world.first else ()))
        }
        file, mine = parts / names[world.rank], dict[str, Any]()
        try:
            with world.agreed(), explained(file):
                save_file(own, file)
                sync(file)
                mine = entry(file)
            entries = world.gather(mine)
            with world.agreed():
                if world.first:
                    with staged_folder(place_of(self.folder, step)) as draft:
                        for name in names:
                            (parts / name).replace(draft / name)
                        layout = {"files": names, "sliced": sliced, "whole": whole}
                        (draft / SHARDS).write_text(json.dumps(layout), encoding="utf-8")
                        _complete(draft, step, content, dict(zip(names, entries, strict=True)))
                    prune(self.folder, content.state)
        finally:
            if world.first:
                shutil.rmtree(parts, ignore_errors=True)

    def load(self, until: int | None = None) -> Checkpoint | None:
        """Return the newest undamaged checkpoint: the first process chooses it, all read it.

        Args:
            until: the last step that will do, if the checkpoint is to be a good one (None: the
                newest of all)

        Raises:
            RunError: another process cannot read what the first one could.
        """
        found: Checkpoint | None = None
        with self.world.agreed():
            if self.world.first:
                tidy(self.folder)
                found, remarks = load(self.folder, until)
                self.world.say(*remarks)
        step = self.world.broadcast(found.state["step"] if found else None)
        with self.world.agreed():
            if step is not None and not self.world.first:
                place = place_of(self.folder, step)
                try:
                    found = read(place)
                except DAMAGE as error:
                    raise RunError(
                        f"cannot read checkpoint {place} on this machine: {error}"
                    ) from error
        return found

    def drop_ruined(self, until: int) -> None:
        """Remove the checkpoints after a step, and those before that are not good."""
        for place in places(self.folder) if self.world.first else ():
            if not is_good(place, until):
                shutil.rmtree(place, ignore_errors=True)
