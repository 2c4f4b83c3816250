"""The training step on one page: forward, backward, accumulate, clip, update, average.

`Trainer.step` is the whole of it. What it leaves to others: computing in another precision
(precision.py), taking a step only if it is finite (guard.py), sharing a batch among processes
(distributed/), augmentation, the objective and the optimizer.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitlab.data.augment import mix
from vitlab.data.augment.augment import augment
from vitlab.data.augment.mix import Mix
from vitlab.data.loading.batch import Batch
from vitlab.device import keep_freed_memory
from vitlab.distributed.parallel import is_sharded, must_settle, one_pass, replicated
from vitlab.distributed.shares import passes
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DivergedError
from vitlab.models.model import Model
from vitlab.objectives.classify import Classify, objective_of
from vitlab.objectives.pretext_task import Learner, LossFigures, OwningObjective
from vitlab.objectives.pretext_tasks import views_of
from vitlab.on_device import widest
from vitlab.optim.optimizers import set_rate
from vitlab.optim.sam import statistics_kept, uphill
from vitlab.optim.sliced import full
from vitlab.recipes.recipe import Recipe
from vitlab.training.guard import (
    Figures,
    can_skip,
    out_of_memory_explained,
    running_statistics,
    take_step,
    undo_unless_finite,
)
from vitlab.training.own_code import Transform, transformed_batch
from vitlab.training.plan import step_seed
from vitlab.training.precision import TrainingEngine
from vitlab.training.state import RunState


class Trainer:
    """Takes training steps.

    Args:
        model: the weights that learn, on their device
        recipe: augmentation, objective, precision, clipping, SAM, batch size
        world: this process among those that share every batch
        compiled: whether forward and backward pass are compiled
        objective: what is minimized; None for the recipe's, if it needs no counts of the classes. A
            task's own modules learn beside the model
        transform: of the user's own, before the recipe's augmentation

    Attributes:
        micro_batch: images per pass (0: the whole batch)
        late: whether the figures of a step are read while the next one runs, where the optimizer
            allows it: by default on a GPU, if the model is not sharded and no task follows it
    """

    def __init__(
        self,
        model: Model,
        recipe: Recipe,
        world: World = ALONE,
        compiled: bool = False,
        objective: Classify | OwningObjective | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.model, self.recipe, self.world = model, recipe, world
        self.transform, self.device = transform, next(model.parameters()).device
        if self.device.type == "cpu":
            keep_freed_memory()
        self.objective: Classify | OwningObjective = objective or objective_of(recipe.objective)
        self.task = objective if isinstance(objective, OwningObjective) else None
        self.learner = model if self.task is None else Learner(model, self.task)
        self.views = () if self.task is None else views_of(recipe, model.config)
        self.begin(0, 1, 1.0)
        self.engine = TrainingEngine(
            self.learner, recipe.precision, compiled, lambda network: replicated(network, world)
        )
        self.settling = must_settle(self.engine.shared, world)
        self.micro_batch = recipe.micro_batch if isinstance(recipe.micro_batch, int) else 0
        follows = self.task is not None and self.task.follows
        self.late = self.device.type == "cuda" and not is_sharded(model) and not follows
        self.statistics = running_statistics(self.engine.plain)

    def step(self, state: RunState, batch: Batch, lr: float, seed: int) -> Figures:
        """Take a step: the only place where weights change.

        Args:
            state: weights, average and moments, which take it, unless it is not finite
            batch: this process's share of the batch, with the total of all shares
            lr: learning rate
            seed: of dropout, and of mixed images

        Returns:
            The figures of all processes together.
        """
        late, names = self.late and can_skip(state.optimizer), self.objective.figures
        numbers = torch.zeros(2 + len(names), dtype=torch.float64)
        if batch.total:  # else every image of it was damaged
            before = [each.clone() for each in self.statistics]
            batch = self._prepared(batch, seed)
            sums = self.accumulate(batch, seed)  # forward and backward, pass by pass
            if rho := self.recipe.optimizer.rho:  # SAM: the gradient uphill of here, not here
                self.drop()
                with uphill(self.learner, rho), statistics_kept(self.engine.plain):
                    self.accumulate(batch, seed)  # the same images with the same dropout
            self.world.add(sums)
            numbers = torch.cat([sums, self.clip().to(sums.dtype)[None]])
            undo_unless_finite(self.statistics, before, numbers)
            set_rate(state.optimizer, lr, self.head_only)
            taken = take_step(state.optimizer, numbers, late)  # update, if all of it is finite
            if taken and state.average is not None:
                state.average.update(state.model, state.step)
            if taken and state.head_average is not None and self.task is not None:
                state.head_average.update(self.task, state.step)
            if taken and self.task is not None:  # a momentum teacher follows
                with torch.no_grad():
                    self.task.stepped(state.model, self.world.add)
            self.drop()
        state.step += 1
        return Figures(state.step, batch.total, numbers, late, names)

    def accumulate(self, batch: Batch, seed: int) -> Tensor:
        """Add the gradient of a batch's mean loss to the weights', pass by pass.

        Returns:
            Its summed loss and the objective's figures, of this process alone; `on_device.widest`
            (1 + figures,) on the device.
        """
        own = self._own(seed)
        torch.manual_seed(own)  # dropout can only draw from the default generator
        generator = torch.Generator(self.device).manual_seed(own)
        names = self.objective.figures
        sums = torch.zeros(1 + len(names), dtype=widest(self.device), device=self.device)
        mixed = mix.draw(self.recipe.augment, seed, self.model.config.size)
        self.engine.begin()
        pieces = passes(batch, self.micro_batch, self.world, self.recipe.batch)
        for number, (piece, images) in enumerate(pieces, 1):
            last, counts = number == len(pieces), images > 0
            with (
                out_of_memory_explained(len(piece)),
                one_pass(self.engine.shared, last=last, counts=counts),
            ):
                mean, metrics = self.forward(piece, generator, mixed)
                # gradients are averaged over the processes
                (mean * (images * self.world.size / batch.total)).backward()
            self.engine.collect()
            sums[0] += mean.detach() * images
            for place, name in enumerate(names, 1):
                sums[place] += metrics[name].detach() * counts
        return sums

    def forward(self, batch: Batch, generator: torch.Generator, mixed: Mix | None) -> LossFigures:
        """Return the mean loss of some images as they are learned, and the objective's figures."""
        config, moved = self.model.config, self.augmented(batch)
        pixels, labels = moved.images, moved.labels
        if mixed is not None:
            assert isinstance(pixels, Tensor)  # packed images are not mixed
            pixels, labels = mixed(pixels, labels, config.classes)
        with self.engine.computing():
            inputs = replace(moved, images=self.engine.images(pixels), labels=labels)
            if self.task is not None:
                own: LossFigures = self.engine.network(inputs, generator)
                return own
            return self.objective.loss(self.engine.network, inputs, generator)

    def clip(self) -> Tensor:
        """Clip the gradient to the recipe's largest norm; return its norm before."""
        weights = [weight for weight in self.learner.parameters() if weight.grad is not None]
        limit = self.recipe.optimizer.clip or math.inf
        return full(nn.utils.clip_grad_norm_(weights, limit))

    def augmented(self, batch: Batch) -> Batch:
        """Return a batch on the training device, with its views, as the network takes it."""
        options = [view.augment for view in self.views] or [self.recipe.augment]
        views = (replace(batch, views=()), *batch.views)
        found = []
        for view, how in zip(views, options, strict=False):  # the last views may not be made
            moved = view.to(self.device)
            pixels = augment(moved.images, view.draws, how, self.model.config)
            found.append(replace(moved, images=pixels))
        return replace(found[0], views=tuple(found[1:]))

    def _prepared(self, batch: Batch, seed: int) -> Batch:
        """Clear the gradient; return the batch after the user's own transform."""
        if self.transform is not None:
            batch = transformed_batch(batch.to(self.device), self.transform, self._own(seed))
        if self.settling:  # so that the next gradient is summed in the order of all later ones
            self.learner.zero_grad()
            with statistics_kept(self.engine.plain):
                self.accumulate(batch, seed)
            self.drop()
            self.settling = False
        self.learner.zero_grad()
        return batch

    def _own(self, seed: int) -> int:
        """Return this process's own seed of a step; a CPU's generator takes its low 32 bits."""
        return seed if self.world.first else step_seed(seed, self.world.rank)

    def begin(self, step: int, total: int, epoch: float) -> None:
        """Say which step comes, from 0, of how many, and how many an epoch has."""
        self.head_only = step < self.recipe.optimizer.head_first * total
        if self.task is not None:
            self.task.begin(step, total, epoch)

    def drop(self) -> None:
        """Let a task forget what it has collected for a step that is not taken."""
        if self.task is not None:
            self.task.drop()

    def try_step(self, state: RunState, batch: Batch) -> None:
        """Take a step that moves no weight.

        Raises:
            DivergedError: the loss or gradient of the untrained model is not finite.
        """
        if batch.total and (fault := self.step(state, batch, lr=0.0, seed=0).fault):
            raise DivergedError(
                f"non-finite {fault} before the first step: check the images and the model"
            )
