"""The precision of a step: fp32, bf16 autocast, or bf16 weights beside fp32 master weights."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitlab import device as devices
from vitlab.models.packed import Packed
from vitlab.precision import TrainingPrecision, resolved
from vitlab.tuning.free import train_mode


class Bfloat16Copy:
    """A model's weights in bf16, which compute, beside the fp32 weights, which learn.

    The fp32 weights are the master copies (Micikevicius et al., Mixed Precision Training, 3.1):
    optimizer, average and checkpoints use only these, so that updates smaller than the 8 bits of
    bf16 add up. Batch norms stay in fp32, buffers are shared, and gradients are accumulated in
    fp32. Unlike autocast, the tokens between the blocks are bf16 too, and weights are cast once per
    step instead of once per pass.

    Args:
        master: the model in fp32
    """

    def __init__(self, master: nn.Module) -> None:
        self.model = copy.deepcopy(master)
        for mine, theirs in zip(self.model.modules(), master.modules(), strict=True):
            if not isinstance(mine, nn.modules.batchnorm._BatchNorm):
                for weight in mine.parameters(recurse=False):
                    weight.data = weight.data.bfloat16()
            mine._buffers = theirs._buffers
        self.weights: list[Tensor] = list(self.model.parameters())
        self.masters: list[Tensor] = list(master.parameters())

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the fp32 weights as the last step left them."""
        torch._foreach_copy_(self.weights, self.masters)

    @torch.no_grad()
    def collect(self) -> None:
        """Move the gradients to the fp32 weights, added to those already there."""
        for mine, theirs in zip(self.weights, self.masters, strict=True):
            if mine.grad is not None:
                grad = mine.grad.float()
                theirs.grad = grad if theirs.grad is None else theirs.grad + grad
                mine.grad = None


class Engine:
    """The network that a batch passes through: the model or its bf16 copy, compiled or not.

    Attributes:
        network: what an objective calls
        shared: the same before compilation; with several processes it averages gradients
        plain: the module under both
        model: the weights that learn, in fp32

    Args:
        model: the weights that learn
        precision: auto, fp32, bf16 or bf16-pure
        compiled: whether forward and backward pass are compiled
        share: wraps the network for several processes
    """

    def __init__(
        self,
        model: nn.Module,
        precision: TrainingPrecision,
        compiled: bool = False,
        share: Callable[[Any], nn.Module] = lambda network: network,
    ) -> None:
        self.model, self.device = model, next(model.parameters()).device
        self.precision = resolved(precision, self.device)
        self.copy = Bfloat16Copy(model) if precision == "bf16-pure" else None
        self.plain: nn.Module = model if self.copy is None else self.copy.model
        self.compiled, self.shared = compiled, share(self.plain)
        # dynamic=False: one graph per size; sizes that come later run uncompiled
        self.network: Any = torch.compile(self.shared, dynamic=False) if compiled else self.shared

    def begin(self) -> None:
        """Prepare for a batch: training mode, and the weights as the last step left them."""
        for model in {self.model, self.plain}:
            if not model.training:  # the walk over all modules is not free
                train_mode(model)
        if self.copy is not None:
            self.copy.refresh()

    def images(self, pixels: Tensor | Packed) -> Tensor | Packed:
        """Return normalized images in the network's precision."""
        return pixels if self.copy is None else pixels.to(torch.bfloat16)

    def computing(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if self.precision == "bf16":
            return devices.autocast(self.device, "bf16")
        return nullcontext()

    def collect(self) -> None:
        """Collect the gradients of a backward pass."""
        if self.copy is not None:
            self.copy.collect()

    def no_more_compiling(self) -> AbstractContextManager[object]:
        """Within the context, batches of other sizes (without damaged images) run uncompiled."""
        return torch.compiler.set_stance("eager_on_recompile") if self.compiled else nullcontext()

    def give_up_compiling(self) -> None:
        """Run uncompiled from now on."""
        self.compiled, self.network = False, self.shared
