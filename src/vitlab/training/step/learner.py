"""From a batch to the gradient of its loss: in pieces, in some precision, over processes."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from vitlab.data.augment import mix
from vitlab.data.augment.augment import augment
from vitlab.data.augment.mix import Mix
from vitlab.data.loading.batches import Batch
from vitlab.distributed.parallel import full, one_pass
from vitlab.distributed.world import World, passes
from vitlab.models.create import Model
from vitlab.objectives.objective import Objective
from vitlab.optim.sam import statistics_kept, uphill
from vitlab.recipes.recipe import Recipe
from vitlab.training.step.precision import Engine
from vitlab.training.step.recompute import out_of_memory_explained


@dataclass
class Learner:
    """What a batch goes through until its gradient is there.

    Attributes:
        model: the weights that learn
        engine: in what precision, and whether compiled
        objective: the loss
        recipe: augmentation, clipping, SAM, the size of a batch
        world: this process among those that share every batch
    """

    model: Model
    engine: Engine
    objective: Objective
    recipe: Recipe
    world: World

    def __post_init__(self) -> None:
        """Where the weights are."""
        self.device = next(self.model.parameters()).device

    def gradient(self, batch: Batch, size: int, seed: int) -> Tensor:
        """The gradient of a batch's mean loss, into the weights, clipped; cleared before.

        Args:
            batch: this process's slice
            size: images at once (0: all)
            seed: of dropout, and of what is mixed

        Returns:
            Summed loss, correct answers and the gradient's norm before clipping, float64 (3,), of
            all processes together.
        """
        for weight in self.model.parameters():
            weight.grad = None
        figures = self._accumulate(batch, size, seed)
        if rho := self.recipe.optimizer.rho:
            with uphill(self.model, rho), statistics_kept(self.engine.plain):
                self._accumulate(batch, size, seed)  # of the same images, with the same dropout
        self.world.add(figures)
        return torch.cat([figures, self._clip().double()[None]])

    def loss_of(self, piece: Batch) -> Tensor:
        """The loss of some images, with nothing learned."""
        self.engine.begin()
        return self._forward(piece, torch.Generator(self.device).manual_seed(0), None)[0]

    def _accumulate(self, batch: Batch, size: int, seed: int) -> Tensor:
        """Add a batch's gradient, piece by piece; sum of the losses, and how many are right."""
        # dropout draws from the default generator, which alone it can; each process its own
        own = seed if self.world.first else seed + (self.world.rank << 32) & (2**63 - 1)
        torch.manual_seed(own)
        generator = torch.Generator(self.device).manual_seed(own)
        loss = torch.zeros((), dtype=torch.float64, device=self.device)
        correct = torch.zeros((), dtype=torch.int64, device=self.device)
        mixed = mix.draw(self.recipe.augment, seed, self.model.config.size)
        self.engine.begin()
        pieces = passes(batch, size, self.world, self.recipe.batch)
        for number, (piece, images) in enumerate(pieces, 1):
            last, counts = number == len(pieces), images > 0
            with (
                out_of_memory_explained(len(piece)),
                one_pass(self.engine.shared, last=last, counts=counts),
            ):
                mean, metrics = self._forward(piece, generator, mixed)
                # gradients are averaged over the processes
                (mean * (images * self.world.size / batch.total)).backward()
            self.engine.collect()
            loss += mean.detach() * images
            correct += metrics["correct"] * counts
        return torch.stack([loss, correct.double()])

    def _forward(
        self, piece: Batch, generator: torch.Generator, mixed: Mix | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of some images, and the objective's figures."""
        config, how = self.model.config, self.recipe.augment
        there = piece.to(self.device)
        pixels = augment(there.images, piece.draws, how, config.mean, config.std)
        labels = there.labels
        if mixed is not None:
            pixels, labels = mixed(pixels, labels, config.classes)
        with self.engine.computing():
            seen = replace(there, images=self.engine.images(pixels), labels=labels)
            return self.objective.loss(self.engine.network, seen, generator)

    def _clip(self) -> Tensor:
        """Clip the gradient where the recipe says so; returns its norm before."""
        weights = [weight for weight in self.model.parameters() if weight.grad is not None]
        limit = self.recipe.optimizer.clip or math.inf
        return full(nn.utils.clip_grad_norm_(weights, limit))
