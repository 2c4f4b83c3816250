"""The packed form of a model for inference: weights in oneDNN's own order, or in bf16.

GELU and residual sums are computed within the products, and the last block computes only the tokens
that the head reads. On a GPU, and where oneDNN has no such product, the layers are plain ones.
"""

import platform
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Self, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import DeviceError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.fuse import FusedBlock, dense_of, fuse
from vitlab.models.model import Model
from vitlab.models.positions.positions import Positions
from vitlab.models.vit import VisionTransformer

Gelu = Literal["none", "tanh"]  # PyTorch's words: exact, and approximated by tanh


def packed(model: Model, where: torch.device, dtype: torch.dtype, pack: bool = True) -> Model:
    """Return a copy of a model whose blocks and patches are computed in fp32 or bf16.

    Features and scores stay in fp32. Blocks with their norms after attention and MLP, and those of
    a ResNet, are computed as they are, in fp32.

    Args:
        model: it stays as it is
        where: the device of the copy
        dtype: of the blocks' weights and tokens
        pack: put weights into oneDNN's order, where the device has such products
    """
    copy = fuse(model).to(where)
    rows = copy.config.length if isinstance(copy.config, ViTConfig) else 1
    order = pack and where.type == "cpu" and can_pack(dtype)

    def make(layer: nn.Linear, gelu: Gelu | None = None, dtype: torch.dtype = dtype) -> Dense:
        return PackedDense(layer, dtype, rows, gelu) if order else Dense(layer, dtype, gelu)

    blocks = [(name, each) for name, each in copy.named_modules() if isinstance(each, FusedBlock)]
    for name, block in blocks:
        last = name == blocks[-1][0]
        copy.set_submodule(name, FastBlock(block, make, dtype, last))
    if blocks and pack:
        for name, layer in list(copy.named_modules()):
            if name.startswith("stem.") and is_product(layer):
                copy.set_submodule(name, PatchProduct(layer, make))
    if order or dtype is torch.bfloat16:  # which cast what comes from bf16 blocks
        replace_layers(copy, partial(make, dtype=torch.float32))
    copy.computes = "bf16" if blocks and dtype is torch.bfloat16 else "fp32"
    if isinstance(copy, VisionTransformer):
        copy.watched = False
    return copy.eval()


