"""Measuring a model while it is trained, and after it; counting damaged images."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.cache import shows
from vitlab.data.loading.loader import choose_workers, deaths_explained, loader
from vitlab.data.loading.views import View
from vitlab.distributed.parallel import plain
from vitlab.distributed.world import ALONE
from vitlab.errors import DataError
from vitlab.evaluation.average_precision import measure_boxes
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.infer import Probabilities, predict
from vitlab.evaluation.mask_figures import Tested, measure
from vitlab.evaluation.metrics import MAIN, METRICS, curve_point
from vitlab.evaluation.regression import measure_targets
from vitlab.models.heads.detect import Detector
from vitlab.models.heads.regress import Regressor
from vitlab.models.heads.segment import Segmenter
from vitlab.models.model import Model
from vitlab.objectives.feature_health import feature_health, lidar
from vitlab.on_device import widest
from vitlab.training.plan import batches_of
from vitlab.training.resolve import Task
from vitlab.training.state import RunState, means
from vitlab.training.step import Trainer, step_seed

MOST = 1024  # images without labels that the loss is measured on, evenly spaced
CROPPED = 256  # of these, those that LiDAR looks at crop by crop
CROPS = 8  # of each, at least
AT_ONCE = 64  # images per pass; fewer where they are large
PIXELS = 64 * 224 * 224
ALWAYS = 5  # damaged images that end no run, unless none may be

Damage = list[tuple[int, str]]


def bearable(limit: float, images: int) -> float:
    """Return how many of some images may be damaged by `Host.max_bad`, a share or a number."""
    return max(limit if limit >= 1 else limit * images, ALWAYS * (limit > 0))


@dataclass
class Observer:
    """Measures the evaluated weights of a run, and counts the images that are damaged.

    In fp32, whatever the run trains in, so that `vitlab evaluate` finds the same figures.

    Attributes:
        task: the run
        state: where it stands
        trainer: computes losses of a pretext task; it has the device and the processes
        on: what the learning curve is measured on, as the journal calls its lines: `validation` or
            `test`; `held-out` images of a pretext task, which has no labels to test on
        held_out: these images
        metric: their figure by which weights are compared
        scored: whether each point of the curve has it
        last: the predictions of the latest measurement
        point: its figures; both until a step is taken
        told: messages about the probe's damaged images
    """

    task: Task
    state: RunState
    trainer: Trainer
    last: Probabilities | None = None
    point: dict[str, float] | None = None
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Choose the images."""
        splits, how = self.task.splits, self.task.recipe.pretext
        self.unlabeled = how.unlabeled
        chosen, self.on = splits.validation, "validation"
        if not how.labeled or not chosen:
            chosen, self.on = splits.test, "held-out" if self.unlabeled else "test"
        if self.unlabeled and len(chosen) > MOST:
            chosen = chosen.take(np.linspace(0, len(chosen) - 1, num=MOST, dtype=np.int64))
        kind: str = how.task if how.labeled else "unlabeled"
        if not how.unlabeled and chosen.target.several:
            kind = "several"
        watched, self.chosen = self.task.watched, chosen
        self.metric = METRICS[watched.key if watched else MAIN[kind]]
        # what is found in images is measured where it decides
        self.scored = not how.unlabeled or (how.annotated and self.task.recipe.patience > 0)
        self.held_out = self.task.opened.cached(chosen, self.task.config.channels)
        world, workers = self.trainer.world, self.task.host.workers
        self.world, self.device = world, self.trainer.device
        self.compute = Compute(self.device, "fp32", "plain", workers, world.local_size)

    def measure(self) -> dict[str, float]:
        """Return the figures of a point of the learning curve, with those of the probe."""
        self.point = self.figures() | self._probed()
        return self.point

    def forget(self) -> None:
        """Forget what was measured: the weights are about to change."""
        self.last = self.point = None

    def figures(self) -> dict[str, float]:
        """Return the figures of the held-out images; the first process has them all."""
        point: dict[str, float] = {}
        if self.unlabeled:
            bad: Damage = []
            with self.world.agreed():
                if self.world.first:
                    point, bad = self._losses()
                    point |= self._crops_told_apart()
            self.note_damage(bad)
            point |= self._health()
            with self.world.agreed():
                if self.scored and self.world.first:
                    found = self.test(self.chosen, resamples=0)[0][self.metric.name]
                    point[self.metric.name] = math.nan if found is None else found
        else:
            self.last = self.predict(self.held_out)
            with self.world.agreed():
                if self.world.first:
                    point = curve_point(self.last.probabilities, self.last.labels)
        return point

    def _losses(self) -> tuple[dict[str, float], Damage]:
        """Return the means of a task's loss and figures, and the damaged images.

        With the same crops, colors and masks each time. The weights are those that learn, also
        where an average or a teacher is saved: the task's own modules go with them.

        Raises:
            WorkerDiedError: a data-loading worker died.
        """
        trainer, seed = self.trainer, self.task.recipe.seed
        names = ("loss", *trainer.objective.figures)
        sums, images, bad = torch.zeros(len(names), dtype=torch.float64), 0, Damage()
        network = trainer.engine.plain.eval()
        batches = self._batches(self.held_out, len(self.held_out) // self._at_once)
        for k, batch in enumerate(batches):
            bad += batch.bad
            if not len(batch):
                continue
            generator = torch.Generator(self.device).manual_seed(step_seed(seed, k))
            with torch.no_grad(), trainer.engine.computing():
                loss, metrics = network(trainer.augmented(batch), generator)
            found = [loss * len(batch), *(metrics[name] for name in names[1:])]
            sums += torch.stack([each.to(widest(self.device)) for each in found]).cpu()
            images += len(batch)
        return means(dict(zip(names, sums.tolist(), strict=True)) | {"images": float(images)}), bad

    @property
    def _at_once(self) -> int:
        """Images per pass, as many in each: fewer are left out than there are passes."""
        count, most = len(self.held_out), max(1, min(AT_ONCE, PIXELS // self.task.config.area))
        return count // -(-count // most)

    def _batches(
        self, source: Images, passes: int, views: tuple[View, ...] | None = None
    ) -> Iterator[Batch]:
        """Yield images as they are learned, so many passes; of these views alone, if any."""
        recipe = replace(self.task.recipe, batch=self._at_once)
        batches = batches_of(recipe, source, self.task.config, ALONE, self.task.order)
        batches = replace(batches, views=views or batches.views)
        workers = choose_workers(self.held_out, self.task.host.workers)
        with deaths_explained():
            yield from loader(batches, range(passes), workers)

    def _crops_told_apart(self) -> dict[str, float]:
        """Return the LiDAR of the evaluated weights, if the task compares crops of an image."""
        trainer, whole = self.trainer, self.task.config.size
        # the small ones, which come last, are not made
        full = tuple(takewhile(lambda view: view.size == whole, trainer.views))
        size = self._at_once
        count = min(CROPPED, len(self.held_out)) // size  # passes over all images
        if not full or count * size < 2:
            return {}
        chosen = np.linspace(0, len(self.held_out) - 1, num=count * size, dtype=np.int64)
        model, found = plain(self.state.evaluated).eval(), dict[int, list[torch.Tensor]]()
        times = max(2, -(-CROPS // len(full)))
        batches = self._batches(self.held_out.take(chosen), times * count, full)
        for batch in filter(len, batches):
            moved = trainer.augmented(batch)
            for view in (moved, *moved.views):
                with torch.no_grad():
                    features = model.features(view.images).cpu()
                for index, each in zip(batch.indices.tolist(), features, strict=True):
                    found.setdefault(index, []).append(each)
        least = min(map(len, found.values()), default=0)  # with `repeats` some are drawn more often
        if len(found) < 2 or least < 2:
            return {}
        crops = [torch.stack(each[:least]) for each in found.values()]
        return {"lidar": lidar(torch.stack(crops).numpy())}

    def _health(self) -> dict[str, float]:
        """Return what the features of the held-out images are worth without labels."""
        if self.task.recipe.pretext.task == "tokenizer":  # which has codes
            return {}
        model = plain(self.state.evaluated)
        found = features_in_memory(model, self.held_out, self.compute, world=self.world)
        return feature_health(found.values) if len(found.values) > 1 else {}

    @property
    def answering(self) -> Detector | Regressor | Segmenter | None:
        """The evaluated weights with the head of a task that finds something in images."""
        own, labels = self.state.head, self.task.splits.train.target
        return None if own is None else own.answering(plain(self.state.evaluated), labels)

    def test(
        self, source: Images, resamples: int | None = None
    ) -> tuple[dict[str, Any], list[str], Tested | None]:
        """Return the figures of what is found in images, and messages about damaged ones.

        Of pixels then comes what the report shows of them; of a task that finds nothing, nothing.
        Without resamples the slow intervals, those of boxes, are left out.
        """
        compute = self.compute
        most = self.task.host.effort.resamples
        match self.answering:
            case Detector() as found:
                count = most if resamples is None else resamples
                return *measure_boxes(found, source, compute, count), None
            case Regressor() as found:
                return *measure_targets(found, source, compute, most), None
            case Segmenter() as found:
                tested = measure(found, source, compute, most)
                return tested.figures, [text for _, text in tested.bad], tested
        return {}, [], None

    def known(self, source: Images) -> Probabilities | None:
        """Return the predictions of the evaluated weights for images, if they were just made."""
        return self.last if shows(self.held_out, source) else None

    def predict(
        self, source: Images, model: Model | None = None, *, logits: bool = False
    ) -> Probabilities:
        """Return the predictions of the evaluated weights; damaged images count as in training.

        With several processes, only the first gets the probabilities.

        Raises:
            WorkerDiedError: a data-loading worker died.
            DataError: too many images are damaged.
        """
        predictions = predict(
            model or plain(self.state.evaluated),
            source,
            self.compute,
            logits=logits,
            world=self.world,
        )
        self.note_damage(list(predictions.bad.items()))
        return predictions

    def note_damage(self, bad: Damage) -> None:
        """Report damaged images, each once, and refuse too many of them.

        Raises:
            DataError: there are more than `host.max_bad` allows.
        """
        noted, limit = self.state.tally.bad, self.task.host.max_bad
        images = sum(map(len, self.task.splits.parts.values()))
        for _, message in bad:
            if noted.note(message):
                self.world.say(f"skipped: {message}")
        if len(noted) > bearable(limit, images):
            given = f"{limit:.0f}" if limit >= 1 else f"{100 * limit:g}%"
            raise self.world.shared(
                DataError(
                    f"{len(noted)} of {images:,} images are damaged, more than --max-bad {given} "
                    "allows: repair them and start again with another --out, or leave them out "
                    f"with --resume --max-bad {2 * len(noted)}"
                )
            )

    def _probed(self) -> dict[str, float]:
        """Measure the probe, if there is one, and tell the user."""
        if (probe := self.task.probe) is None:
            return {}
        accuracy, bad = probe.measure(
            plain(self.state.evaluated),
            self.world,
            device=self.device,
            workers=self.task.host.workers,
        )
        for message in bad:
            if message not in self.told:
                self.told.append(message)
                self.world.say(f"skipped by the probe: {message}")
        self.world.say(
            f"{probe.name} on {probe.title} after step {self.state.step:,}: {accuracy:.1%}"
        )
        return {probe.key: accuracy}
