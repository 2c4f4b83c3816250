"""The one training loop: batches in, steps taken, everything written down."""

import math
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from vitlab.data.loading.batches import Batch, TrainingBatches
from vitlab.data.loading.loader import choose_workers, training_loader
from vitlab.data.loading.order import steps
from vitlab.data.loading.workers import WorkerDiedError, deaths_explained, deaths_reported_late
from vitlab.data.sources.source import Source
from vitlab.distributed import sharded_checkpoints as shards
from vitlab.distributed.parallel import is_sharded, plain, replicated
from vitlab.distributed.together import look
from vitlab.distributed.world import ALONE, World, whole
from vitlab.errors import UserError
from vitlab.evaluation.metrics import curve_point
from vitlab.evaluation.predictions import Predictions
from vitlab.models.create import Model
from vitlab.objectives.classify import Classify
from vitlab.optim.optimizers import set_rate
from vitlab.optim.schedule import learning_rate
from vitlab.progress import Meter
from vitlab.recipes.decisions import Decisions
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs import RunFolder
from vitlab.training import budget, checkpoint
from vitlab.training.rehearsal import rehearse
from vitlab.training.state import State
from vitlab.training.step.guard import Figures, Guard
from vitlab.training.step.learner import Learner
from vitlab.training.step.precision import Engine
from vitlab.training.step.recompute import recomputed
from vitlab.training.stop import Interrupted, Stop
from vitlab.training.tracking import Tracker
from vitlab.units import seconds

LINES = 500  # of the journal over a whole run