def can_pack(dtype: torch.dtype = torch.float32) -> bool:
    """Return whether this processor and PyTorch have oneDNN's packed products of a type."""
    there = (
        platform.machine() in ("x86_64", "AMD64")
        and torch.backends.mkldnn.is_available()
        and torch.cpu._is_avx2_supported()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )
    return there and (dtype is torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Dense(nn.Module):
    """A linear layer that computes in a precision of its own, whatever its input is in.

    Args:
        layer: it is copied
        dtype: of the copy's weights, its product and its output
        gelu: the form of a GELU that follows; None for none
    """

    bias: Tensor | None
    kernel: Tensor

    def __init__(self, layer: nn.Linear, dtype: torch.dtype, gelu: Gelu | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.dtype, self.gelu = dtype, gelu
        self.register_buffer("bias", None if layer.bias is None else _of(layer.bias, dtype))
        self.register_buffer("kernel", _of(layer.weight, dtype))  # (out, in)

    def forward(self, values: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        found = F.linear(values.to(self.dtype), self.kernel, self.bias)
        return found if self.gelu is None else F.gelu(found, approximate=self.gelu)

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
        gelu: the form of a GELU that follows; None for none
    """

    packed: Tensor

    def __init__(
        self, layer: nn.Linear, dtype: torch.dtype, rows: int, gelu: Gelu | None = None
    ) -> None:
        super().__init__(layer, dtype, gelu)
        self.rows, kernel = rows, self.kernel.contiguous()
        # no buffer: it has no layout that other code can read, move or save
        self.packed = torch.ops.mkldnn._reorder_linear_weight(kernel, rows)
        del self.kernel

    def forward(self, values: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        act, form = ("none", "none") if self.gelu is None else ("gelu", self.gelu)
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            values.to(self.dtype), self.packed, self.bias, act, [], form
        )
        return found

    def onto(self, values: Tensor, tokens: Tensor) -> Tensor:
        """Map (…, in) to (…, out), and add it to tokens of this shape and precision."""
        sums: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            values.to(self.dtype), tokens, self.packed, self.bias, "add"
        )
        return sums

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the layer itself: it never changes, and packed weights cannot be copied."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as plain numbers, to be packed again there."""
        known = self.packed.to_dense(), self.bias, self.dtype, self.rows, self.gelu
        return repacked, known

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


def repacked(
    kernel: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: int, gelu: Gelu | None
) -> Dense:
    """Return a layer that was packed in another process, packed if this processor can."""
    layer = dense_of(kernel, bias)
    return PackedDense(layer, dtype, rows, gelu) if can_pack(dtype) else Dense(layer, dtype, gelu)


class FastBlock(nn.Module):
    """What `FusedBlock` computes, with GELU and residual sums inside the products before them.

    Tokens between blocks are in the precision of the products.

    Args:
        block: it is taken over
        make: the form of its linear layers, of which one has a GELU
        dtype: of its tokens
        last: return tokens in fp32, for what follows the blocks
    """

    def __init__(
        self, block: FusedBlock, make: Callable[..., Dense], dtype: torch.dtype, last: bool
    ) -> None:
        super().__init__()
        block.to(dtype)
        self.unit, self.attention, self.mlp = block.unit, block.attention, block.mlp
        self.dtype, self.leaving = dtype, torch.float32 if last else dtype
        act = self.mlp.act
        if isinstance(act, nn.GELU):
            self.set_submodule("mlp.expand", make(self.mlp.expand, act.approximate))
            self.mlp.act = nn.Identity()
        replace_layers(self, make)

    def forward(
        self, tokens: Tensor, positions: Positions | None = None, leading: int | None = None
    ) -> Tensor:
        """Transform tokens: (B, N, D) -> (B, N, D), or (B, leading, D)."""
        project: Any = self.attention.project
        contract: Any = self.mlp.contract
        tokens = tokens.to(self.dtype).contiguous()
        gathered = self.attention.gathered(self.unit(tokens), positions, leading)
        tokens = project.onto(gathered, tokens[:, :leading].contiguous())
        found: Tensor = contract.onto(self.mlp.hidden(self.unit(tokens)), tokens)
        return found.to(self.leaving)

    def attention_weights(self, tokens: Tensor, positions: Positions | None = None) -> Tensor:
        """Return each head's attention at the block's input: (B, branches * heads, N, N)."""
        weights = self.attention.weights(self.unit(tokens.to(self.dtype)), positions)
        return weights.to(torch.float32)


def replace_layers(module: nn.Module, make: Callable[..., Dense]) -> None:
    """Put another form of each linear layer into its place."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.Linear):
            module.set_submodule(name, make(layer))


class PatchProduct(nn.Module):
    """One product for all patches of a map: (B, C, H, W) -> (B, out, H / P, W / P).

    Args:
        layer: a convolution that `is_product`
        make: the form of a linear layer
    """

    def __init__(self, layer: nn.Conv2d, make: Callable[..., Dense]) -> None:
        super().__init__()
        self.side = layer.kernel_size
        self.dense = make(dense_of(layer.weight.detach().flatten(1), layer.bias))

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, out, H / P, W / P), in the precision of the images."""
        rows, columns = self.side
        cut = images.to(self.dense.dtype).unflatten(3, (-1, columns)).unflatten(2, (-1, rows))
        grid = cut.shape[2], cut.shape[4]
        patches = cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # none of no images, too
        tokens = self.dense(patches).to(images.dtype)  # (B, N, out)
        return tokens.transpose(1, 2).unflatten(2, grid)


def is_product(layer: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Return whether a layer is a convolution over patches that do not overlap."""
    return (
        isinstance(layer, nn.Conv2d)
        and layer.kernel_size == layer.stride
        and layer.padding == (0, 0)
        and layer.groups == 1
        and layer.dilation == (1, 1)
    )


def _of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.detach().to(dtype, copy=True)
