"""Checkpoints of which every process writes its own slices, while training goes on.

The slices are copied to the CPU at the step; a thread writes, syncs and checksums them in a folder
beside the checkpoint's place. When all processes are done, the first one moves the files into the
checkpoint's draft, writes the manifest last and renames the draft, so that whatever a killed run
leaves is never a checkpoint. The folder must be on a file system that all machines see.
"""

import json
import shutil
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from vitlab.distributed.world import World
from vitlab.errors import UserError
from vitlab.files import explained, staged_folder, sync
from vitlab.optim.sliced import is_sliced, local
from vitlab.training.saving.checkpoint import (
    SHARDS,
    Checkpoint,
    entry,
    place_of,
    prune,
    write_manifest,
    write_values,
)


@dataclass
class Saving:
    """A checkpoint being written: begun by `start`, completed by `finish`, in all processes."""

    world: World
    folder: Path
    step: int
    state: dict[str, Any]
    layout: dict[str, Any]
    journal: bytes | None = None
    thread: threading.Thread = field(init=False)
    entry: dict[str, Any] = field(default_factory=dict)
    error: UserError | None = None

    @property
    def parts(self) -> Path:
        """Where the slices wait for each other; `checkpoint.tidy` would remove it."""
        return self.folder / f".step-{self.step:09d}.parts"

    @property
    def file(self) -> str:
        """The name of the file with this process's slices."""
        return name_of(self.world.rank, self.world.size)

    @property
    def written(self) -> bool:
        """Whether this process has written its slices, or failed to."""
        return not self.thread.is_alive()

    def write(self, tensors: dict[str, Tensor]) -> None:
        """Write this process's slices: the thread's work."""
        file = self.parts / self.file
        try:
            with explained(file):
                save_file(tensors, file)
                sync(file)
                self.entry = entry(file)
        except UserError as error:
            self.error = error

    def finish(self) -> None:
        """Wait for all slices and turn them into a checkpoint.

        Raises:
            DiskError: a disk is full or refuses; every earlier checkpoint is left as it was.
        """
        self.thread.join()
        try:
            with self.world.agreed():
                if self.error:
                    raise self.error
            entries = self.world.gather(self.entry)
            with self.world.agreed():
                if self.world.first:
                    self._publish(dict(zip(self.layout["files"], entries, strict=True)))
        finally:
            if self.world.first:
                shutil.rmtree(self.parts, ignore_errors=True)

    def _publish(self, files: dict[str, dict[str, Any]]) -> None:
        with staged_folder(place_of(self.folder, self.step)) as draft:
            for name in files:
                (self.parts / name).replace(draft / name)
            (draft / SHARDS).write_text(json.dumps(self.layout), encoding="utf-8")
            for name in (SHARDS, *write_values(draft, self.state, self.journal)):
                files[name] = entry(draft / name)
            write_manifest(draft, self.step, files)
        prune(self.folder, self.state)


def start(world: World, folder: Path, step: int, checkpoint: Checkpoint) -> Saving:
    """Copy the slices and begin to write them; training may go on at once.

    Raises:
        DiskError: the folder cannot be created.
    """
    sliced = {k: t for k, t in checkpoint.tensors.items() if is_sliced(t)}
    layout = {
        "files": [name_of(rank, world.size) for rank in range(world.size)],
        "sliced": {name: list(tensor.shape) for name, tensor in sliced.items()},
        "whole": [name for name in checkpoint.tensors if name not in sliced],
    }
    state = json.loads(json.dumps(checkpoint.state))
    saving = Saving(world, folder, step, state, layout, checkpoint.journal)
    with world.agreed(), explained(saving.parts):
        if world.first:
            shutil.rmtree(saving.parts, ignore_errors=True)
            saving.parts.mkdir(parents=True)
    own = checkpoint.tensors if world.first else sliced
    copies = {
        name: local(tensor).detach().to("cpu", copy=True).contiguous()
        for name, tensor in own.items()
    }
    saving.thread = threading.Thread(target=saving.write, args=(copies,), daemon=True)
    saving.thread.start()
    return saving


def name_of(rank: int, size: int) -> str:
    """Return the file name of a process's slices."""
    return f"state-{rank + 1:05d}-of-{size:05d}.safetensors"