@dataclass
class Loop:
    """What a run works with; `run` takes the steps that are left.

    Attributes:
        recipe: resolved, with the whole model, and with what the run decided by itself
        host: where and how
        state: where the run stands
        source: training images
        test: what the learning curve is measured on
        images: all the data's images, of which `host.max_bad` may be damaged
        folder: the run's folder
        world: this process among those that share every batch
    """

    recipe: Recipe
    host: Host
    state: State
    source: Source
    test: Source
    images: int
    folder: RunFolder
    world: World = ALONE

    def __post_init__(self) -> None:
        """Work out what the recipe implies."""
        self.device = next(self.state.model.parameters()).device
        self.journal = self.folder.journal
        self.saving: shards.Saving | None = None  # of a sharded model, while training goes on
        self.workers = choose_workers(self.source, self.host.workers, self.world.local_size)
        aim, model = self.recipe.objective, self.state.model
        objective = Classify(aim.label_smoothing, aim.loss, aim.bce_threshold)
        objective.check(self.source.labels)
        compiled = self.host.compile
        self.engine = Engine(
            model,
            self.recipe.precision,
            self.device.type == "cuda" if compiled == "auto" else compiled == "yes",
            lambda network: replicated(network, self.world),
        )
        self.learner = Learner(model, self.engine, objective, self.recipe, self.world)
        self.guard = Guard(self.state.optimizer, self.device, False if is_sharded(model) else None)
        self.asked = self.recipe  # before decisions
        self.settle(self.folder.decisions)

    def settle(self, decisions: Decisions) -> None:
        """Work out what the recipe and the decisions made imply."""
        self.decided = decisions
        self.recipe = decisions.applied_to(self.asked, len(self.source))
        self.epoch = len(self.source) / self.recipe.batch  # steps an epoch, a fraction
        length = steps(self.recipe.epochs, len(self.source), self.recipe.batch)
        longest = self.recipe.steps or length
        self.every = max(1, longest // LINES)
        self.total = decisions.total_steps(self.state.step) if decisions.plan else longest
        self.tests = test_steps(self.total, self.recipe.test_every * self.epoch)

    def run(self) -> None:
        """Train to the end, or until asked to stop.

        Raises:
            ValueError: a non-finite loss, too many damaged images, a disk that refuses, a worker
                process that died.
            Interrupted: SIGINT or SIGTERM came, and the state is saved.
        """
        self.settle(self.decided)  # for the step that the state stands at by now
        self.pacer = budget.Pacer(seconds(self.recipe.budget), self.state.spent)
        devices = [self.device] if self.device.type == "cuda" else []
        track = self.host.track if self.world.first else "no"
        with (
            Stop() as stop,
            closing(Tracker(track, self.folder, self.state.step)) as self.tracker,
            torch.random.fork_rng(devices=devices),
            recomputed(self.engine.plain, self.host.checkpoint_activations),
        ):
            stop.patient = self.world.size > 1
            rehearse(self, stop)
            with self.engine.settle():
                try:
                    self._take_steps(stop)
                except WorkerDiedError as error:  # between two steps
                    done = "--resume goes on"
                    if self.world.size == 1:  # else the others wait within the step
                        self.save()
                        done = f"saved after step {self.state.step:,}, {done}"
                    raise UserError(f"{error}; {done}") from error
            if self.recipe.patience:
                self._keep_best()
            self.save()
            self._finish_saving()

    def _take_steps(self, stop: Stop) -> None:
        state, saved = self.state, time.monotonic()
        if state.best.worn_out(self.recipe.patience):
            return
        with (
            Meter(self.total, state.step, shown=self.world.first) as meter,
            closing(self.batches(self.total)) as batches,
        ):
            for batch in batches:
                start = time.perf_counter()
                note = self._step(batch)
                state.seconds += time.perf_counter() - start
                meter.show(state.step, note)
                if state.step in self.tests:
                    self._look_at_test()
                due = time.monotonic() - saved >= self.host.checkpoint_every
                written = self.saving is not None and self.saving.ready
                save, last, busy = self.world.any(stop.asked or due, stop.asked, not written)
                if self.saving and not busy:
                    self._finish_saving()
                if save or last:
                    self.save()
                    saved = time.monotonic()
                if last:
                    self._finish_saving()
                    raise self._interrupted()
                if self.decided.plan:
                    self._keep_to_budget()
                    meter.total = self.total
                if state.step >= self.total or state.best.worn_out(self.recipe.patience):
                    break

    def _keep_to_budget(self) -> None:
        """Cut the plan where the machine has become slower than it was when it was made."""
        step, now = self.state.step, self.total
        planned = self.decided.total_steps(step)
        looks = self.recipe.test_every * self.epoch
        total = self.pacer.check(planned, step, looks)
        if total < planned:
            plan = (*self.decided.plan, (step, total))
            self.settle(replace(self.decided, plan=plan))
            self.folder.decide(self.decided)
            self.world.say(f"slower than measured: {total:,} instead of {planned:,} steps")
        elif planned != now:  # a cut that was made before this run was resumed
            self.settle(self.decided)

    def _keep_best(self) -> None:
        """What is tested and saved is what did best on the validation images."""
        best = self.state.best
        best.give_to(self.state.kept)
        if self.state.step < self.total:
            looks = f"no gain in {self.recipe.patience} looks"
            self.world.say(f"{looks}: ended after step {self.state.step:,} of {self.total:,}")
        share = f"{best.accuracy:.1%} of validation images"
        self.world.say(f"kept: the weights of step {best.step:,}, {share}")

    def batches(self, stop: int) -> Generator[Batch]:
        """Batches from where the run stands to `stop`.

        Raises:
            WorkerDiedError: a process that decodes images is gone.
        """
        batches = TrainingBatches(
            self.source,
            self.state.model.config,
            self.recipe.augment,
            self.recipe.seed,
            self.recipe.batch,
            self.world.rank,
            self.world.size,
        )
        loader = iter(training_loader(batches, self.state.step, stop, self.workers))
        with deaths_reported_late():
            for _ in range(self.state.step, stop):
                start = time.perf_counter()
                with deaths_explained():
                    batch = next(loader)
                self.state.seconds += time.perf_counter() - start  # this too is training
                yield whole(self.world, batch)

    def _step(self, batch: Batch) -> str:
        """One batch forward, backward, and into the weights; returns a note for the meter."""
        state, recipe = self.state, self.recipe
        for _, message in batch.bad:
            self._count_bad(message)
        seed = step_seed(recipe.seed, state.step)
        peak = recipe.optimizer.lr
        lr = learning_rate(state.step, self.total, self.epoch, peak, recipe.schedule)
        if batch.total:
            self._learn(batch, lr, seed)
        state.step += 1
        last = state.step == self.total
        if state.step % self.every == 0 or last or state.step in self.tests:
            self._account(self.guard.settle())
        images = max(1.0, state.tally["images"]) if state.tally else 1.0
        loss = state.tally.get("loss", 0.0) / images
        accuracy = state.tally.get("correct", 0.0) / images
        speed = state.seen / max(state.seconds, 1e-9)
        if state.step % self.every == 0 or last:
            line = {"kind": "train", "step": state.step, "epoch": state.step / self.epoch}
            line |= {"loss": loss, "accuracy": accuracy, "lr": lr, "images_per_second": speed}
            self._write(line)
            state.tally = {}
        return f"loss {loss:.3f}  accuracy {accuracy:.1%}  {speed:,.0f} images/s"

    def learn(self, batch: Batch, lr: float, pieces: int = 0, only_first: bool = False) -> None:
        """One batch into the weights, outside of the run's own course.

        Args:
            batch: its images
            lr: learning rate
            pieces: images at once (0: as the recipe says)
            only_first: leave the batch's other pieces out
        """
        if not batch.total:
            return
        if only_first:
            batch = whole(self.world, next(batch.pieces(pieces)))
        self._learn(batch, lr, 0, pieces)
        self._account(self.guard.settle())

    def _learn(self, batch: Batch, lr: float, seed: int, pieces: int = 0) -> None:
        state, size = self.state, self.recipe.micro_batch
        fixed = size if isinstance(size, int) else 0
        figures = self.learner.gradient(batch, pieces or fixed, seed)
        set_rate(state.optimizer, lr)
        self._account(self.guard.step(state.step + 1, batch.total, figures))
        if state.average is not None:
            state.average.update(state.model, state.step)

    def loss_of(self, piece: Batch) -> torch.Tensor:
        """The loss of some images, with nothing learned."""
        return self.learner.loss_of(piece)

    def _account(self, known: list[Figures]) -> None:
        """Add what is known of steps to the tally; one that went wrong ends the run."""
        state = self.state
        for each in known:
            if each.fault:
                raise self.world.error(self._blown_up(each.fault, each.step))
            new = {"loss": each.loss, "correct": each.correct, "images": each.images}
            for key, value in new.items():
                state.tally[key] = state.tally.get(key, 0.0) + value
            state.seen += each.images

    def _blown_up(self, what: str, step: int) -> str:
        places = sorted((self.folder.checkpoints).glob("step-*"))
        kept = f"the last good checkpoint is {places[-1].name}" if places else "no checkpoint yet"
        hint = "a lower --lr or a longer --warmup may help"
        return f"the {what} is not finite at step {step} ({kept}): {hint}"

    def _count_bad(self, message: str) -> None:
        """Take note of a damaged image; its message names it."""
        bad = self.state.bad
        if message not in bad:
            bad.append(message)
            self.world.say(f"skipped: {message}")
        if len(bad) > self.host.max_bad * self.images:
            raise self.world.error(
                f"{len(bad)} of {self.images:,} images are damaged, more than --max-bad "
                f"{100 * self.host.max_bad:g}% allows; the last: {message}"
            )

    def predict(self, source: Source, model: Model | None = None) -> Predictions:
        """What the kept weights say of a source; damaged images count as in training.

        Of several processes the first one gets the probabilities.
        """
        try:
            with deaths_explained():
                seen = look(
                    self.world,
                    model or plain(self.state.kept),
                    source,
                    device=self.device,
                    precision=self.recipe.precision,
                    workers=choose_workers(source, self.host.workers, self.world.local_size),
                )
        except WorkerDiedError as error:  # before the look is written down: nothing to save
            raise UserError(f"{error}; --resume goes on from the last checkpoint") from error
        for message in seen.bad.values():
            self._count_bad(message)
        return seen

    def _look_at_test(self) -> None:
        """One point of the test curve."""
        start = time.monotonic()
        seen = self.predict(self.test)
        point = curve_point(seen.probabilities, seen.labels) if self.world.first else {}
        line = {"kind": "test", "step": self.state.step, "epoch": self.state.step / self.epoch}
        self._write(line | point)
        if self.recipe.patience:
            point = self.world.tell(point)
            good = point.get("accuracy", point.get("map", 0.0))
            self.state.best.look(self.state.step, good, point["loss"], self.state.kept)
        self.pacer.looked(time.monotonic() - start)

    def _write(self, line: dict[str, Any]) -> None:
        self.journal.write(line)
        self.tracker.write(line)

    def save(self) -> None:
        """A checkpoint of the step: the first process's work, or, sharded, everyone's."""
        place, state = self.folder.checkpoints, self.state
        self._account(self.guard.settle())
        state.spent = self.pacer.spent
        with self.world.agreed():
            state.journal = self.journal.sync()
        if is_sharded(state.model):
            self._finish_saving()
            self.saving = shards.start(self.world, place, state.step, state.checkpoint())
            return
        with self.world.agreed():
            if self.world.first:
                checkpoint.save(place, state.step, state.checkpoint())

    def _finish_saving(self) -> None:
        """Make a checkpoint of what is being written, if anything is."""
        saving, self.saving = self.saving, None
        if saving:
            saving.finish()

    def _interrupted(self) -> Interrupted:
        stop = Interrupted(
            f"stopped after step {self.state.step:,} of {self.total:,}; --resume goes on"
        )
        stop.quiet = not self.world.first
        return stop


def step_seed(seed: int, step: int) -> int:
    """What the random numbers of a step come from."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def test_steps(total: int, every: float) -> set[int]:
    """After which steps to look at the test images: every so often, and at the end."""
    before = math.ceil(total / every - 0.5) - 1  # the last of these not too near the end
    return {max(1, round(k * every)) for k in range(1, before + 1)} | {total}
