"""The exact inference form of a model: everything constant is folded into the weights.

Parallel branches share their tokens' normalization, so that one product makes the queries, keys
and values of all branches, and one over the joined inner width sums their outputs (Three things,
section 3). Each norm's scale and shift and each LayerScale go into the weights beside them.
"""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.encoder.attention import Attention, HeadNorms
from vitlab.models.encoder.block import Block, Branch
from vitlab.models.layers import NORMS
from vitlab.models.positions.positions import Positions
from vitlab.public_calls import public

Module = TypeVar("Module", bound=nn.Module)
Norm = nn.LayerNorm | nn.RMSNorm


@torch.no_grad()
@public(model=nn.Module)
def fuse(model: Module) -> Module:
    """Return a copy of a model for inference: same methods and, to rounding, same outputs.

    Norms and LayerScale are folded into the dense layers after and before them, parallel branches
    become one wide computation, batch norm goes into the stem's convolutions with its running
    statistics, and standardized convolutions store their standardized kernels. Blocks with their
    norms after attention and MLP stay as they are. The copy cannot be trained or saved.
    """
    fused = copy.deepcopy(model).eval().requires_grad_(False)
    for name, module in list(fused.named_modules()):
        if isinstance(module, Block) and not module.attention[0].after:
            fused.set_submodule(name, FusedBlock(module))
        elif callable(fold := getattr(module, "fuse", None)):  # a part that knows how itself
            fold()
    return fused.eval()


class FusedBlock(nn.Module):
    """A block as one wide attention and one wide MLP, of unit-normalized tokens.

    It takes over the first branch's modules, and replaces their layers.
    """

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.unit: nn.Module = UnitNorm(block.attention[0].norm)
        attention = [branch.body for branch in block.attention]
        self.attention, self.mlp = attention[0], block.mlp[0].body
        if self.attention.norms is not None:
            self.attention.norms = WideHeadNorms(attention)
        self.attention.qkv = _inwards(block.attention, "qkv", 3)
        self.attention.project = _outwards(block.attention, "project")
        self.attention.heads *= len(attention)
        self.mlp.expand = _inwards(block.mlp, "expand", 2 if self.mlp.gated else 1)
        self.mlp.contract = _outwards(block.mlp, "contract")
        for body in (self.attention, self.mlp):
            if isinstance(body.norm, NORMS):
                body.norm = UnitNorm(body.norm, len(attention))

    def forward(
        self, tokens: Tensor, positions: Positions | None = None, leading: int | None = None
    ) -> Tensor:
        """Transform tokens: (B, N, D) -> (B, N, D), or (B, leading, D)."""
        attended = self.attention(self.unit(tokens), positions, leading)
        tokens = tokens[:, :leading] + attended
        return tokens + self.mlp(self.unit(tokens))

    def attention_weights(self, tokens: Tensor, positions: Positions | None = None) -> Tensor:
        """Return each head's attention at the block's input: (B, branches * heads, N, N)."""
        return self.attention.weights(self.unit(tokens), positions)


class UnitNorm(nn.Module):
    """A norm without scale and shift, over each of some equal parts of the channels."""

    def __init__(self, norm: Norm, parts: int = 1) -> None:
        super().__init__()
        self.eps, self.parts = norm.eps, parts
        self.rms = isinstance(norm, nn.RMSNorm)

    def forward(self, tokens: Tensor) -> Tensor:
        """Normalize (…, channels)."""
        split = tokens.unflatten(-1, (self.parts, -1)) if self.parts > 1 else tokens
        if self.rms:
            unit = F.rms_norm(split, split.shape[-1:], None, self.eps)
        else:
            unit = F.layer_norm(split, split.shape[-1:], None, None, self.eps or 0.0)
        return unit.flatten(-2) if self.parts > 1 else unit


class WideHeadNorms(nn.Module):
    """The head norms of several branches, each head with those of its own branch."""

    def __init__(self, attention: Sequence[Attention]) -> None:
        super().__init__()
        norms = [each.norms for each in attention if isinstance(each.norms, HeadNorms)]
        self.unit = UnitNorm(norms[0].q)
        for which in ("q", "k"):
            for name in ("weight", "bias"):
                own = [getattr(each, which) for each in norms]
                if hasattr(own[0], name):  # an RMSNorm has no bias
                    rows = torch.stack([getattr(norm, name) for norm in own])
                    wide = rows.repeat_interleave(attention[0].heads, 0)[:, None]  # (N h, 1, d)
                    self.register_buffer(f"{which}_{name}", wide)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize queries and keys, each (B, N h, T, d)."""
        return self._scaled(q, "q"), self._scaled(k, "k")

    def _scaled(self, heads: Tensor, which: str) -> Tensor:
        scaled = self.unit(heads) * getattr(self, f"{which}_weight")
        shift = getattr(self, f"{which}_bias", None)
        return scaled if shift is None else scaled + shift


def _folded(norm: nn.Module, layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of layer(norm(x)) as a map of the unit-normalized x."""
    if not isinstance(norm, NORMS):
        return layer.weight, layer.bias
    shift = getattr(norm, "bias", None)
    biases = [layer.bias, None if shift is None else layer.weight @ shift]
    there = [bias for bias in biases if bias is not None]
    return layer.weight * norm.weight, torch.stack(there).sum(0) if there else None


def _inwards(branches: Sequence[Branch[Any]], name: str, parts: int) -> nn.Linear:
    """Join layer(norm(x)) of all branches into one map of the unit-normalized x.

    A layer makes several parts, as queries, keys and values; those of all branches lie together:
    (N inner, D), all queries first.
    """
    folded = [_folded(branch.norm, getattr(branch.body, name)) for branch in branches]
    biases = [bias for _, bias in folded if bias is not None]
    weight = _joined([weight for weight, _ in folded], parts)
    return dense_of(weight, _joined(biases, parts) if biases else None)


def _joined(tensors: Sequence[Tensor], parts: int) -> Tensor:
    """Join the rows of several branches, part by part: all queries, all keys, all values."""
    chunks = [tensor.chunk(parts) for tensor in tensors]
    return torch.cat([torch.cat(same) for same in zip(*chunks, strict=True)])


def _outwards(branches: Sequence[Branch[Any]], name: str) -> nn.Linear:
    """Join scale * layer(norm(x)) of all branches into one map that sums them: (D, N inner).

    The norm, where there is one, is that within attention or MLP; x is unit-normalized by it.
    """
    weights, biases = [], []
    for branch in branches:
        weight, bias = _folded(branch.body.norm, getattr(branch.body, name))
        scale = weight.new_ones(()) if branch.scale is None else branch.scale
        weights.append(weight * scale[..., None])
        biases += [] if bias is None else [bias * scale]
    return dense_of(torch.cat(weights, dim=1), torch.stack(biases).sum(0) if biases else None)


def dense_of(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer of given tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
