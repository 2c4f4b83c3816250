"""The loss of a pretext task on images that are held out."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from vitlab.data.loading.batches import TrainingBatches
from vitlab.data.loading.loader import choose_workers, deaths_explained, loader
from vitlab.data.sources.source import Source, Subset
from vitlab.distributed.world import ALONE
from vitlab.models.config import ModelConfig
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training.plan import batches_of, step_seed
from vitlab.training.saving.state import means
from vitlab.training.step.trainer import Trainer

MOST = 1024  # images
AT_ONCE = 64  # images per pass; fewer where they are large
PIXELS = 64 * 224 * 224

Damage = list[tuple[int, str]]


def measured_on(source: Source) -> Source:
    """Return the images that the loss is measured on: all, or 1,024 of them, evenly spaced."""
    if len(source) <= MOST:
        return source
    return Subset(source, np.linspace(0, len(source) - 1, num=MOST, dtype=np.int64))


@dataclass(frozen=True)
class HeldOut:
    """Measures a task on held-out images, with the same crops, colors and masks each time.

    The weights are those that learn, also where an average or a teacher is saved: the task's own
    modules go with them.

    Attributes:
        trainer: has the model and the task
        recipe: as the images are learned
        config: of the model
        source: the images
        host: workers
    """

    trainer: Trainer
    recipe: Recipe
    config: ModelConfig
    source: Source
    host: Host

    def measure(self) -> tuple[dict[str, float], Damage]:
        """Return the means of the loss and of the task's figures, and the damaged images.

        Raises:
            WorkerDiedError: a data-loading worker died.
        """
        names = ("loss", *self.trainer.objective.figures)
        sums, images, bad = torch.zeros(len(names), dtype=torch.float64), 0, Damage()
        size = max(1, min(AT_ONCE, PIXELS // self.config.area, len(self.source)))
        workers = choose_workers(self.source, self.host.workers)
        with deaths_explained():
            count = len(self.source) // size
            for k, batch in enumerate(loader(self._batches(size), range(count), workers)):
                bad += batch.bad
                if len(batch):
                    sums += self.trainer.held_out(batch, step_seed(self.recipe.seed, k)).cpu()
                    images += len(batch)
        return means(dict(zip(names, sums.tolist(), strict=True)) | {"images": float(images)}), bad

    def _batches(self, size: int) -> TrainingBatches:
        """Return the first epoch of the images, in batches of a size of its own."""
        return batches_of(replace(self.recipe, batch=size), self.source, self.config, ALONE)
