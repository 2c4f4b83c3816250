"""The plan of a run: how many steps, their learning rates and seeds, when it is evaluated."""

import math
from dataclasses import dataclass

from vitlab.data.images import Images
from vitlab.data.labels import classes_of_images
from vitlab.data.loading.order import Groups, Order, steps
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.distributed.world import World
from vitlab.models.config import ModelConfig
from vitlab.objectives.pretext_tasks import views_of
from vitlab.optim.schedule import learning_rate
from vitlab.recipes.recipe import Decisions, Recipe

LINES = 500  # training lines in the journal of a whole run
EVALUATED = 1 / 3  # of the cost of a training image: it has no backward pass, which costs two
SHARE = 0.1  # of the cost of training that evaluations may add
FEW = 10  # evaluations that are never too many; further ones are as many steps apart


@dataclass(frozen=True)
class RunPlan:
    """The length of a run and what is due when.

    Attributes:
        recipe: with the decisions in it
        epoch: steps per epoch, a fraction
        total: steps of the whole run
        journal_every: steps between two training lines of the journal
        evaluate_every: steps between two evaluations, a fraction
        evaluations: the steps after which the model is evaluated
    """

    recipe: Recipe
    epoch: float
    total: int
    journal_every: int
    evaluate_every: float
    evaluations: set[int]

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        peak, schedule = self.recipe.optimizer.lr, self.recipe.schedule
        return learning_rate(step, self.total, self.epoch, peak, schedule)

    def logs(self, step: int) -> bool:
        """Return whether the journal gets a training line after `step` steps."""
        return step % self.journal_every == 0 or step == self.total


def plan_for(
    recipe: Recipe, decisions: Decisions, images: int, step: int, held_out: int = 0
) -> RunPlan:
    """Return the plan in force when a step is taken.

    Args:
        recipe: as the user asked for it
        decisions: of the run so far
        images: training images per epoch
        step: the next to take, from 0
        held_out: images of an evaluation
    """
    recipe = decisions.applied_to(recipe, images)
    epoch = images / recipe.batch
    longest = recipe.steps or steps(recipe.epochs, images, recipe.batch)
    total = decisions.total_steps(step) if decisions.plan else longest
    every = evaluation_gap(recipe, epoch, total, held_out)
    evaluations = evaluation_steps(total, every)
    return RunPlan(recipe, epoch, total, max(1, longest // LINES), every, evaluations)


def batches_of(
    recipe: Recipe, source: Images, config: ModelConfig, world: World, order: str
) -> TrainingBatches:
    """Return the batches that a recipe learns from, this process's share of each.

    Args:
        recipe: augmentation, seed, batch size, and whether classes are drawn equally often
        source: training images
        config: of the model
        world: this process among those that share every batch
        order: of the images of an epoch, by name
    """
    balanced = recipe.objective.balance == "sampling"
    groups = Groups.of(classes_of_images(source.target)) if balanced else None
    return TrainingBatches(
        source,
        config,
        recipe.augment,
        recipe.seed,
        recipe.batch,
        world.rank,
        world.size,
        Order(order, groups),
        views_of(recipe, config),
    )


def evaluation_gap(recipe: Recipe, epoch: float, total: int, held_out: int) -> float:
    """Return the steps between two evaluations: as many as asked for, more if they cost too much.

    An evaluation also has a cost of its own, whatever its images: more than ten of them are at
    least ten steps apart. Early stopping has them as they are asked for: they decide on the end.

    Args:
        recipe: `test_every`, `patience` and the batch
        epoch: steps per epoch
        total: steps of the run
        held_out: images of an evaluation
    """
    wish = recipe.test_every * epoch
    if recipe.patience:
        return wish
    return max(wish, min(FEW, total / FEW), held_out * EVALUATED / SHARE / recipe.batch)


def evaluation_steps(total: int, every: float) -> set[int]:
    """Return the steps after which to evaluate: about every `every` steps, and at the end."""
    before = math.ceil(total / every - 0.5) - 1  # the last of these is not too near the end
    return {max(1, round(number * every)) for number in range(1, before + 1)} | {total}
