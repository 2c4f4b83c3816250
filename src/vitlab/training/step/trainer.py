"""One step of training: from a batch to its loss, its gradient, and new weights."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitlab.data.augment import mix
from vitlab.data.augment.augment import augment
from vitlab.data.augment.mix import Mix
from vitlab.data.loading.batches import Batch
from vitlab.data.settings import Augment
from vitlab.device import keep_freed_memory, widest
from vitlab.distributed.parallel import is_sharded, must_settle, one_pass, replicated
from vitlab.distributed.shares import passes
from vitlab.distributed.world import ALONE, World
from vitlab.models.model import Model
from vitlab.objectives.objective import Objective, objective_of
from vitlab.objectives.owning import Learner, OwningObjective
from vitlab.objectives.pretext_tasks import views_of
from vitlab.optim.optimizers import set_rate
from vitlab.optim.sam import statistics_kept, uphill
from vitlab.optim.sliced import full
from vitlab.recipes.recipe import Recipe
from vitlab.training.plan import step_seed
from vitlab.training.saving.state import State
from vitlab.training.step.guard import (
    Figures,
    can_skip,
    running_statistics,
    take_step,
    undo_unless_finite,
)
from vitlab.training.step.precision import Engine
from vitlab.training.step.recompute import out_of_memory_explained
from vitlab.training.step.transform import Transform, transformed_batch


class Trainer:
    """Takes training steps: the one door to losses, gradients, precision, averages and safety.

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
        objective: Objective | OwningObjective | None = None,
        transform: Transform | None = None,
    ) -> None:
        self.model, self.recipe, self.world = model, recipe, world
        self.transform = transform
        self.device = next(model.parameters()).device
        if self.device.type == "cpu":
            keep_freed_memory()
        self.objective: Objective | OwningObjective = objective or objective_of(recipe.objective)
        self.task = objective if isinstance(objective, OwningObjective) else None
        self.learner = model if self.task is None else Learner(model, self.task)
        self.views = () if self.task is None else views_of(recipe, model.config)
        self.begin(0, 1, 1.0)
        self.engine = Engine(
            self.learner, recipe.precision, compiled, lambda network: replicated(network, world)
        )
        self.settling = must_settle(self.engine.shared, world)
        self.micro_batch = recipe.micro_batch if isinstance(recipe.micro_batch, int) else 0
        follows = self.task is not None and self.task.follows
        self.late = self.device.type == "cuda" and not is_sharded(model) and not follows
        self.statistics = running_statistics(self.engine.plain)

    def begin(self, step: int, total: int, epoch: float) -> None:
        """Tell a task which step comes, from 0, of how many, and how many an epoch has."""
        if self.task is not None:
            self.task.begin(step, total, epoch)

    def step(self, state: State, batch: Batch, lr: float, seed: int) -> Figures:
        """Learn from one batch.

        Where the loss or the gradient is not finite, the figures have a `fault`, and weights,
        moments, average and the running statistics of batch norms stay as they are (where figures
        are read late, the average takes the same weights in once more).

        Args:
            state: of the model given to this trainer; nothing else changes it
            batch: this process's share of the batch, with the total of all shares
            lr: learning rate
            seed: of dropout, and of mixed images

        Returns:
            The figures of all processes together.
        """
        late = self.late and can_skip(state.optimizer)
        names = self.objective.figures
        numbers = torch.zeros(2 + len(names), dtype=torch.float64)
        if batch.total:  # else every image of it was damaged
            before = [each.clone() for each in self.statistics]
            numbers = self.gradient(batch, seed)
            undo_unless_finite(self.statistics, before, numbers)
            set_rate(state.optimizer, lr)
            taken = take_step(state.optimizer, numbers, late)
            if taken and state.average is not None:
                state.average.update(state.model, state.step)
            if taken and self.task is not None:
                with torch.no_grad():
                    self.task.stepped(state.model, self.world.add)
            self.drop()
        state.step += 1
        return Figures.of(state.step, batch.total, numbers, late, names)

    def drop(self) -> None:
        """Let a task forget what it has collected for a step that is not taken."""
        if self.task is not None:
            self.task.drop()

    def gradient(self, batch: Batch, seed: int) -> Tensor:
        """Put the clipped gradient of a batch's mean loss into the weights.

        Args:
            batch: this process's share
            seed: of dropout, and of mixed images

        Returns:
            Summed loss, the objective's figures and the gradient's norm before clipping, of all
            processes together; `device.widest` (2 + figures,) on the device.
        """
        for weight in self.learner.parameters():
            weight.grad = None
        if self.transform is not None:
            batch = transformed_batch(batch.to(self.device), self.transform, self._own(seed))
        if self.settling:
            self._settle(batch, seed)
        sums = self.accumulate(batch, seed)
        if rho := self.recipe.optimizer.rho:
            self.drop()
            with uphill(self.learner, rho), statistics_kept(self.engine.plain):
                self.accumulate(batch, seed)  # the same images with the same dropout
        self.world.add(sums)
        return torch.cat([sums, self.clip().to(sums.dtype)[None]])

    def _settle(self, batch: Batch, seed: int) -> None:
        """Compute a gradient and drop it, so that all others are summed in one order."""
        with statistics_kept(self.engine.plain):
            self.accumulate(batch, seed)
        for weight in self.learner.parameters():
            weight.grad = None
        self.drop()
        self.settling = False

    def clip(self) -> Tensor:
        """Clip the gradient to the recipe's largest norm; return its norm before."""
        weights = [weight for weight in self.learner.parameters() if weight.grad is not None]
        limit = self.recipe.optimizer.clip or math.inf
        return full(nn.utils.clip_grad_norm_(weights, limit))

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of some images, of which nothing is learned."""
        self.engine.begin()
        found = self.forward(batch, torch.Generator(self.device).manual_seed(0), None)[0]
        self.drop()
        return found

    @torch.no_grad()
    def held_out(self, batch: Batch, seed: int) -> Tensor:
        """Return the loss and the figures of images of which nothing is learned, summed over them.

        In evaluation mode, by one process alone.

        Args:
            batch: as it would be learned from
            seed: of masks and the like

        Returns:
            Of the type `device.widest`, (1 + figures,).
        """
        network = self.engine.plain.eval()
        generator = torch.Generator(self.device).manual_seed(seed)
        with self.engine.computing():
            loss, metrics = network(self.augmented(batch), generator)
        sums = [loss * len(batch), *(metrics[name] for name in self.objective.figures)]
        return torch.stack([each.to(widest(self.device)) for each in sums])

    def augmented(self, batch: Batch) -> Batch:
        """Return a batch on the training device, with its views, as the network takes it."""
        options = [view.augment for view in self.views] or [self.recipe.augment]
        views = (replace(batch, views=()), *batch.views)
        first, *others = map(self._augmented, views, options)
        return replace(first, views=tuple(others))

    def _augmented(self, batch: Batch, options: Augment) -> Batch:
        """Return one view of a batch on the training device."""
        config, moved = self.model.config, batch.to(self.device)
        pixels = augment(moved.images, batch.draws, options, config)
        return replace(moved, images=pixels)

    def forward(
        self, batch: Batch, generator: torch.Generator, mixed: Mix | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean loss of some images as they are learned, and the objective's figures."""
        config, moved = self.model.config, self.augmented(batch)
        pixels, labels = moved.images, moved.labels
        if mixed is not None:
            assert isinstance(pixels, Tensor)  # packed images are not mixed
            pixels, labels = mixed(pixels, labels, config.classes)
        with self.engine.computing():
            inputs = replace(moved, images=self.engine.images(pixels), labels=labels)
            if self.task is not None:
                own: tuple[Tensor, dict[str, Tensor]] = self.engine.network(inputs, generator)
                return own
            return self.objective.loss(self.engine.network, inputs, generator)

    def accumulate(self, batch: Batch, seed: int) -> Tensor:
        """Add a batch's gradient, pass by pass; return its summed loss and figures."""
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

    def _own(self, seed: int) -> int:
        """Return this process's own seed of a step; a CPU's generator takes its low 32 bits."""
        return seed if self.world.first else step_seed(seed, self.world.rank)
