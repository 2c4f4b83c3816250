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

from vitlab.models.encoder.block import Block, Branch
from vitlab.models.encoder.layout import Layout

Module = TypeVar("Module", bound=nn.Module)


@torch.no_grad()
def fuse(model: Module) -> Module:
    """Return a copy of a model for inference: same methods and, to rounding, same outputs.

    Norms and LayerScale are folded into the dense layers after and before them, parallel branches
    become one wide computation, batch norm goes into the stem's convolutions with its running
    statistics, and standardized convolutions store their standardized kernels. The copy cannot be
    trained or saved.
    """
    fused = copy.deepcopy(model).eval().requires_grad_(False)
    for name, module in list(fused.named_modules()):
        if isinstance(module, Block):
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
        self.eps = block.attention[0].norm.eps
        attention = [branch.body for branch in block.attention]
        self.attention, self.mlp = attention[0], block.mlp[0].body
        if self.attention.norms is not None:
            self.attention.norms = WideHeadNorms(block.attention)
        self.attention.qkv = _inwards(block.attention, [each.qkv for each in attention], 3)
        self.attention.project = _outwards(block.attention, [each.project for each in attention])
        self.attention.heads *= len(attention)
        mlp, gates = [branch.body for branch in block.mlp], 2 if self.mlp.gated else 1
        self.mlp.expand = _inwards(block.mlp, [each.expand for each in mlp], gates)
        self.mlp.contract = _outwards(block.mlp, [each.contract for each in mlp])

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Transform tokens: (B, N, D) -> (B, N, D)."""
        tokens = tokens + self.attention(unit_norm(tokens, self.eps), layout)
        return tokens + self.mlp(unit_norm(tokens, self.eps))

    def attention_weights(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Return each head's attention at the block's input: (B, branches * heads, N, N)."""
        return self.attention.weights(unit_norm(tokens, self.eps), layout)


class WideHeadNorms(nn.Module):
    """The head norms of several branches, each head with those of its own branch."""

    q_weight: Tensor
    q_bias: Tensor
    k_weight: Tensor
    k_bias: Tensor

    def __init__(self, branches: Sequence[Branch[Any]]) -> None:
        super().__init__()
        first = branches[0].body
        self.eps = first.norms.q.eps
        for which in ("q", "k"):
            norms = [getattr(branch.body.norms, which) for branch in branches]
            for name in ("weight", "bias"):
                rows = torch.stack([getattr(norm, name) for norm in norms])
                wide = rows.repeat_interleave(first.heads, 0)[:, None]  # (N h, 1, d)
                self.register_buffer(f"{which}_{name}", wide)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize queries and keys, each (B, N h, T, d)."""
        q = unit_norm(q, self.eps) * self.q_weight + self.q_bias
        return q, unit_norm(k, self.eps) * self.k_weight + self.k_bias


def unit_norm(tokens: Tensor, eps: float) -> Tensor:
    """Apply LayerNorm without its scale and shift."""
    return F.layer_norm(tokens, tokens.shape[-1:], None, None, eps)


def _inwards(branches: Sequence[Branch[Any]], layers: list[nn.Linear], parts: int) -> nn.Linear:
    """Join layer(norm(x)) of all branches into one map of the unit-normalized x.

    A layer makes several parts, as queries, keys and values; those of all branches lie together:
    (N inner, D), all queries first.
    """
    weights, biases = [], []
    for branch, layer in zip(branches, layers, strict=True):
        shift = layer.weight @ branch.norm.bias
        weights.append((layer.weight * branch.norm.weight).chunk(parts))
        biases.append((shift if layer.bias is None else shift + layer.bias).chunk(parts))
    weight = torch.cat([torch.cat(same) for same in zip(*weights, strict=True)])
    return _dense(weight, torch.cat([torch.cat(same) for same in zip(*biases, strict=True)]))


def _outwards(branches: Sequence[Branch[Any]], layers: list[nn.Linear]) -> nn.Linear:
    """Join scale * layer(x) of all branches into one map that sums them: (D, N inner)."""
    weights, biases = [], []
    for branch, layer in zip(branches, layers, strict=True):
        scale = layer.weight.new_ones(()) if branch.scale is None else branch.scale
        weights.append(layer.weight * scale[..., None])
        biases += [] if layer.bias is None else [layer.bias * scale]
    return _dense(torch.cat(weights, dim=1), torch.stack(biases).sum(0) if biases else None)


def _dense(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear layer of given tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer
