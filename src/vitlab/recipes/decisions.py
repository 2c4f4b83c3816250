"""Decisions of a run on what its recipe leaves open: micro-batch, steps within a budget."""

from dataclasses import dataclass, replace

from vitlab.recipes.recipe import Recipe


@dataclass(frozen=True)
class Decisions:
    """Decisions of a run, made once and kept in `run.toml`, so that a resumed run keeps to them.

    A run of the same recipe that is given these numbers learns the same bits.

    Attributes:
        micro_batch: images per forward pass (None: not decided)
        plan: (first step, total steps) pairs, the first from step 0; each holds from its step on
            (empty: not decided)
        rollbacks: (step, step) pairs: of a state that the run went back to, since the loss was not
            finite, and where it went on with its weights
        diverged: why the run gave up (empty: it has not)
    """

    micro_batch: int | None = None
    plan: tuple[tuple[int, int], ...] = ()
    rollbacks: tuple[tuple[int, int], ...] = ()
    diverged: str = ""

    def total_steps(self, step: int) -> int:
        """Return the total number of steps, as planned when `step` (from 0) is taken."""
        return next(total for first, total in reversed(self.plan) if first <= step)

    def goes_on_at(self, step: int) -> int:
        """Return where the run goes on with the weights after `step` steps: there, or later."""
        return dict(self.rollbacks).get(step, step)

    def applied_to(self, recipe: Recipe, images: int) -> Recipe:
        """Return the recipe with these numbers; warm-up and cooldown keep their share of the run.

        Args:
            recipe: as the user asked for it
            images: training images per epoch
        """
        if self.micro_batch is not None:
            recipe = replace(recipe, micro_batch=self.micro_batch)
        if not self.plan:
            return recipe
        epochs, schedule = self.plan[0][1] * recipe.batch / images, recipe.schedule
        factor = epochs / (recipe.steps * recipe.batch / images or recipe.epochs)
        schedule = replace(
            schedule,
            warmup=schedule.warmup * factor,
            warmup_steps=round(schedule.warmup_steps * factor),
            cooldown=schedule.cooldown * factor,
        )
        return replace(recipe, epochs=epochs, steps=0, schedule=schedule)
