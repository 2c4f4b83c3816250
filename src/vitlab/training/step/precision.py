"""In what precision a step computes: fp32, bf16 autocast, or weights in bf16 beside fp32 ones."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from vitlab import device as devices


class Bfloat16Copy:
    """A model's weights in bf16, which compute, beside the fp32 ones, which learn.

    The fp32 weights are the master copies (Micikevicius et al., Mixed Precision Training, 3.1): the
    optimizer, the average and the checkpoints know these alone, so that updates smaller than the
    8 bits of bf16 add up. Batch norms stay in fp32 as a whole, buffers are shared, and gradients
    are added up in fp32 from piece to piece. Unlike autocast, the tokens between the blocks are
    bf16 too, and weights are cast once a step instead of once a piece.

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
        """Take over the fp32 weights as the last step left them."""
        torch._foreach_copy_(self.weights, self.masters)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients to those of the fp32 weights, and forget them here."""
        for mine, theirs in zip(self.weights, self.masters, strict=True):
            if mine.grad is not None:
                grad = mine.grad.float()
                theirs.grad = grad if theirs.grad is None else theirs.grad + grad
                mine.grad = None


class Engine:
    """What a batch goes through: the model itself or its bf16 copy, compiled or not.

    Attributes:
        network: what an objective calls
        shared: the same before it is compiled: over several processes it averages gradients
        model: the weights that learn, in fp32

    Args:
        model: the weights that learn
        precision: fp32, bf16 or bf16-pure
        compiled: whether the network's forward and backward pass are compiled
        share: puts a network on several processes
    """

    def __init__(
        self,
        model: nn.Module,
        precision: str,
        compiled: bool = False,
        share: Callable[[Any], nn.Module] = lambda network: network,
    ) -> None:
        self.model, self.precision = model, precision
        self.device = next(model.parameters()).device
        self.copy = Bfloat16Copy(model) if precision == "bf16-pure" else None
        self.plain: nn.Module = model if self.copy is None else self.copy.model
        self.compiled, self.shared = compiled, share(self.plain)
        # dynamic=False: one graph a size; sizes that come later run as they are, see `computing`
        self.network: Any = torch.compile(self.shared, dynamic=False) if compiled else self.shared

    def begin(self) -> None:
        """Before a batch: training mode, and the weights as the last step left them."""
        for model in {self.model, self.plain}:
            if not model.training:  # the walk over all modules is not free
                model.train()
        if self.copy is not None:
            self.copy.refresh()

    def images(self, pixels: Tensor) -> Tensor:
        """Normalized images as the network takes them."""
        return pixels if self.copy is None else pixels.bfloat16()

    def computing(self) -> AbstractContextManager[object]:
        """Where the forward pass runs."""
        if self.precision == "bf16":
            return devices.autocast(self.device, "bf16")
        return nullcontext()

    def collect(self) -> None:
        """After the backward pass of a piece."""
        if self.copy is not None:
            self.copy.collect()

    def settle(self) -> AbstractContextManager[object]:
        """From here on nothing is compiled: a batch short of damaged images runs as it is."""
        return torch.compiler.set_stance("eager_on_recompile") if self.compiled else nullcontext()

    def give_up_compiling(self) -> None:
        """Go on without."""
        self.compiled, self.network = False, self.shared
