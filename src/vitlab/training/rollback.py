"""Rollback of a run whose loss or gradient is not finite, or whose loss has exploded.

A step that is not finite is never taken (training/guard.py); its batch is skipped. After
several such steps in a row, or as many whose loss is far above the lowest so far (`EXPLODED` in
training/state.py), the run goes back to a good checkpoint and skips the batches since.
Where it went back to, and where it went on, is kept in `run.toml`, so that a resumed run does the
same. A run that goes back too often, or would skip most of its batches, has diverged.

Weights that are finite may be ruined: a checkpoint is good if the loss of the step before it and
that of the step after it are at most three times the lowest smoothed loss so far. Between two steps
a loss varies less than that, unless it is next to nothing (`LEAST`); that of ruined weights is far
above. What is not good is removed, so that also a run with other options (`--change`) goes on from
a good checkpoint, or from the start. A run that fails again before it has taken as many good steps
as the last rollback had undone goes further back than that time, if that leaves half of its steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from vitlab.errors import DivergedError, UserError
from vitlab.recipes.recipe import Decisions
from vitlab.runs.run_folder import RunFolder
from vitlab.training.checkpoints import Saver
from vitlab.training.plan import RunPlan
from vitlab.training.state import Checkpoint, RunState

IN_A_ROW = 3  # faults after which a run goes back
ROLLBACKS = 3  # times that it goes back before it gives up


@dataclass
class Rollback:
    """How a run goes back to weights that were good.

    Attributes:
        state: where the run stands
        saver: finds the checkpoints
        folder: the run's folder
        start: returns the state before the first step
    """

    state: RunState
    saver: Saver
    folder: RunFolder
    start: Callable[[], Checkpoint]

    @property
    def needed(self) -> bool:
        """Whether the last steps were at fault, as many as a run puts up with."""
        return self.state.tally.streak >= IN_A_ROW

    def take(self, decisions: Decisions, fault: str, plan: RunPlan) -> Decisions:
        """Become the newest good checkpoint, or the start; return the decisions.

        Args:
            decisions: of the run so far
            fault: what was wrong with the last step, as a sentence
            plan: of the run

        Raises:
            DivergedError: the run has gone back too often, or would skip most of its batches.
        """
        world, step, sound = self.saver.world, self.state.step, self.state.tally.sound
        found = self._found(decisions.rollbacks, plan)
        self.saver.drop_ruined(found.state["step"] if found else sound)
        if found is None:
            raise self._diverged(decisions, f"{fault} at step {step:,}", plan)
        self.state.restore(found)
        with world.agreed():
            self.folder.continue_from(found.journal, self.state.tally.journal)
        world.say(
            f"{fault} in {IN_A_ROW} steps up to {step:,}: rolled back to step "
            f"{self.state.step:,}; the batches since then are skipped"
        )
        decisions = replace(decisions, rollbacks=(*decisions.rollbacks, (self.state.step, step)))
        with world.agreed():
            if world.first:
                self.folder.decide(decisions)
        return decisions

    def _found(self, rollbacks: tuple[tuple[int, int], ...], plan: RunPlan) -> Checkpoint | None:
        """Return the checkpoint to go back to; None if the run has to give up."""
        step, sound = self.state.step, self.state.tally.sound
        first, later = rollbacks[-1] if rollbacks else (0, 0)
        again = sound - later < later - first
        for until in (first - 1, sound) if again else (sound,):
            found = self.saver.load(until) or self.start()
            skipped = found.state.get("skipped", 0) + step - found.state["step"]
            if len(rollbacks) < ROLLBACKS and 2 * skipped <= plan.total:
                return found
        return None

    def check(self, decisions: Decisions, plan: RunPlan) -> None:
        """Refuse a run that has skipped most of its batches, when it has come to its end.

        Raises:
            DivergedError: it has.
        """
        skipped = self.state.tally.skipped
        if 2 * skipped > plan.total:
            what = f"non-finite loss in {skipped:,} of {plan.total:,} steps"
            raise self._diverged(decisions, what, plan)

    def _diverged(self, decisions: Decisions, what: str, plan: RunPlan) -> UserError:
        lower = min(
            plan.recipe.optimizer.lr / 10, 1e-3
        )  # at most one that no optimizer diverges at
        return self.saver.world.shared(
            DivergedError(
                f"{what}, after {len(decisions.rollbacks)} rollbacks to earlier weights: try a "
                f"lower --lr, as with --resume --change --lr {lower:g}"
            )
        )
