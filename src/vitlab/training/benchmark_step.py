"""Training steps on random images, of any batch size, to be timed: what a run takes, nothing less.

Each is a step of the `Trainer`: normalization, forward pass, softmax cross-entropy, backward pass,
clipping at norm 1, the check that loss and gradient are finite, and fused AdamW.
"""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from vitlab.data.augment.draws import draws_needed
from vitlab.data.loading.batch import Batch
from vitlab.errors import DeviceError, OptionError
from vitlab.measure.allocated import peak_bytes
from vitlab.measure.modes import Precision
from vitlab.measure.timing import Pass
from vitlab.models.encoder.recomputing import recomputed
from vitlab.models.model import Model
from vitlab.optim.optimizers import build
from vitlab.recipes.recipe import Recipe
from vitlab.training.state import RunState
from vitlab.training.step import Trainer

RATE = 1e-6  # of learning: what is learned from noise is not kept


class PracticeSteps:
    """Training steps of a copy of a model on random images.

    Attributes:
        where: its device
        precision: fp32, bf16 or bf16-pure
        hidden: bytes of the gradients, in fp32 and in bf16, which are all there at a step's end

    Args:
        model: is left as it is
        precision: fp32, bf16 or bf16-pure
        where: the device
        compiled: whether forward and backward pass are compiled, for each batch size by itself
        recompute: keep only the input of each block, and compute it again for the backward pass

    Raises:
        OptionError: a model without classes, or with several answers per image, has no such step.
    """

    def __init__(
        self,
        model: Model,
        precision: Precision,
        where: torch.device,
        *,
        compiled: bool = False,
        recompute: bool = False,
    ) -> None:
        config = model.config
        if not config.classes or config.answers > 1:
            raise OptionError(f"{config.name} has no single classifier: no training step to time")
        self.where, self.precision = where, precision
        self.compiled, self.recompute = compiled, recompute
        self.recipe = replace(Recipe(), precision=precision)
        self.model = copy.deepcopy(model).to(where).train().requires_grad_()
        self.hidden = 6 * sum(weight.numel() for weight in self.model.parameters())
        self.state = RunState(self.model, None, build(self.model, self.recipe.optimizer))

    def passes(self, batch: int) -> Pass:
        """Return what takes one step with so many images."""
        if self.compiled:
            torch.compiler.reset()  # else only the first few sizes would be compiled
        return self._step(self._trainer(batch, self.compiled), batch)

    def counted(self, batch: int) -> int:
        """Return the most bytes of tensors in a step on a CPU, which is not compiled.

        Weights, gradients, moments and activations.
        """
        trainer = self._trainer(batch, compiled=False)
        work = self._step(trainer, batch)
        work()  # moments are there from now on
        for weight in self.model.parameters():
            weight.grad = None
        states = self.state.optimizer.state.values()
        moments = [each for state in states for each in state.values() if isinstance(each, Tensor)]
        networks = (self.model, trainer.engine.plain)  # the second may be a copy in bf16
        weights = [each for net in networks for each in (*net.parameters(), *net.buffers())]
        return peak_bytes(work, [*weights, *moments])

    def _trainer(self, batch: int, compiled: bool) -> Trainer:
        return Trainer(self.model, replace(self.recipe, batch=batch), compiled=compiled)

    def _step(self, trainer: Trainer, batch: int) -> Pass:
        images = self._batch(batch)

        def step() -> None:
            try:
                with recomputed(self.model, self.recompute):
                    trainer.step(self.state, images, RATE, 0)
            except DeviceError as error:  # whose advice is for a run
                if isinstance(error.__cause__, torch.OutOfMemoryError):
                    raise error.__cause__ from None
                raise

        return step

    def _batch(self, batch: int) -> Batch:
        config = self.model.config
        generator = torch.Generator().manual_seed(0)
        shape = (batch, *config.size, config.channels)
        return Batch(
            torch.randint(256, shape, dtype=torch.uint8, generator=generator),
            torch.randint(config.classes, (batch,), generator=generator),
            torch.zeros(batch, draws_needed(self.recipe.augment)),
            torch.arange(batch),
            total=batch,
        ).to(self.where)
