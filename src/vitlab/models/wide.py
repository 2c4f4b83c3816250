"""Parallel branches as one wide computation (Three things, section 3), exactly.

Branches share the normalized tokens: each norm's scale and shift go into the weights behind it, so
that one product makes all queries, keys and values, and one attention has all the heads. A product
over the joined inner width sums the branches by itself, with LayerScale in its weights. The same
tensors serve training, where they are built anew each pass, and `fuse`, where they are built once.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.attention import fold, gather, head_weights, split, spread, unfold
from vitlab.models.position import Inner

if TYPE_CHECKING:
    from vitlab.models.block import Branch


class Wide(NamedTuple):
    """A pair of dense layers, into the branches and out of them; biases (…,), None for none."""

    weight_in: Tensor  # (inner, D)
    bias_in: Tensor
    weight_out: Tensor  # (D, inner)
    bias_out: Tensor | None


def widen_attention(branches: Sequence["Branch[Any]"]) -> Wide:
    """N branches of attention: in (3 N D, D), all queries first, then keys, then values."""
    ins = [_with_norm(branch, branch.body.qkv) for branch in branches]
    outs = [_with_scale(branch, branch.body.project) for branch in branches]
    return _joined(ins, outs, parts=3)


def widen_mlp(branches: Sequence["Branch[Any]"]) -> Wide:
    """N branches of MLPs: in (N mlp, D); gated ones (2 N mlp, D), all gates first."""
    ins = [_with_norm(branch, branch.body.expand) for branch in branches]
    outs = [_with_scale(branch, branch.body.contract) for branch in branches]
    return _joined(ins, outs, parts=2 if branches[0].body.gated else 1)


def _with_norm(branch: "Branch[Any]", dense: nn.Linear) -> tuple[Tensor, Tensor]:
    """dense(norm(x)) as one map of x less its mean, by its deviation."""
    bias = dense.weight @ branch.norm.bias
    return dense.weight * branch.norm.weight, bias if dense.bias is None else bias + dense.bias


def _with_scale(branch: "Branch[Any]", dense: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Scale * dense(x) as one map."""
    if branch.scale is None:
        return dense.weight, dense.bias
    bias = None if dense.bias is None else dense.bias * branch.scale
    return dense.weight * branch.scale[:, None], bias


def _joined(
    ins: list[tuple[Tensor, Tensor]], outs: list[tuple[Tensor, Tensor | None]], parts: int
) -> Wide:
    weights = [torch.cat(same) for same in zip(*(w.chunk(parts) for w, _ in ins), strict=True)]
    biases = [torch.cat(same) for same in zip(*(b.chunk(parts) for _, b in ins), strict=True)]
    bias = [b for _, b in outs if b is not None]
    return Wide(
        torch.cat(weights),
        torch.cat(biases),
        torch.cat([weight for weight, _ in outs], dim=1),
        torch.stack(bias).sum(0) if bias else None,
    )


class WideHeadNorms(nn.Module):
    """The head norms of several branches, each head with those of its own branch."""

    def __init__(self, branches: Sequence["Branch[Any]"], heads: int) -> None:
        super().__init__()
        self.eps = branches[0].body.norms.q.eps

        def stack(which: str, what: str) -> Tensor:
            rows = [getattr(getattr(each.body.norms, which), what) for each in branches]
            return torch.stack(rows).repeat_interleave(heads, 0)[:, None]  # (N h, 1, d)

        self.q, self.q_shift = stack("q", "weight"), stack("q", "bias")
        self.k, self.k_shift = stack("k", "weight"), stack("k", "bias")

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Each (B, N h, T, d)."""
        return unit_norm(q, self.eps) * self.q + self.q_shift, (
            unit_norm(k, self.eps) * self.k + self.k_shift
        )


def unit_norm(tokens: Tensor, eps: float) -> Tensor:
    """LayerNorm without its scale and shift."""
    return F.layer_norm(tokens, tokens.shape[-1:], None, None, eps)


class Layout(NamedTuple):
    """What both forms of a wide block must know beside their tensors."""

    heads: int  # of all branches together
    axis: Any
    grid: tuple[int, int]
    eps: float
    act: nn.Module
    gated: bool


def wide_attention(
    tokens: Tensor, wide: Wide, norms: nn.Module | None, inner: Inner | None, how: Layout
) -> Tensor:
    """What all attention branches add together: (B, N, D) -> (B, N, D)."""
    folded = fold(unit_norm(tokens, how.eps), how.axis, how.grid)
    q, k, v = split(F.linear(folded, wide.weight_in, wide.bias_in), how.heads)
    mixed = unfold(gather(q, k, v, norms, inner), how.axis, how.grid, len(tokens))
    return F.linear(mixed, wide.weight_out, wide.bias_out)


def wide_attention_weights(
    tokens: Tensor, wide: Wide, norms: nn.Module | None, inner: Inner | None, how: Layout
) -> Tensor:
    """What each head attends to: (B, N, D) -> (B, branches * heads, N, N)."""
    folded = fold(unit_norm(tokens, how.eps), how.axis, how.grid)
    q, k, _ = split(F.linear(folded, wide.weight_in, wide.bias_in), how.heads)
    return spread(head_weights(q, k, norms, inner), how.axis, how.grid)


def wide_mlp(tokens: Tensor, wide: Wide, how: Layout) -> Tensor:
    """What all MLP branches add together: (B, N, D) -> (B, N, D)."""
    hidden = F.linear(unit_norm(tokens, how.eps), wide.weight_in, wide.bias_in)
    return F.linear(activate(hidden, how.act, how.gated), wide.weight_out, wide.bias_out)


def activate(hidden: Tensor, act: nn.Module, gated: bool) -> Tensor:
    """The MLP's non-linearity; gated, the first half of the units multiplies the second."""
    if not gated:
        return act(hidden)
    gate, value = hidden.chunk(2, -1)
    return act(gate) * value
