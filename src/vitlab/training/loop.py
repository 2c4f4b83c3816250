"""The one training loop: batches in, steps taken, everything written down."""

import math
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.data import mix
from vitlab.data.augment import augment
from vitlab.data.loader import Batch, TrainingBatches, choose_workers, training_loader
from vitlab.data.mix import Mix
from vitlab.data.order import steps
from vitlab.data.sources import Source
from vitlab.errors import UserError
from vitlab.evaluation.metrics import curve_point
from vitlab.evaluation.predict import Predictions, predict
from vitlab.objectives.classify import Classify
from vitlab.training import budget, checkpoint, decided
from vitlab.training.decided import Decided
from vitlab.training.folder import CHECKPOINTS, Journal
from vitlab.training.guard import Figures, Guard
from vitlab.training.memory import out_of_memory_explained, recomputed
from vitlab.training.optimisers import set_rate
from vitlab.training.precision import Engine
from vitlab.training.progress import Meter, say
from vitlab.training.recipe import Host, Recipe
from vitlab.training.rehearsal import rehearse
from vitlab.training.sam import statistics_kept, uphill
from vitlab.training.schedule import learning_rate
from vitlab.training.state import State
from vitlab.training.stop import Interrupted, Stop
from vitlab.training.tracking import Tracker
from vitlab.training.workers import WorkerDiedError, deaths_explained, deaths_reported_late

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
        compiled = self.host.compile
        self.engine = Engine(
            self.state.model,
            self.recipe.precision,
            self.device.type == "cuda" if compiled == "auto" else compiled == "yes",
        )
        self.guard = Guard(self.state.optimiser, self.device)
        self.asked = self.recipe  # before decisions
        self.settle(decided.read(self.folder))

    def settle(self, decisions: Decided) -> None:
        """Work out what the recipe and the decisions made imply."""
        self.decided = decisions
        self.recipe = decisions.settle(self.asked, len(self.source))
        self.epoch = len(self.source) / self.recipe.batch  # steps an epoch, a fraction
        length = steps(self.recipe.epochs, len(self.source), self.recipe.batch)
        longest = self.recipe.steps or length
        self.every = max(1, longest // LINES)
        self.total = decisions.steps(self.state.step) if decisions.plan else longest
        self.tests = test_steps(self.total, self.recipe.test_every * self.epoch)

    def run(self) -> None:
        """Train to the end, or until asked to stop.

        Raises:
            ValueError: a non-finite loss, too many damaged images, a disk that refuses, a worker
                process that died.
            Interrupted: SIGINT or SIGTERM came, and the state is saved.
        """
        self.settle(self.decided)  # for the step that the state stands at by now
        self.pacer = budget.Pacer(budget.seconds(self.recipe.budget), self.state.spent)
        devices = [self.device] if self.device.type == "cuda" else []
        with (
            Stop() as stop,
            closing(Tracker(self.host.track, self.folder, self.state.step)) as self.tracker,
            torch.random.fork_rng(devices=devices),
            recomputed(self.engine.plain, self.host.checkpoint_activations),
        ):
            rehearse(self, stop)
            with self.engine.settle():
                try:
                    self._take_steps(stop)
                except WorkerDiedError as error:  # between two steps
                    self.save()
                    done = f"saved after step {self.state.step:,}, --resume goes on"
                    raise UserError(f"{error}; {done}") from error
            if self.recipe.patience:
                self._keep_best()
            self.save()

    def _take_steps(self, stop: Stop) -> None:
        state, saved = self.state, time.monotonic()
        if state.best.worn_out(self.recipe.patience):
            return
        with (
            Meter(self.total, state.step) as meter,
            closing(self.batches(self.total)) as batches,
        ):
            for batch in batches:
                start = time.perf_counter()
                note = self._step(batch)
                state.seconds += time.perf_counter() - start
                meter.show(state.step, note)
                if state.step in self.tests:
                    self._look_at_test()
                if stop.asked or time.monotonic() - saved >= self.host.checkpoint_every:
                    self.save()
                    saved = time.monotonic()
                if stop.asked:
                    raise Interrupted(
                        f"stopped after step {state.step:,} of {self.total:,}; --resume goes on"
                    )
                if self.decided.plan:
                    self._keep_to_budget()
                    meter.total = self.total
                if state.step >= self.total or state.best.worn_out(self.recipe.patience):
                    break

    def _keep_to_budget(self) -> None:
        """Cut the plan where the machine has become slower than it was when it was made."""
        step, now = self.state.step, self.total
        planned = self.decided.steps(step)
        looks = self.recipe.test_every * self.epoch
        total = self.pacer.check(planned, step, looks)
        if total < planned:
            plan = (*self.decided.plan, (step, total))
            self.settle(replace(self.decided, plan=plan))
            decided.write(self.folder, self.decided)
            say(f"slower than measured: {total:,} instead of {planned:,} steps")
        elif planned != now:  # a cut that was made before this run was resumed
            self.settle(self.decided)

    def _keep_best(self) -> None:
        """What is tested and saved is what did best on the validation images."""
        best = self.state.best
        best.give_to(self.state.kept)
        if self.state.step < self.total:
            looks = f"no gain in {self.recipe.patience} looks"
            say(f"{looks}: ended after step {self.state.step:,} of {self.total:,}")
        say(f"kept: the weights of step {best.step:,}, {best.accuracy:.1%} of validation images")

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
        )
        workers = choose_workers(self.source, self.host.workers)
        loader = iter(training_loader(batches, self.state.step, stop, workers))
        with deaths_reported_late():
            for _ in range(self.state.step, stop):
                start = time.perf_counter()
                with deaths_explained():
                    batch = next(loader)
                self.state.seconds += time.perf_counter() - start  # this too is training
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
        if not len(batch):
            return
        if only_first:
            batch = next(batch.pieces(pieces))
        recipe = self.recipe
        self.recipe = replace(recipe, micro_batch=pieces or recipe.micro_batch)
        try:
            self._learn(batch, lr, 0)
            self._account(self.guard.settle())
        finally:
            self.recipe = recipe

    def _learn(self, batch: Batch, lr: float, seed: int) -> None:
        state, rho = self.state, self.recipe.optimiser.rho
        state.optimiser.zero_grad(set_to_none=True)
        loss, correct = self._accumulate(batch, seed)
        if rho:
            with uphill(state.model, rho), statistics_kept(self.engine.plain):
                self._accumulate(batch, seed)  # of the same images, with the same dropout
        figures = torch.stack([loss, correct.double(), self._clip().double()])
        set_rate(state.optimiser, lr)
        self._account(self.guard.step(state.step + 1, len(batch), figures))
        if state.average is not None:
            state.average.update(state.model, state.step)

    def _piece(self, batch: Batch) -> int:
        """Images at once."""
        size = self.recipe.micro_batch
        return size if isinstance(size, int) and size else len(batch)

    def _forward(
        self, piece: Batch, generator: torch.Generator, mixed: Mix | None = None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The mean loss of some images, and the objective's figures."""
        config, how = self.state.model.config, self.recipe.augment
        there = piece.to(self.device)
        pixels = augment(there.images, piece.draws, how, config.mean, config.std)
        labels = there.labels
        if mixed is not None:
            pixels, labels = mixed(pixels, labels, config.classes)
        with self.engine.computing():
            seen = replace(there, images=self.engine.images(pixels), labels=labels)
            return self.objective.loss(self.engine.network, seen, generator)

    def loss_of(self, piece: Batch) -> torch.Tensor:
        """The loss of some images, with nothing learned."""
        self.engine.begin()
        return self._forward(piece, torch.Generator(self.device).manual_seed(0))[0]

    def _account(self, known: list[Figures]) -> None:
        """Add what is known of steps to the tally; one that went wrong ends the run."""
        state = self.state
        for each in known:
            if each.fault:
                raise UserError(self._blown_up(each.fault, each.step))
            new = {"loss": each.loss, "correct": each.correct, "images": each.images}
            for key, value in new.items():
                state.tally[key] = state.tally.get(key, 0.0) + value
            state.seen += each.images

    def _accumulate(self, batch: Batch, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Add a batch's gradient, piece by piece; sum of the losses, and how many are right."""
        torch.manual_seed(seed)  # dropout draws from the default generator, which alone it can
        generator, size = torch.Generator(self.device).manual_seed(seed), self._piece(batch)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        mixed = mix.draw(self.recipe.augment, seed, self.state.model.config.size)
        self.engine.begin()
        for piece in batch.pieces(size):
            with out_of_memory_explained(size):
                mean, metrics = self._forward(piece, generator, mixed)
                (mean * (len(piece) / len(batch))).backward()
            self.engine.collect()
            loss += mean.detach() * len(piece)
            correct += metrics["correct"]
        return loss, correct

    def _clip(self) -> torch.Tensor:
        """Clip the gradient where the recipe says so; returns its norm before."""
        weights = [w for w in self.state.model.parameters() if w.grad is not None]
        limit = self.recipe.optimiser.clip or math.inf
        return torch.nn.utils.clip_grad_norm_(weights, limit)

    def _blown_up(self, what: str, step: int) -> str:
        places = sorted((self.folder / CHECKPOINTS).glob("step-*"))
        kept = f"the last good checkpoint is {places[-1].name}" if places else "no checkpoint yet"
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
        try:
            with deaths_explained():
                seen = predict(
                    self.state.kept,
                    source,
                    device=self.device,
                    precision=self.recipe.precision,
                    workers=self.host.workers,
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
        line = {"kind": "test", "step": self.state.step, "epoch": self.state.step / self.epoch}
        self._write(line | curve_point(seen.probabilities, seen.labels))
        if self.recipe.patience:
            point = curve_point(seen.probabilities, seen.labels)
            good = point.get("accuracy", point.get("map", 0.0))
            self.state.best.look(self.state.step, good, point["loss"], self.state.kept)
        self.pacer.looked(time.monotonic() - start)

    def _write(self, line: dict[str, Any]) -> None:
        self.journal.write(line)
        self.tracker.write(line)

    def save(self) -> None:
        """A checkpoint of the state as it is."""
        self._account(self.guard.settle())
        self.state.spent = self.pacer.spent
        self.state.journal = self.journal.sync()
        checkpoint.save(self.folder / CHECKPOINTS, self.state.step, self.state.checkpoint())


def step_seed(seed: int, step: int) -> int:
    """What the random numbers of a step come from."""
    return int(np.random.SeedSequence((seed, step)).generate_state(1, np.uint64)[0] >> 1)


def test_steps(total: int, every: float) -> set[int]:
    """After which steps to look at the test images: every so often, and at the end."""
    before = math.ceil(total / every - 0.5) - 1  # the last of these not too near the end
    return {max(1, round(k * every)) for k in range(1, before + 1)} | {total}
