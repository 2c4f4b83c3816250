"""The precision of a training step: fp32, bf16 autocast, or bf16 weights beside fp32 masters."""

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


class TrainingEngine:
    """The network that a batch passes through: the model or its bf16 copy, compiled or not.

    With bf16-pure the weights that learn stay in fp32 (Micikevicius et al., Mixed Precision
    Training, 3.1): optimizer, average and checkpoints use only these, so that updates smaller than
    the 8 bits of bf16 add up. The copy has bf16 weights, cast once a step, and bf16 tokens between
    its blocks; batch norms stay in fp32, buffers are shared, gradients are accumulated in fp32.

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
        self.pure = precision == "bf16-pure"
        self.plain = _bf16_copy(model) if self.pure else model
        self.copies, self.masters = (
            list[Tensor](self.plain.parameters()),
            list[Tensor](model.parameters()),
        )
        self.compiled, self.shared = compiled, share(self.plain)
        # dynamic=False: one graph per size; sizes that come later run uncompiled
        self.network: Any = torch.compile(self.shared, dynamic=False) if compiled else self.shared

    def begin(self) -> None:
        """Prepare for a batch: training mode, and the weights as the last step left them."""
        for model in {self.model, self.plain}:
            if not model.training:  # the walk over all modules is not free
                train_mode(model)
        if self.pure:
            with torch.no_grad():
                torch._foreach_copy_(self.copies, self.masters)

    def images(self, pixels: Tensor | Packed) -> Tensor | Packed:
        """Return normalized images in the network's precision."""
        return pixels.to(torch.bfloat16) if self.pure else pixels

    def computing(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        if self.precision == "bf16":
            return devices.autocast(self.device, "bf16")
        return nullcontext()

    @torch.no_grad()
    def collect(self) -> None:
        """Move the gradients of a bf16 copy to the fp32 weights, added to those already there."""
        if not self.pure:
            return
        for mine, master in zip(self.copies, self.masters, strict=True):
            if mine.grad is not None:
                grad = mine.grad.float()
                master.grad = grad if master.grad is None else master.grad + grad
                mine.grad = None

    def no_more_compiling(self) -> AbstractContextManager[object]:
        """Within the context, batches of other sizes (without damaged images) run uncompiled."""
        return torch.compiler.set_stance("eager_on_recompile") if self.compiled else nullcontext()

    def give_up_compiling(self) -> None:
        """Run uncompiled from now on."""
        self.compiled, self.network = False, self.shared


def _bf16_copy(master: nn.Module) -> nn.Module:
    """Return a copy with bf16 weights, but for batch norms; it has the buffers of the model."""
    model = copy.deepcopy(master)
    for mine, theirs in zip(model.modules(), master.modules(), strict=True):
        if not isinstance(mine, nn.modules.batchnorm._BatchNorm):
            for weight in mine.parameters(recurse=False):
                weight.data = weight.data.bfloat16()
        mine._buffers = theirs._buffers
    return model
