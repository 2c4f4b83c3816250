"""The one training loop: batches in, steps taken, everything written down."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitlab.data.augment import augment
from vitlab.data.loader import Batch, TrainingBatches, choose_workers, training_loader
from vitlab.data.order import steps
from vitlab.data.sources import Source
from vitlab.device import autocast
from vitlab.evaluation.metrics import nll, top
from vitlab.evaluation.predict import Predictions
from vitlab.models.create import Model
from vitlab.objectives.classify import Classify
from vitlab.training import checkpoint, shards
from vitlab.training.distributed import ALONE, World, passes, whole
from vitlab.training.folder import CHECKPOINTS, Journal
from vitlab.training.look import look
from vitlab.training.parallel import full, is_sharded, one_pass, plain, replicated
from vitlab.training.progress import Meter
from vitlab.training.recipe import Host, Recipe
from vitlab.training.schedule import learning_rate
from vitlab.training.state import State
from vitlab.training.stop import Interrupted, Stop

LINES = 500  # of the journal over a whole run


@dataclass
class Loop:
    """What a run works with; `run` takes the steps that are left.

    Attributes:
        recipe: resolved, with the whole model
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
    folder: Path
    world: World = ALONE

    def __post_init__(self) -> None:
        """Work out what the recipe implies."""
        self.device = next(self.state.model.parameters()).device
        self.net = replicated(self.state.model, self.world)
        self.journal = Journal(self.folder, mute=not self.world.first)
        self.saving: shards.Saving | None = None  # of a sharded model, while training goes on
        self.workers = choose_workers(self.source, self.host.workers, self.world.local_size)
        self.objective = Classify(self.recipe.objective.label_smoothing)
        self.total = steps(self.recipe.epochs, len(self.source), self.recipe.batch)
        self.epoch = len(self.source) / self.recipe.batch  # steps an epoch, a fraction
        self.every = max(1, self.total // LINES)
        self.tests = test_steps(self.total, self.recipe.test_every * self.epoch)

    def run(self) -> None:
        """Train to the end, or until asked to stop.

        Raises:
            ValueError: a non-finite loss, too many damaged images, a disk that refuses.
            Interrupted: SIGINT or SIGTERM came, and the state is saved.
        """
        state, saved = self.state, time.monotonic()
        devices = [self.device] if self.device.type == "cuda" else []
        with (
            Stop() as stop,
            Meter(self.total, state.step, shown=self.world.first) as meter,
            torch.random.fork_rng(devices=devices),
        ):
            stop.patient = self.world.size > 1
            for batch in self._batches():
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
                    self._save()
                    saved = time.monotonic()
                if last:
                    self._finish_saving()
                    raise self._interrupted()
            self._save()
            self._finish_saving()

    def _batches(self) -> Iterator[Batch]:
        batches = TrainingBatches(
            self.source,
            self.state.model.config,
            self.recipe.augment,
            self.recipe.seed,
            self.recipe.batch,
            self.world.rank,
            self.world.size,
        )
        loader = iter(training_loader(batches, self.state.step, self.total, self.workers))
        for _ in range(self.state.step, self.total):
            start = time.perf_counter()
            batch = next(loader)
            self.state.seconds += time.perf_counter() - start  # waiting for data is training too
            yield batch

    def _step(self, batch: Batch) -> str:
        """One batch forward, backward, and into the weights; returns a note for the meter."""
        state, recipe = self.state, self.recipe
        batch = whole(self.world, batch)
        for _, message in batch.bad:
            self._count_bad(message)
        seed = step_seed(recipe.seed, state.step, self.world.rank)
        torch.manual_seed(seed)  # dropout draws from the default generator, which alone it can
        peak = recipe.optimiser.lr
        warmup = recipe.schedule.warmup * self.epoch
        lr = learning_rate(state.step, self.total, warmup, peak, recipe.schedule)
        if batch.total:
            self._learn(batch, lr, torch.Generator(self.device).manual_seed(seed))
        state.step += 1
        images = max(1.0, state.tally["images"]) if state.tally else 1.0
        loss = state.tally.get("loss", 0.0) / images
        accuracy = state.tally.get("correct", 0.0) / images
        speed = state.seen / max(state.seconds, 1e-9)
        if state.step % self.every == 0 or state.step == self.total:
            line = {"kind": "train", "step": state.step, "epoch": state.step / self.epoch}
            line |= {"loss": loss, "accuracy": accuracy, "lr": lr, "images_per_second": speed}
            self.journal.write(line)
            state.tally = {}
        return f"loss {loss:.3f}  accuracy {accuracy:.1%}  {speed:,.0f} images/s"

    def _learn(self, batch: Batch, lr: float, generator: torch.Generator) -> None:
        state, recipe, config = self.state, self.recipe, self.state.model.config
        if not state.model.training:  # the walk over all modules is not free
            state.model.train()
        state.optimiser.zero_grad(set_to_none=True)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        pieces = passes(batch, recipe.micro_batch, self.world, recipe.batch)
        for number, (piece, images) in enumerate(pieces, 1):
            there = piece.to(self.device)
            pixels = augment(there.images, there.draws, recipe.augment, config.mean, config.std)
            with one_pass(self.net, last=number == len(pieces), counts=images > 0):
                with autocast(self.device, recipe.precision):
                    mean, metrics = self.objective.loss(
                        self.net, replace(there, images=pixels), generator
                    )
                # gradients are averaged over the processes
                (mean * (images * self.world.size / batch.total)).backward()
            loss += mean.detach() * images
            correct += metrics["correct"] * (images > 0)
        both = torch.stack([loss, correct.double()])
        self.world.add(both)
        norm = self._clip()
        figures = torch.cat([both, norm.double()[None]]).tolist()
        if not math.isfinite(figures[0]) or not math.isfinite(figures[2]):
            raise self.world.error(
                self._blown_up("loss" if not math.isfinite(figures[0]) else "gradient")
            )
        for group in state.optimiser.param_groups:
            group["lr"] = lr
        state.optimiser.step()
        if state.average is not None:
            state.average.update(state.model, state.step)
        for key, value in zip(
            ("loss", "correct", "images"), (*figures[:2], batch.total), strict=True
        ):
            state.tally[key] = state.tally.get(key, 0.0) + value
        state.seen += batch.total

    def _clip(self) -> torch.Tensor:
        """Clip the gradient where the recipe says so; returns its norm before."""
        weights = [w for w in self.state.model.parameters() if w.grad is not None]
        limit = self.recipe.optimiser.clip or math.inf
        return full(torch.nn.utils.clip_grad_norm_(weights, limit))

    def _blown_up(self, what: str) -> str:
        places = sorted((self.folder / CHECKPOINTS).glob("step-*"))
        kept = f"the last good checkpoint is {places[-1].name}" if places else "no checkpoint yet"
        step = self.state.step + 1
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
        seen = look(
            self.world,
            model or plain(self.state.kept),
            source,
            device=self.device,
            precision=self.recipe.precision,
            workers=choose_workers(source, self.host.workers, self.world.local_size),
        )
        for message in seen.bad.values():
            self._count_bad(message)
        return seen

    def _look_at_test(self) -> None:
        """One point of the test curve."""
        seen = self.predict(self.test)
        if not self.world.first:
            return
        line = {"kind": "test", "step": self.state.step, "epoch": self.state.step / self.epoch}
        line |= {"loss": nll(seen.probabilities, seen.labels)}
        line |= {"accuracy": top(seen.probabilities, seen.labels, 1)}
        self.journal.write(line)

    def _save(self) -> None:
        """A checkpoint of the step: the first process's work, or, sharded, everyone's."""
        place, state = self.folder / CHECKPOINTS, self.state
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


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """What the random numbers of a step come from, in each process its own."""
    words = (seed, step, rank) if rank else (seed, step)
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> 1)


def test_steps(total: int, every: float) -> set[int]:
    """After which steps to look at the test images: every so often, and at the end."""
    before = math.ceil(total / every - 0.5) - 1  # the last of these not too near the end
    return {max(1, round(k * every)) for k in range(1, before + 1)} | {total}
