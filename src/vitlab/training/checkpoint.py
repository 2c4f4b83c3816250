"""Checkpoints that are whole or not there: safetensors, JSON and a manifest of checksums.

Nothing here unpickles. A checkpoint is staged beside its place, synced and renamed; its manifest
holds the size and sha256 of every file, and one that does not match is passed over.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlab.files import sha256, staged_folder

TENSORS, STATE, MANIFEST = "state.safetensors", "state.json", "manifest.json"
KEEP = 2  # the newest may turn out damaged


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
    place = folder / f"step-{step:09d}"
    with staged_folder(place) as draft:
        save_file(
            {k: t.detach().contiguous() for k, t in checkpoint.tensors.items()}, draft / TENSORS
        )
        (draft / STATE).write_text(json.dumps(checkpoint.state), encoding="utf-8")
        files = {
            name: {"bytes": (draft / name).stat().st_size, "sha256": sha256(draft / name)}
            for name in (TENSORS, STATE)
        }
        manifest = {"step": step, "files": files}
        (draft / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for old in _places(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    return place


def load(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, if there is one, and remarks on those that were not."""
    remarks: list[str] = []
    for place in _places(folder):
        try:
            return _read(place), remarks
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            remarks.append(f"checkpoint {place} is damaged and was passed over: {error}")
    return None, remarks


def tidy(folder: Path) -> None:
    """Remove drafts that a killed process left."""
    for draft in folder.glob(".step-*"):
        shutil.rmtree(draft, ignore_errors=True)


def _read(place: Path) -> Checkpoint:
    manifest = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    for name in (TENSORS, STATE):
        want = manifest["files"][name]
        if (place / name).stat().st_size != want["bytes"] or sha256(place / name) != want["sha256"]:
            raise ValueError(f"{name} does not match its checksum")
    state = json.loads((place / STATE).read_text(encoding="utf-8"))
    tensors = load_file(place / TENSORS)
    return Checkpoint({name: tensor.clone() for name, tensor in tensors.items()}, state)


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
