"""The encoder's block: residual branches of attention, then of MLPs."""

from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from vitlab.models.attention import Attention, Axis
from vitlab.models.config import ViTConfig
from vitlab.models.position import Inner
from vitlab.models.wide import (
    Layout,
    WideHeadNorms,
    activate,
    wide_attention,
    wide_mlp,
    widen_attention,
    widen_mlp,
)


class MLP(nn.Module):
    """Two dense layers with a GELU between (ViT paper, equation 3): (B, N, D) -> (B, N, D).

    As SwiGLU (Shazeer, 2020) the first is twice as wide, and its one half gates the other.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.ffn == "swiglu"
        wide = config.mlp * (2 if self.gated else 1)
        self.expand = nn.Linear(config.width, wide, bias=config.bias)
        self.act = nn.SiLU() if self.gated else gelu(config)
        self.drop = nn.Dropout(config.dropout)
        self.contract = nn.Linear(config.mlp, config.width, bias=config.bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Xavier-uniform kernels; biases normal with 1e-6, as in the official code."""
        halves = self.expand.weight.chunk(2) if self.gated else (self.expand.weight,)
        for weight in (*halves, self.contract.weight):
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in (self.expand.bias, self.contract.bias):
            if bias is not None:
                nn.init.normal_(bias, std=1e-6, generator=generator)

    def forward(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """Each token by itself."""
        return self.contract(self.mix(tokens))

    def mix(self, tokens: Tensor) -> Tensor:
        """The hidden units, (B, N, mlp)."""
        return self.drop(activate(self.expand(tokens), self.act, self.gated))


def gelu(config: ViTConfig) -> nn.Module:
    """The flavor of GELU that the weights were trained with."""
    match config.gelu:
        case "exact":
            return nn.GELU()
        case "tanh":
            return nn.GELU("tanh")
        case "quick":
            return QuickGELU()


class QuickGELU(nn.Module):
    """OpenAI's approximation, x * sigmoid(1.702 x) (CLIP)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Each number by itself."""
        return hidden * torch.sigmoid(1.702 * hidden)


Body = TypeVar("Body", Attention, MLP)


class Branch(nn.Module, Generic[Body]):
    """One residual branch: what is added to the tokens is drop(scale * body(norm(tokens)))."""

    def __init__(self, config: ViTConfig, body: Body, drop_path: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.body: Body = body
        self.start = config.layer_scale
        self.scale = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """The norm is the identity at first, LayerScale its constant; the body knows its own."""
        self.norm.reset_parameters()
        self.body.reset_parameters(generator)
        if self.scale is not None:
            nn.init.constant_(self.scale, self.start)

    def forward(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """What to add to the tokens: (B, N, D) -> (B, N, D).

        Stochastic depth (Huang et al., 2016) takes a random subset of the batch, of fixed size, and
        does no work for the others; what it adds is scaled up to keep the expectation, as DINOv2's
        code does. A batch of one is never dropped.
        """
        count = len(tokens)
        kept = max(1, round(count * (1 - self.drop_path)))
        if not self.training or kept == count:
            return self._add(tokens, inner)
        chosen = torch.randperm(count, device=tokens.device)[:kept]
        part = self._add(tokens[chosen], inner) * (count / kept)
        return torch.zeros_like(tokens, dtype=part.dtype).index_copy(0, chosen, part)

    def _add(self, tokens: Tensor, inner: Inner | None) -> Tensor:
        added = self.drop(self.body(self.norm(tokens), inner))
        return added if self.scale is None else added * self.scale


class Block(nn.Module):
    """Attention, then MLP, each beside an identity (ViT paper, equations 2 and 3).

    With more than one branch the branches of a kind see the same tokens, and the sum of what they
    say is added (Three things, equation 2).
    """

    def __init__(self, config: ViTConfig, axis: Axis = None, drop_path: float = 0.0) -> None:
        super().__init__()
        branches = range(config.branches)
        self.attention = nn.ModuleList(
            Branch(config, Attention(config, axis), drop_path) for _ in branches
        )
        self.mlp = nn.ModuleList(Branch(config, MLP(config), drop_path) for _ in branches)
        self.wide = False  # one wide computation; with dropping, branches stay apart in training
        self.drops = config.dropout > 0 or drop_path > 0

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Each branch in turn."""
        for branch in (*self.attention, *self.mlp):
            cast(Branch[Any], branch).reset_parameters(generator)

    def forward(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """Tokens in, tokens out: (B, N, D)."""
        if self.wide and not (self.training and self.drops):
            return self._forward_wide(tokens, inner)
        for branches in (self.attention, self.mlp):
            added = [branch(tokens, inner) for branch in branches]
            tokens = tokens + (added[0] if len(added) == 1 else torch.stack(added).sum(0))
        return tokens

    def layout(self) -> Layout:
        """What the wide form must know beside its tensors."""
        attention = cast(Branch[Attention], self.attention[0])
        mlp, body = cast(Branch[MLP], self.mlp[0]).body, attention.body
        heads = body.heads * len(self.attention)
        return Layout(heads, body.axis, body.grid, attention.norm.eps, mlp.act, mlp.gated)

    def head_norms(self) -> WideHeadNorms | None:
        """The norms on queries and keys of all branches, where there are any."""
        branches = [cast(Branch[Attention], branch) for branch in self.attention]
        body = branches[0].body
        return WideHeadNorms(branches, body.heads) if body.norms is not None else None

    def _forward_wide(self, tokens: Tensor, inner: Inner | None) -> Tensor:
        layout = self.layout()
        wide = widen_attention(cast(list[Branch[Any]], list(self.attention)))
        tokens = tokens + wide_attention(tokens, wide, self.head_norms(), inner, layout)
        wide = widen_mlp(cast(list[Branch[Any]], list(self.mlp)))
        return tokens + wide_mlp(tokens, wide, layout)

    def attention_weights(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """What each head attends to at the block's input: (B, branches * heads, N, N)."""
        branches = [cast(Branch[Attention], branch) for branch in self.attention]
        return torch.cat([each.body.weights(each.norm(tokens), inner) for each in branches], dim=1)


def drop_rates(config: ViTConfig) -> list[float]:
    """The share of stochastic depth in each block: the same for all, or a ramp from 0."""
    if not config.drop_path_ramp or config.depth == 1:
        return [config.drop_path] * config.depth
    return [config.drop_path * i / (config.depth - 1) for i in range(config.depth)]
