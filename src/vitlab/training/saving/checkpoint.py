"""Checkpoints that are complete or not there: safetensors, JSON and a manifest of checksums.

Nothing here unpickles. A checkpoint is staged beside its place, synced and renamed; its manifest
holds the size and sha256 of every file, and a checkpoint that does not match it is skipped.
"""

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlab import files
from vitlab.errors import RunError
from vitlab.files import sha256, staged_folder
from vitlab.runs.recipe_file import RENAMED

TENSORS, STATE, MANIFEST = "state.safetensors", "state.json", "manifest.json"
JOURNAL = "metrics.jsonl"  # a copy of the run's, as it was then
SHARDS = "shards.json"  # of a checkpoint that several processes wrote (sharded_checkpoints.py)
KEEP = 2  # the newest may turn out to be damaged, or not to be good
DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to continue: tensors by name, and everything else as JSON values.

    `journal` is the content of metrics.jsonl; None in checkpoints of the code that kept none.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    journal: bytes | None = None


def save(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint of a step into a run's folder of checkpoints, and drop older ones.

    Raises:
        DiskError: the disk is full or refuses; every earlier checkpoint is left as it was.
    """
    place = place_of(folder, step)
    with staged_folder(place) as draft:
        save_file(
            {k: t.detach().contiguous() for k, t in checkpoint.tensors.items()}, draft / TENSORS
        )
        names = (TENSORS, *write_values(draft, checkpoint.state, checkpoint.journal))
        write_manifest(draft, step, {name: entry(draft / name) for name in names})
    prune(folder, checkpoint.state)
    return place


def place_of(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint."""
    return folder / f"step-{step:09d}"


def entry(file: Path) -> dict[str, Any]:
    """Return a file's entry in the manifest."""
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def write_values(draft: Path, state: dict[str, Any], journal: bytes | None) -> list[str]:
    """Write what a checkpoint has besides tensors; return the names of the files."""
    (draft / STATE).write_text(json.dumps(state), encoding="utf-8")
    if journal is None:
        return [STATE]
    (draft / JOURNAL).write_bytes(journal)
    return [STATE, JOURNAL]


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
        state = json.loads((place / STATE).read_text(encoding="utf-8"))
        return bool(state.get("sound", state["step"]) >= state["step"] - 1)
    except DAMAGE:
        return False


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
    """Remove drafts that a killed process left, or that could not be removed."""
    files.tidy(folder, r"step-\d+")
    for draft in folder.glob(".step-*"):  # parts of shards, and drafts as they were named before
        shutil.rmtree(draft, ignore_errors=True)


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

    Names of the code before the first release are replaced by today's (`RENAMED`).

    Raises:
        One of `DAMAGE`: something is missing, or is not what the manifest says.
    """
    listed = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["files"]
    for name, expected in listed.items():
        file = place / name
        if Path(name).name != name:
            raise ValueError(f"{name!r} is not a file name")
        if file.stat().st_size != expected["bytes"] or sha256(file) != expected["sha256"]:
            raise ValueError(f"{name} does not match its checksum")
    state = json.loads((place / STATE).read_text(encoding="utf-8"))
    if SHARDS in listed:
        tensors = _join(place, listed)
    else:
        tensors = {name: t.clone() for name, t in load_file(place / TENSORS).items()}
    return Checkpoint(
        {_today(name): tensor for name, tensor in tensors.items()},
        {_today(key): value for key, value in state.items()},
        (place / JOURNAL).read_bytes() if JOURNAL in listed else None,
    )


def read_chosen(place: Path) -> Checkpoint:
    """Return the checkpoint that the first process chose.

    Raises:
        RunError: it cannot be read here.
    """
    try:
        return read(place)
    except DAMAGE as error:
        raise RunError(f"cannot read checkpoint {place} on this machine: {error}") from error


def _today(name: str) -> str:
    first, dot, rest = name.partition(".")
    return RENAMED.get(first, first) + dot + rest


def _join(place: Path, listed: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a sharded checkpoint, whose slices are along the first dimension."""
    layout = json.loads((place / SHARDS).read_text(encoding="utf-8"))
    if not set(layout["files"]) <= set(listed):
        raise ValueError("its manifest does not list all shards")
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        shards = [
            stack.enter_context(safe_open(place / name, "pt", "cpu")) for name in layout["files"]
        ]
        tensors |= {name: shards[0].get_tensor(name).clone() for name in layout["whole"]}
        for name, shape in layout["sliced"].items():
            tensors[name] = torch.cat([shard.get_tensor(name) for shard in shards])
            if list(tensors[name].shape) != shape:
                raise ValueError(f"the slices of {name} do not add up to {shape}")
    return tensors


def flatten(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with their names under a prefix, such as `model.`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def pick(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `flatten` put under a prefix, by their own names."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}
