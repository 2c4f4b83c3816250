"""A linear layer that learns by oneDNN's fp32 products, where the processor prefers them."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from vitlab.device import prefers_onednn

WORTH = 2**26  # multiply-adds: a product of new shape first costs about a millisecond


class TrainedLinear(nn.Linear):
    """`nn.Linear`, which in training on a CPU may compute y = x Wᵀ + b and dx = dy W by oneDNN.

    PyTorch gives fp32 products to MKL. On AMD's processors with AVX-512, oneDNN takes 0.92 to 0.95
    of its time for y and 0.80 to 0.90 for dx, and as long for dW, which stays with MKL. Results
    agree to fp32 rounding and have the same bits in every run on a processor.
    """

    def forward(self, values: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        if self.training and suits(values, self.weight):
            learned: Any = Product.apply
            found: Tensor = learned(values, self.weight, self.bias)
            return found
        return super().forward(values)


def suits(values: Tensor, weight: Tensor) -> bool:
    """Return whether a product that learns is one for oneDNN: large, in fp32, not compiled."""
    return (
        values.device.type == "cpu"
        and values.dtype is weight.dtype is torch.float32
        and values.numel() * len(weight) >= WORTH
        and type(values) is Tensor  # not one that only stands for a tensor, or for a part of one
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and prefers_onednn()
    )


class Product(torch.autograd.Function):
    """x Wᵀ + b of fp32 tensors, x (…, in) and W (out, in), with its gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Compute (…, out)."""
        ctx.save_for_backward(values, weight)
        return onednn(values, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W and b that are needed."""
        values, weight = ctx.saved_tensors
        wanted, rows = ctx.needs_input_grad, grad.flatten(0, -2)
        of_values = of_weight = of_bias = None
        if wanted[0]:  # a gradient that is to be differentiated itself takes PyTorch's product
            back = rows @ weight if torch.is_grad_enabled() else onednn(rows, weight.t(), None)
            of_values = back.view(values.shape)
        if wanted[1]:
            of_weight = rows.t() @ values.flatten(0, -2)
        if wanted[2]:
            of_bias = rows.sum(0)
        return of_values, of_weight, of_bias


def onednn(values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b, computed by oneDNN whatever the type: (…, in), (out, in) -> (…, out)."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(values, weight, bias, "none", [], "")
    return found
