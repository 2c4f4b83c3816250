"""What is measured of a model while it is trained, and after it."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from vitlab.data.loading.batches import TrainingBatches
from vitlab.data.loading.cache import shows
from vitlab.data.loading.loader import choose_workers, deaths_explained, loader
from vitlab.data.sources.source import Source, Subset
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DataError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.metrics import curve_point
from vitlab.evaluation.predictions import Predictions, predict
from vitlab.evaluation.probes.watching import Probe
from vitlab.models.config import ModelConfig
from vitlab.models.model import Model
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training.plan import batches_of, step_seed
from vitlab.training.saving.state import State, means
from vitlab.training.step.trainer import Trainer

MOST = 1024  # images
AT_ONCE = 64  # images per pass; fewer where they are large
PIXELS = 64 * 224 * 224
ALWAYS = 5  # damaged images that end no run, unless none may be

Damage = list[tuple[int, str]]


@dataclass
class Observer:
    """Measures the evaluated weights of a run, and counts the images that are damaged.

    In fp32, whatever the run trains in, so that `vitlab evaluate` finds the same figures.

    Attributes:
        state: where the run stands
        host: where and how
        world: this process among those that share every batch
        device: where to compute
        held_out: images that the learning curve is measured on
        images: number of all images, of which `host.max_bad` may be damaged
        tested: number of images that the run is tested on at its end
        on: what these images are, `validation` or `test`, as the journal calls their lines
        probe: what else is measured at each evaluation
        own: measures a pretext task, which has no labels to test on
        told: messages about the probe's damaged images
        last: the predictions of the latest measurement, until a step is taken
    """

    state: State
    host: Host
    world: World
    device: torch.device
    held_out: Source
    images: int
    tested: int
    on: str = "test"
    probe: Probe | None = None
    own: "HeldOut | None" = None
    told: list[str] = field(default_factory=list)
    last: Predictions | None = None

    def measure(self) -> dict[str, float]:
        """Return the figures of a point of the learning curve; the first process has them all."""
        if self.own is not None:
            point, bad = self.own.measure() if self.world.first else ({}, [])
            self.note_damage(bad)
            return point | self._probed()
        self.last = self.predict(self.held_out)
        point = {}
        if self.world.first:
            point = curve_point(self.last.probabilities, self.last.labels)
        return point | self._probed()

    def known(self, source: Source) -> Predictions | None:
        """Return the predictions of the evaluated weights for images, if they were just made."""
        same = self.last is not None and shows(self.held_out, source, self.state.model.config)
        return self.last if same else None

    def predict(
        self, source: Source, model: Model | None = None, *, logits: bool = False
    ) -> Predictions:
        """Return the predictions of the evaluated weights; damaged images count as in training.

        With several processes, only the first gets the probabilities.

        Raises:
            WorkerDiedError: a data-loading worker died.
            DataError: too many images are damaged.
        """
        predictions = predict(
            model or plain(self.state.evaluated),
            source,
            Compute(self.device, "fp32", "plain", self.host.workers, self.world.local_size),
            logits=logits,
            world=self.world,
        )
        self.note_damage(list(predictions.bad.items()))
        return predictions

    def note_damage(self, bad: list[tuple[int, str]]) -> None:
        """Report damaged images, each once, and refuse too many of them.

        Raises:
            DataError: there are more than `host.max_bad` allows.
        """
        noted, limit = self.state.tally.bad, self.host.max_bad
        for _, message in bad:
            if message not in noted:
                noted.append(message)
                self.world.say(f"skipped: {message}")
        most = max(limit if limit >= 1 else limit * self.images, ALWAYS * (limit > 0))
        if len(noted) > most:
            given = f"{limit:.0f}" if limit >= 1 else f"{100 * limit:g}%"
            raise self.world.shared(
                DataError(
                    f"{len(noted)} of {self.images:,} images are damaged, more than --max-bad "
                    f"{given} allows: repair them and start again with another --out, or leave "
                    f"them out with --resume --max-bad {2 * len(noted)}"
                )
            )

    def _probed(self) -> dict[str, float]:
        """Measure the probe, if there is one, and tell the user."""
        if self.probe is None:
            return {}
        accuracy, bad = self.probe.measure(
            plain(self.state.evaluated),
            self.world,
            device=self.device,
            workers=self.host.workers,
        )
        for message in bad:
            if message not in self.told:
                self.told.append(message)
                self.world.say(f"skipped by the probe: {message}")
        self.world.say(
            f"{self.probe.name} on {self.probe.title} after step {self.state.step:,}: "
            f"{accuracy:.1%}"
        )
        return {self.probe.key: accuracy}


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
