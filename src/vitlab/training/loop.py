"""The one training loop: batches in, steps taken, everything written down."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vitlab.data import mix
from vitlab.data.augment import augment
from vitlab.data.loader import Batch, TrainingBatches, choose_workers, training_loader
from vitlab.data.order import steps
from vitlab.data.sources import Source
from vitlab.device import autocast
from vitlab.errors import UserError
from vitlab.evaluation.metrics import curve_point
from vitlab.evaluation.predict import Predictions, predict
from vitlab.objectives.classify import Classify
from vitlab.training import checkpoint
from vitlab.training.folder import CHECKPOINTS, Journal
from vitlab.training.optimisers import set_rate
from vitlab.training.progress import Meter, say
from vitlab.training.recipe import Host, Recipe
from vitlab.training.sam import statistics_kept, uphill
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
    """

    recipe: Recipe
    host: Host
    state: State
    source: Source
    test: Source
    images: int
    folder: Path

    def __post_init__(self) -> None:
        """Work out what the recipe implies."""
        self.device = next(self.state.model.parameters()).device
        self.journal = Journal(self.folder)
        aim = self.recipe.objective
        self.objective = Classify(aim.label_smoothing, aim.loss, aim.bce_threshold)
        self.objective.check(self.source.labels)
        length = steps(self.recipe.epochs, len(self.source), self.recipe.batch)
        self.total = self.recipe.steps or length
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
            Meter(self.total, state.step) as meter,
            torch.random.fork_rng(devices=devices),
        ):
            for batch in self._batches():
                start = time.perf_counter()
                note = self._step(batch)
                state.seconds += time.perf_counter() - start
                meter.show(state.step, note)
                if state.step in self.tests:
                    self._look_at_test()
                if stop.asked or time.monotonic() - saved >= self.host.checkpoint_every:
                    self._save()
                    saved = time.monotonic()
                if stop.asked:
                    raise Interrupted(
                        f"stopped after step {state.step:,} of {self.total:,}; --resume goes on"
                    )
            self._save()

    def _batches(self) -> Iterator[Batch]:
        batches = TrainingBatches(
            self.source,
            self.state.model.config,
            self.recipe.augment,
            self.recipe.seed,
            self.recipe.batch,
        )
        workers = choose_workers(self.source, self.host.workers)
        loader = iter(training_loader(batches, self.state.step, self.total, workers))
        for _ in range(self.state.step, self.total):
            start = time.perf_counter()
            batch = next(loader)
            self.state.seconds += time.perf_counter() - start  # waiting for data is training too
            yield batch

    def _step(self, batch: Batch) -> str:
        """One batch forward, backward, and into the weights; returns a note for the meter."""
        state, recipe = self.state, self.recipe
        for _, message in batch.bad:
            self._count_bad(message)
        seed = step_seed(recipe.seed, state.step)
        peak = recipe.optimiser.lr
        lr = learning_rate(state.step, self.total, self.epoch, peak, recipe.schedule)
        if len(batch):
            self._learn(batch, lr, seed)
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

    def _learn(self, batch: Batch, lr: float, seed: int) -> None:
        state = self.state
        if not state.model.training:  # the walk over all modules is not free
            state.model.train()
        state.optimiser.zero_grad(set_to_none=True)
        loss, correct = self._accumulate(batch, seed)
        if self.recipe.optimiser.rho:
            with uphill(state.model, self.recipe.optimiser.rho), statistics_kept(state.model):
                self._accumulate(batch, seed)  # of the same images, with the same dropout
        norm = self._clip()
        figures = torch.stack([loss, correct.double(), norm.double()]).tolist()
        if not math.isfinite(figures[0]) or not math.isfinite(figures[2]):
            raise UserError(self._blown_up("loss" if not math.isfinite(figures[0]) else "gradient"))
        set_rate(state.optimiser, lr)
        state.optimiser.step()
        if state.average is not None:
            state.average.update(state.model, state.step)
        for key, value in zip(
            ("loss", "correct", "images"), (*figures[:2], len(batch)), strict=True
        ):
            state.tally[key] = state.tally.get(key, 0.0) + value
        state.seen += len(batch)

    def _accumulate(self, batch: Batch, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a batch's gradient, piece by piece; sum of the losses, and how many are right."""
        state, recipe, config = self.state, self.recipe, self.state.model.config
        torch.manual_seed(seed)  # dropout draws from the default generator, which alone it can
        generator = torch.Generator(self.device).manual_seed(seed)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        mixed = mix.draw(recipe.augment, generator.initial_seed(), config.size)
        for piece in batch.pieces(recipe.micro_batch or len(batch)):
            there = piece.to(self.device)
            pixels = augment(there.images, piece.draws, recipe.augment, config.mean, config.std)
            labels = there.labels
            if mixed is not None:
                pixels, labels = mixed(pixels, labels, config.classes)
            with autocast(self.device, recipe.precision):
                mean, metrics = self.objective.loss(
                    state.model, replace(there, images=pixels, labels=labels), generator
                )
            (mean * (len(piece) / len(batch))).backward()
            loss += mean.detach() * len(piece)
            correct += metrics["correct"]
        return loss, correct

    def _clip(self) -> torch.Tensor:
        """Clip the gradient where the recipe says so; returns its norm before."""
        weights = [w for w in self.state.model.parameters() if w.grad is not None]
        limit = self.recipe.optimiser.clip or math.inf
        return torch.nn.utils.clip_grad_norm_(weights, limit)

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
            say(f"skipped: {message}")
        if len(bad) > self.host.max_bad * self.images:
            raise UserError(
                f"{len(bad)} of {self.images:,} images are damaged, more than --max-bad "
                f"{100 * self.host.max_bad:g}% allows; the last: {message}"
            )

    def predict(self, source: Source) -> Predictions:
        """What the kept weights say of a source; damaged images count as in training."""
        seen = predict(
            self.state.kept,
            source,
            device=self.device,
            precision=self.recipe.precision,
            workers=self.host.workers,
        )
        for message in seen.bad.values():
            self._count_bad(message)
        return seen

    def _look_at_test(self) -> None:
        """One point of the test curve."""
        seen = self.predict(self.test)
        line = {"kind": "test", "step": self.state.step, "epoch": self.state.step / self.epoch}
        line |= curve_point(seen.probabilities, seen.labels)
        self.journal.write(line)

    def _save(self) -> None:
        self.state.journal = self.journal.sync()
        checkpoint.save(self.folder / CHECKPOINTS, self.state.step, self.state.checkpoint())


def step_seed(seed: int, step: int) -> int:
    """What the random numbers of a step come from."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def test_steps(total: int, every: float) -> set[int]:
    """After which steps to look at the test images: every so often, and at the end."""
    before = math.ceil(total / every - 0.5) - 1  # the last of these not too near the end
    return {max(1, round(k * every)) for k in range(1, before + 1)} | {total}
