"""Steps whose loss or gradient is not finite: passed over, and if there are many, gone back from.

Such a step is never taken (training/step/guard.py); its batch is passed over. After several in a
row the run goes back to the newest checkpoint from before them and passes over the batches since.
Where it went back to, and where it went on, is kept in `run.toml`, so that a resumed run does the
same. A run that goes back too often, or would pass over most of its batches, has diverged.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from vitlab.errors import DivergedError, UserError
from vitlab.recipes.decisions import Decisions
from vitlab.runs.run_folder import RunFolder
from vitlab.training.plan import Plan
from vitlab.training.saving.checkpoint import Checkpoint
from vitlab.training.saving.saver import Saver
from vitlab.training.saving.state import State

IN_A_ROW = 3  # faults after which a run goes back
ROLLBACKS = 3  # times that it goes back before it gives up


@dataclass
class WayBack:
    """How a run goes back to weights that were good.

    Attributes:
        state: where the run stands
        saver: finds the checkpoints
        folder: the run's folder
        start: returns the state before the first step
    """

    state: State
    saver: Saver
    folder: RunFolder
    start: Callable[[], Checkpoint]

    @property
    def needed(self) -> bool:
        """Whether the last steps were not finite, as many as a run puts up with."""
        return self.state.tally.streak >= IN_A_ROW

    def take(self, decisions: Decisions, fault: str, plan: Plan) -> Decisions:
        """Become the newest checkpoint from before the faults, or the start; return the decisions.

        Args:
            decisions: of the run so far
            fault: what was not finite in the last step
            plan: of the run

        Raises:
            DivergedError: the run has gone back too often, or would pass over most of its batches.
        """
        world, step = self.saver.world, self.state.step
        self.saver.finish()
        found = self.saver.load(step - self.state.tally.streak) or self.start()
        skipped = found.state.get("skipped", 0) + step - found.state["step"]
        if len(decisions.rollbacks) >= ROLLBACKS or 2 * skipped > plan.total:
            raise self._diverged(decisions, f"the {fault} is not finite at step {step:,}", plan)
        self.state.restore(found)
        with world.agreed():
            self.folder.continue_from(found.journal, self.state.tally.journal)
        world.say(
            f"the {fault} is not finite in {IN_A_ROW} steps up to {step:,}: back to the weights of "
            f"step {self.state.step:,}, passing over the batches since"
        )
        decisions = replace(decisions, rollbacks=(*decisions.rollbacks, (self.state.step, step)))
        with world.agreed():
            if world.first:
                self.folder.decide(decisions)
        return decisions

    def check(self, decisions: Decisions, plan: Plan) -> None:
        """Refuse a run that has passed over most of its batches, when it has come to its end.

        Raises:
            DivergedError: it has.
        """
        skipped = self.state.tally.skipped
        if 2 * skipped > plan.total:
            what = f"the loss was not finite in {skipped:,} of {plan.total:,} steps"
            raise self._diverged(decisions, what, plan)

    def _diverged(self, decisions: Decisions, what: str, plan: Plan) -> UserError:
        return self.saver.world.shared(
            DivergedError(
                f"{what}, after {len(decisions.rollbacks)} rollbacks to earlier weights: try a "
                f"lower --lr, as with --resume --change --lr {_lower(plan.recipe.optimizer.lr):g}"
            )
        )


def _lower(lr: float) -> float:
    """Return a learning rate to try: a tenth, and at most one that no optimizer diverges at."""
    return min(lr / 10, 1e-3)
