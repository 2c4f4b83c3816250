"""Linear layers for inference: in their own precision, with what follows them in one pass."""

import platform
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import DeviceError

Gelu = Literal["none", "tanh"]  # PyTorch's words: exact, and approximated by tanh


class Dense(nn.Module):
    """A linear layer that computes in a precision of its own, whatever its input is in.

    Args:
        layer: it is copied
        dtype: of the copy's weights, its product and its output
    """

    bias: Tensor | None
    kernel: Tensor

    def __init__(self, layer: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype = dtype
        self.register_buffer("bias", None if layer.bias is None else _of(layer.bias, dtype))
        self._keep(_of(layer.weight, dtype))

    def _keep(self, kernel: Tensor) -> None:
        """Store the kernel, (out, in)."""
        self.register_buffer("kernel", kernel)

    def forward(self, values: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return F.linear(values.to(self.dtype), self.kernel, self.bias)

    def then_gelu(self, values: Tensor, form: Gelu) -> Tensor:
        """Map (…, in) to (…, out), and apply a GELU."""
        return F.gelu(self(values), approximate=form)

    def onto(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Map (…, in) to (…, out), and add it to tokens of this shape and precision."""
        return tokens + self(values)


class PackedDense(Dense):
    """The same on a CPU by oneDNN, with its weights once and for all in the order it wants.

    GELU and addition happen while the product is still in the cache. oneDNN's fp32 products are
    also faster than MKL's, which `nn.Linear` uses, on processors that are not Intel's.

    Args:
        layer: it is copied
        dtype: float32 or bfloat16
        rows: tokens that come together, which the order of the weights may depend on
    """

    packed: Tensor

    def __init__(self, layer: nn.Linear, dtype: torch.dtype, rows: int) -> None:
        self.rows = rows
        super().__init__(layer, dtype)

    def _keep(self, kernel: Tensor) -> None:
        # no buffer: it has no layout that other code can read, move or save
        self.packed = torch.ops.mkldnn._reorder_linear_weight(kernel.contiguous(), self.rows)

    def forward(self, values: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        return self._after(values, "none", "")

    def then_gelu(self, values: Tensor, form: Gelu) -> Tensor:
        """Map (…, in) to (…, out), and apply a GELU."""
        return self._after(values, "gelu", form)

    def onto(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Map (…, in) to (…, out), and add it to tokens of this shape and precision."""
        sums: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            values.to(self.dtype), tokens, self.packed, self.bias, "add"
        )
        return sums

    def _after(self, values: Tensor, what: str, form: str) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            values.to(self.dtype), self.packed, self.bias, what, [], form
        )
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the layer itself: it never changes, and packed weights cannot be copied."""
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Stay as it is when the model is moved; refuse another device.

        Raises:
            DeviceError: the model is moved to a GPU.
        """
        if fn(torch.empty(0)).device.type != "cpu":
            raise DeviceError(
                "a model accelerated for the CPU stays there: accelerate the model that it was "
                "made from again, with device='cuda'"
            )
        return self


def can_pack() -> bool:
    """Return whether this processor and PyTorch have oneDNN's packed products."""
    return (
        platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and torch.cpu._is_avx2_supported()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def has_bf16() -> bool:
    """Return whether this processor itself multiplies bf16, and so faster than fp32."""
    return can_pack() and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def _of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.detach().to(dtype, copy=True)
