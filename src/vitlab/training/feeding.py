"""The batches of a session, as its workers load them."""

import time
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import dataclass

from vitlab.data.loading.batches import Batch
from vitlab.data.loading.loader import (
    Upload,
    choose_workers,
    deaths_explained,
    deaths_reported_late,
    loader,
    started,
)
from vitlab.data.sources.source import Source
from vitlab.distributed.shares import counted
from vitlab.distributed.world import World
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training.plan import batches_of
from vitlab.training.saving.state import State
from vitlab.training.stop import Interrupted, Stop


@dataclass(frozen=True)
class Feed:
    """What loads the batches of a run.

    Attributes:
        recipe: with every field of the model
        source: training images
        host: how many workers
        world: this process among those that share every batch
        stop: whether a stop was asked for
    """

    recipe: Recipe
    source: Source
    host: Host
    world: World
    stop: Stop

    def batches(self, state: State, last: int) -> Generator[Batch]:
        """Yield the batches from where the run stands to step `last`, or until asked to stop.

        The time that they take counts as training.

        Raises:
            WorkerDiedError: a data-loading worker died.
        """
        tally, world, alone = state.tally, self.world, self.world.size == 1
        batches = batches_of(self.recipe, self.source, state.model.config, world)
        upload = Upload(next(state.model.parameters()).device)
        workers = choose_workers(self.source, self.host.workers, world.local_size)
        steps = range(state.step, last)
        with deaths_reported_late():
            coming = started(loader(batches, steps, workers))
            try:
                for _ in steps:
                    start = time.perf_counter()
                    try:
                        with self.stop.at_once() if alone else nullcontext(), deaths_explained():
                            batch = upload(next(coming))
                    except Interrupted:
                        return
                    tally.seconds += time.perf_counter() - start
                    yield counted(batch, world)
            finally:
                del coming  # ends the workers, while nobody minds how
