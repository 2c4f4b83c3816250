"""Who writes a run's checkpoints: the first process, or all of them where the model is sharded."""

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitlab.distributed.parallel import is_sharded
from vitlab.distributed.world import World
from vitlab.training.saving import checkpoint
from vitlab.training.saving import sharded_checkpoints as shards
from vitlab.training.saving.checkpoint import Checkpoint
from vitlab.training.saving.state import State


@dataclass
class Saver:
    """Writes checkpoints and finds them again.

    Attributes:
        world: this process among those of the run
        folder: the run's folder of checkpoints
        every: seconds between two checkpoints
        pending: the checkpoint of a sharded model that is being written while training goes on
    """

    world: World
    folder: Path
    every: float
    pending: shards.Saving | None = None
    last: float = field(default_factory=time.monotonic)

    @property
    def due(self) -> bool:
        """Whether it is time for another checkpoint."""
        return time.monotonic() - self.last >= self.every

    @property
    def written(self) -> bool:
        """Whether this process has written its part of the pending checkpoint."""
        return self.pending is not None and self.pending.written

    def save(self, state: State, journal: bytes | None = None) -> None:
        """Save a checkpoint; all processes call this at the same step.

        Args:
            state: where the run stands
            journal: the content of metrics.jsonl

        Raises:
            DiskError: the disk is full or refuses; every earlier checkpoint is left as it was.
        """
        if is_sharded(state.model):
            self.finish()
            content = replace(state.checkpoint(), journal=journal)
            self.pending = shards.start(self.world, self.folder, state.step, content)
        else:
            with self.world.agreed():
                if self.world.first:
                    content = replace(state.checkpoint(), journal=journal)
                    checkpoint.save(self.folder, state.step, content)
        self.last = time.monotonic()

    def finish(self) -> None:
        """Complete the pending checkpoint, if there is one.

        Raises:
            DiskError: as `save`.
        """
        pending, self.pending = self.pending, None
        if pending:
            pending.finish()

    def load(self, until: int | None = None) -> Checkpoint | None:
        """Return the newest undamaged checkpoint: the first process chooses it, all read it.

        Args:
            until: the last step that will do, if the checkpoint is to be a good one (None: the
                newest of all)

        Raises:
            RunError: another process cannot read what the first one could.
        """
        found: Checkpoint | None = None
        if self.world.first:
            checkpoint.tidy(self.folder)
            found, remarks = checkpoint.load(self.folder, until)
            for remark in remarks:
                self.world.say(remark)
        step = self.world.broadcast(found.state["step"] if found else None)
        with self.world.agreed():
            if step is not None and not self.world.first:
                found = checkpoint.read_chosen(checkpoint.place_of(self.folder, step))
        return found

    def drop_ruined(self, until: int) -> None:
        """Remove the checkpoints after a step, and those before that are not good."""
        for place in checkpoint.places(self.folder) if self.world.first else ():
            if not checkpoint.is_good(place, until):
                shutil.rmtree(place, ignore_errors=True)
