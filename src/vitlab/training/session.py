"""One session of a run: from its start, or its newest checkpoint, to its end or a stop.

`take_steps` and `walk` say what happens in which order.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from vitlab.data.loading.batch import Batch
from vitlab.data.loading.handover import WorkerDiedError
from vitlab.data.loading.loader import (
    Upload,
    choose_workers,
    deaths_explained,
    deaths_reported_late,
    loader,
    started,
)
from vitlab.distributed import shares
from vitlab.errors import RunError, SourceError, UserError
from vitlab.progress import Meter, terminal_width
from vitlab.recipes.recipe import Decisions
from vitlab.training.budget import USEFUL, Outlook, Pacer
from vitlab.training.checkpoints import Saver
from vitlab.training.contents_pass import PATIENT, ContentsPass
from vitlab.training.first_state import first_state
from vitlab.training.guard import Figures
from vitlab.training.observer import Observer
from vitlab.training.plan import EVALUATED, batches_of, plan_for
from vitlab.training.resolve import Task
from vitlab.training.rollback import Rollback
from vitlab.training.screen import Rows, progress
from vitlab.training.state import Best, RunState, means
from vitlab.training.step import Trainer, step_seed
from vitlab.training.stop import Interrupted, Stop
from vitlab.training.tracking import Tracker
from vitlab.units import counted, duration

SHORT = 30.0  # seconds: how long a run takes is said of longer ones


@dataclass
class Session:
    """What a session works with, and its events.

    Attributes:
        task: what is learned, where and how
        state: where the run stands
        trainer: takes the steps
        saver: writes the checkpoints
        rollback: to good weights, where the loss is not finite or explodes
        stop: whether a stop was asked for
        pacer: the clock of the budget, if there is one
        tracker: gets every line of the journal
        source: training images
        observer: measures the model
    """

    task: Task
    state: RunState
    trainer: Trainer
    saver: Saver
    rollback: Rollback
    stop: Stop
    pacer: Pacer
    tracker: Tracker = field(init=False)
    unread: list[Figures] = field(default_factory=list)
    fault: str = ""

    def __post_init__(self) -> None:
        """Work out the plan."""
        task, tally = self.task, self.state.tally
        self.recipe, self.folder, self.world = task.recipe, task.folder, self.trainer.world
        self.source = task.opened.cached(task.splits.train, task.config.channels)
        self.observer = Observer(task, self.state, self.trainer)
        held_out = self.observer.held_out
        # the classifier as it was fitted is kept if training made nothing better of it
        self.chooses = task.fitted is not None and task.splits.validation is not None
        self.watched = task.watched
        self.decide(self.folder.decisions)
        self.trainer.begin(max(0, self.state.step - 1), self.plan.total, self.plan.epoch)
        columns = self.trainer.objective.figures[:2] if self.observer.unlabeled else ()
        if self.observer.scored:
            columns = (self.observer.metric.name, *columns[1:])
        self.rows = Rows(self.observer.on, columns, self.plan.total, terminal_width())
        self.begun = tally.seen, tally.seconds  # images and seconds before this session
        tested = held_out if self.observer.unlabeled else task.splits.test
        self.pacer.tested = len(tested) / len(held_out) * (1 if task.fitted is None else 2)
        self.pacer.start -= tally.spent
        self.pacer.ahead = 0.0
        if self.pacer.head_alone and self.has_start:
            self.leave_head()
        patience = None if self.world.size == 1 else PATIENT * task.host.timeout
        self.reading = ContentsPass(task.contents, self.folder, patience)

    def run(self) -> None:
        """Train to the end, or until asked to stop.

        Raises:
            DivergedError: losses or gradients are not finite, again and again.
            DataError: too many images are damaged.
            DiskError: the disk refuses a checkpoint.
            RunError: a data-loading worker died, or the run folder was removed.
            SourceError: images did not come from another machine; the state is saved.
            Interrupted: a stop was asked for, and the state is saved.
        """
        self.stop.message = "interrupted during training: pass --resume to continue"
        self.observer.forget()  # what may be of other weights
        with self.trainer.engine.no_more_compiling(), deaths_reported_late():
            try:
                self.take_steps()
                if self.world.first:
                    self.world.say(*self.reading.finish(self.has_epoch))
            except (WorkerDiedError, SourceError) as error:  # between two steps
                raise self.without_images(error) from error
            finally:
                self.reading.close()
        self.rollback.check(self.decisions, self.plan)
        if self.has_start and self.decisions.plan and self.state.step < USEFUL:
            self.return_to_start()
        elif self.recipe.patience or self.chooses or self.watched:
            state, metric = self.state, self.observer.metric
            if not state.best.since and state.best.step < state.step:  # a plan was cut here
                self.compare(self.observer.measure())
            state.adopt_best()
            self.observer.forget()
            first, on = "the classifier as it was fitted", f"the {self.observer.on} images"
            if self.watched:
                first, on = "those that the run started with", self.watched.title
            figure = f"{metric.word} {metric.text(metric.score(state.best.score))} on {on}"
            if self.recipe.patience or self.watched:  # else the end says which is kept
                self.world.say(*state.best.lines(state.step, self.plan.total, first, figure))
        self.save()
        self.stop.message = "interrupted after the last step: pass --resume to finish the run"
        if self.world.any(self.stop.asked)[0]:
            raise self.stop.interrupted()

    def take_steps(self) -> None:
        """Take the steps that are left; after each one, the events in the order written here."""
        if self.state.tally.unmeasured:
            self.world.say(*self.evaluate())
            self.save_or_stop()
        self.skip_ahead()
        while not self.done:
            with (
                Meter(self.plan.total, self.state.step, "step", shown=self.world.first) as meter,
                closing(self.batches(self.plan.total)) as batches,
            ):
                self.walk(batches, meter)
            self.skip_ahead()

    def walk(self, batches: Iterator[Batch], meter: Meter) -> None:
        """Take steps until the run is done, or goes back."""
        outlook = Outlook(self.state.step)
        for batch in batches:
            self.observer.note_damage(batch.bad)
            self.learn(batch)
            if each := outlook.seconds_per_step(self.state.step):
                self.tell_length(each, meter)
            if self.rollback.needed:
                self.decide(self.rollback.take(self.decisions, self.fault, self.plan))
                return
            shown = progress(self.state, self.plan, self.speed)
            meter.show(self.state.step, shown, self.plan.total)
            self.log()
            for line in self.evaluate():
                meter.say(line)
            self.save_or_stop()
            self.cut_plan()
            if self.world.first:
                self.reading.follow(self.has_epoch)
            if self.done or self.goes_on_at > self.state.step:
                return
        self.save_or_stop()  # no batch came: a stop was asked for meanwhile

    @property
    def has_start(self) -> bool:
        """Whether there is a head that was fitted first."""
        return self.task.fitted is not None or bool(self.task.ridge and self.task.ridge[0])

    def leave_head(self) -> None:
        """Plan no step: the head as it was fitted is the result."""
        self.decide(replace(self.decisions, plan=((0, 0),)))
        self.folder.decide(self.decisions)

    def return_to_start(self) -> None:
        """Make the head as it was fitted the result of a run that has hardly been trained."""
        if self.state.step:
            self.world.say(
                f"{counted(self.state.step, 'step')} taken, fewer than {USEFUL}: the head as it "
                "was fitted is the result"
            )
        first = first_state(self.task, self.trainer.device, self.world)
        self.state.best = Best(weights=first.evaluated.state_dict())
        self.state.ended = first.evaluated, first.head
        self.observer.forget()

    @property
    def has_epoch(self) -> bool:
        """Whether every training image has been learned from once."""
        return self.state.step >= int(self.plan.epoch)

    @property
    def done(self) -> bool:
        """Whether the last step has been taken, patience has run out, or features have fallen."""
        state = self.state
        early = state.best.fallen or state.best.exhausted(self.recipe.patience)
        return bool(early) or state.step >= self.plan.total

    @property
    def goes_on_at(self) -> int:
        """The step that the run goes on at with its weights as they are."""
        return self.decisions.goes_on_at(self.state.step)

    def batches(self, last: int) -> Generator[Batch]:
        """Yield the batches from where the run stands to step `last`, or until asked to stop.

        The time that they take counts as training.

        Raises:
            WorkerDiedError: a data-loading worker died.
        """
        state, world, alone = self.state, self.world, self.world.size == 1
        batches = batches_of(self.recipe, self.source, state.model.config, world, self.task.order)
        upload = Upload(self.trainer.device)
        workers = choose_workers(self.source, self.task.host.workers, world.local_size)
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
                    state.tally.seconds += time.perf_counter() - start
                    yield shares.counted(batch, world)
            finally:
                del coming  # ends the workers; how they end is not reported

    # The events of a step, in their order

    def learn(self, batch: Batch) -> None:
        """Take a step, and count what is known of it."""
        start, step = time.perf_counter(), self.state.step
        lr, seed = self.plan.learning_rate(step), step_seed(self.recipe.seed, step)
        self.trainer.begin(step, self.plan.total, self.plan.epoch)
        self.observer.forget()
        figures = self.trainer.step(self.state, batch, lr, seed)
        self.unread.append(figures)
        due = self.plan.logs(step + 1) or step + 1 in self.plan.evaluations
        due |= self.state.tally.streak > 0
        self.read_figures(keep=1 if figures.late and not due else 0)
        self.state.tally.seconds += time.perf_counter() - start

    def log(self) -> None:
        """Write a training line, every few steps."""
        step, tally = self.state.step, self.state.tally
        if self.plan.logs(step) and tally.sums:
            line = self.position(step) | means(tally.sums) | {"images_per_second": self.speed}
            line |= {"seconds": tally.seconds, "lr": self.plan.learning_rate(step - 1)}
            self.write({"kind": "train"} | line)
            tally.sums = {}

    def tell_length(self, each: float, meter: Meter) -> None:
        """Say how long a run without a budget takes, from the seconds of a step."""
        if self.pacer.budget:
            return
        self.pacer.step = each
        self.pacer.evaluation = EVALUATED * each / self.recipe.batch * len(self.observer.held_out)
        left = self.pacer.takes(self.plan.total - self.state.step, self.plan.evaluate_every)
        if left >= SHORT:
            most = "at most " if self.recipe.patience else ""
            meter.say(f"{most}about {duration(left)} to the end")

    def evaluate(self) -> list[str]:
        """Measure a point of the learning curve, where one is due; return its row.

        If that is interrupted, or a worker dies, the run is saved as it is before the measurement.
        """
        state, tally, recipe = self.state, self.state.tally, self.recipe
        if state.step not in self.plan.evaluations:
            return []
        tally.unmeasured, start = True, time.monotonic()
        try:
            with self.stop.at_once() if self.world.size == 1 else nullcontext():
                point = self.observer.measure()
        except Interrupted:
            return []
        tally.unmeasured, position = False, self.position(state.step)
        self.write({"kind": self.observer.on, **position, **point, "seconds": tally.seconds})
        if recipe.patience or self.watched or (self.chooses and state.step == self.plan.total):
            point = self.compare(point)
        self.pacer.evaluated(time.monotonic() - start)
        learned, lr = means(tally.since), self.plan.learning_rate(state.step - 1)
        tally.since = {}
        if not self.world.first:
            return []
        loss = learned.get("loss", 0.0)
        lines = self.rows.lines(position, loss, point, lr, self.pacer.spent)
        task = self.trainer.task  # nothing is learned where every step was skipped
        return lines + task.warnings(learned) if task and learned else lines

    def compare(self, point: dict[str, float]) -> dict[str, float]:
        """Compare the weights with the best so far, by a point that the first process knows."""
        point, state = self.world.broadcast(point), self.state
        metric, best = self.observer.metric, state.best.score
        score = metric.score(point[metric.name])
        if (probe := self.watched) and best >= 0 and score < probe.least(best):
            state.best.fallen = (
                f"the features got worse: {probe.name} {score:.1%} after step "
                f"{state.step:,}, {best:.1%} before; stopped: try a lower --lr"
            )
        state.best.compare(state.step, score, point["loss"], state.evaluated, state.head)
        return point

    def save_or_stop(self) -> None:
        """Save a checkpoint if one is due or a stop is asked for, and stop; all processes agree."""
        asked = self.stop.asked
        due = self.saver.due and not self.state.tally.streak  # a checkpoint to go back to is good
        save, stop = self.world.any(asked or due, asked)
        if save:
            self.save()
        if stop:
            step, total = self.state.step, self.plan.total
            self.stop.message = (
                f"stopped after step {step:,} of {total:,}; pass --resume to continue"
            )
            raise self.stop.interrupted()

    def cut_plan(self) -> None:
        """Plan fewer steps where the machine has become slower than it was when measured."""
        if not self.decisions.plan:
            return
        step = self.state.step
        planned = self.decisions.total_steps(step)
        total = self.pacer.check(planned, step, self.plan.evaluate_every)
        if total < planned:
            before = self.plan.total
            self.decide(replace(self.decisions, plan=(*self.decisions.plan, (step, total))))
            self.folder.decide(self.decisions)
            self.world.say(
                f"running slower than measured: plan cut from {before:,} to "
                f"{counted(total, 'step')}"
            )
        elif planned != self.plan.total:  # a cut that was made before this run was resumed
            self.decide(self.decisions)

    def skip_ahead(self) -> None:
        """Pass over the batches after the weights that the run went back to, now or before.

        Weights that the run starts from are measured first, where they may be kept in the end.
        """
        step, later, known = self.state.step, self.goes_on_at, self.state.best.weights
        if (self.chooses or self.watched) and not step and not known and not self.done:
            point = self.compare(self.observer.measure())
            if self.watched:  # where the curve begins
                self.write({"kind": self.observer.on, **self.position(0), **point, "seconds": 0.0})
        if later == step:
            return
        self.state.tally.skipped += later - step
        self.state.step = later
        self.write({"kind": "rollback", **self.position(later), "to": step})
        self.world.say(*self.evaluate())

    # What the events use

    def decide(self, decisions: Decisions) -> None:
        """Plan the rest of the run by these decisions."""
        self.decisions = decisions
        images, held_out = len(self.source), len(self.observer.held_out)
        self.plan = plan_for(self.recipe, decisions, images, self.state.step, held_out)
        if decisions.micro_batch is not None:
            self.trainer.micro_batch = decisions.micro_batch

    def position(self, step: int) -> dict[str, float]:
        """Where a step is, as the journal's lines say it."""
        return {"step": step, "epoch": step / self.plan.epoch}

    @property
    def speed(self) -> float:
        """Images per second of this session."""
        tally, (seen, spent) = self.state.tally, self.begun
        return max(0, tally.seen - seen) / max(tally.seconds - spent, 1e-9)

    def write(self, line: dict[str, Any]) -> None:
        """Write a line of the journal, and pass it on to the tracker.

        Raises:
            RunError: the run folder was removed.
            DiskError: the disk refuses it.
        """
        self.folder.check()
        self.folder.journal.write(line)
        self.tracker.write(line)

    def read_figures(self, keep: int = 0) -> None:
        """Count the steps whose figures are not read yet, but for the last `keep` of them."""
        while len(self.unread) > keep:
            figures = self.unread.pop(0)
            if fault := self.state.tally.add(figures):
                self.fault = fault
            if figures.fault:
                line = {"kind": "skipped", **self.position(figures.step), "fault": figures.fault}
                self.write(line)
                self.world.say(f"{fault} at step {figures.step:,}: batch skipped")

    def save(self) -> None:
        """Save a checkpoint, everything so far being counted and the journal on the disk."""
        self.read_figures()
        tally = self.state.tally
        tally.spent = self.pacer.spent
        with self.world.agreed():
            self.folder.check()
            tally.journal = self.folder.journal.sync()
        self.saver.save(self.state, self.folder.journal.content)

    def without_images(self, error: WorkerDiedError | SourceError) -> UserError:
        """Save what can be saved, and return the error to raise."""
        kind = type(error) if isinstance(error, SourceError) else RunError
        if self.world.size > 1:  # the others wait within the step
            return kind(f"{error}; pass --resume to continue")
        self.save()
        return kind(f"{error}; saved after step {self.state.step:,}: pass --resume to continue")
