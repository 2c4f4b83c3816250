"""Checkpoints that are whole or not there: safetensors, JSON and a manifest of checksums.

Nothing here unpickles. A checkpoint is staged beside its place, synced and renamed; its manifest
holds the size and sha256 of every file, and one that does not match is passed over.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlab.files import sha256, staged_folder

TENSORS, STATE, MANIFEST = "state.safetensors", "state.json", "manifest.json"
SHARDS = "shards.json"  # of a checkpoint that many processes wrote (shards.py)
KEEP = 2  # the newest may turn out damaged
DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to go on: tensors by name, and everything else as JSON can hold it."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]


def save(folder: Path, step: int, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint of a step into a run's folder of checkpoints, and drop older ones.

    Raises:
        ValueError: the disk is full or refuses; every earlier checkpoint is left as it was.
    """
    place = place_of(folder, step)
    with staged_folder(place) as draft:
        save_file(
            {k: t.detach().contiguous() for k, t in checkpoint.tensors.items()}, draft / TENSORS
        )
        (draft / STATE).write_text(json.dumps(checkpoint.state), encoding="utf-8")
        write_manifest(draft, step, {name: entry(draft / name) for name in (TENSORS, STATE)})
    prune(folder)
    return place


def place_of(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is kept."""
    return folder / f"step-{step:09d}"


def entry(file: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"bytes": file.stat().st_size, "sha256": sha256(file)}


def write_manifest(draft: Path, step: int, files: dict[str, dict[str, Any]]) -> None:
    """The sign that a checkpoint is complete, written last."""
    text = json.dumps({"step": step, "files": files}, indent=1)
    (draft / MANIFEST).write_text(text, encoding="utf-8")


def prune(folder: Path) -> None:
    """Drop all but the newest checkpoints."""
    for old in _places(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, if there is one, and remarks on those that were not."""
    remarks: list[str] = []
    for place in _places(folder):
        try:
            return read(place), remarks
        except DAMAGE as error:
            remarks.append(f"checkpoint {place} is damaged and was passed over: {error}")
    return None, remarks


def tidy(folder: Path) -> None:
    """Remove drafts that a killed process left."""
    for draft in folder.glob(".step-*"):
        shutil.rmtree(draft, ignore_errors=True)


def read(place: Path) -> Checkpoint:
    """One checkpoint; a sharded one is put together.

    Raises:
        One of `DAMAGE`: something is missing or not what the manifest says.
    """
    files = json.loads((place / MANIFEST).read_text(encoding="utf-8"))["files"]
    for name, want in files.items():
        if Path(name).name != name:
            raise ValueError(f"{name!r} is no name of a file")
        if (place / name).stat().st_size != want["bytes"] or sha256(place / name) != want["sha256"]:
            raise ValueError(f"{name} does not match its checksum")
    state = json.loads((place / STATE).read_text(encoding="utf-8"))
    if SHARDS in files:
        return Checkpoint(_join(place, files), state)
    tensors = load_file(place / TENSORS)
    return Checkpoint({name: tensor.clone() for name, tensor in tensors.items()}, state)


def _join(place: Path, files: dict[str, Any]) -> dict[str, Tensor]:
    """The tensors of a sharded checkpoint: slices along the first dimension, behind one another."""
    layout = json.loads((place / SHARDS).read_text(encoding="utf-8"))
    if not set(layout["files"]) <= set(files):
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
                raise ValueError(f"the slices of {name} do not make up {shape}")
    return tensors


def _places(folder: Path) -> list[Path]:
    """Checkpoints with a manifest, newest first."""
    return sorted((file.parent for file in folder.glob(f"step-*/{MANIFEST}")), reverse=True)


def flatten(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names under a prefix, `model.` say."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def pick(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `flatten` put under a prefix."""
    return dict(_under(prefix, tensors))


def _under(prefix: str, tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}."):
            yield name.removeprefix(f"{prefix}."), tensor
