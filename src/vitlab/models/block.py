"""The encoder's block: residual branches of attention, then of MLPs."""

from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor, nn

from vitlab.models.attention import Attention
from vitlab.models.config import ViTConfig


class MLP(nn.Module):
    """Two dense layers with a GELU between (ViT paper, equation 3): (B, N, D) -> (B, N, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.expand = nn.Linear(config.width, config.mlp)
        self.act = nn.GELU("tanh" if config.gelu == "tanh" else "none")
        self.drop = nn.Dropout(config.dropout)
        self.contract = nn.Linear(config.mlp, config.width)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Xavier-uniform kernels; biases normal with 1e-6, as in the official code."""
        for dense in (self.expand, self.contract):
            nn.init.xavier_uniform_(dense.weight, generator=generator)
            nn.init.normal_(dense.bias, std=1e-6, generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Each token by itself."""
        return self.contract(self.drop(self.act(self.expand(tokens))))


Body = TypeVar("Body", Attention, MLP)


class Branch(nn.Module, Generic[Body]):
    """One residual branch: what is added to the tokens is body(norm(tokens))."""

    def __init__(self, config: ViTConfig, body: Body) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width, config.norm_eps)
        self.body: Body = body
        self.drop = nn.Dropout(config.dropout)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """The norm is the identity at first; the body knows its own start."""
        self.norm.reset_parameters()
        self.body.reset_parameters(generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """What to add to the tokens: (B, N, D) -> (B, N, D)."""
        return self.drop(self.body(self.norm(tokens)))


class Block(nn.Module):
    """Attention, then MLP, each beside an identity (ViT paper, equations 2 and 3).

    With more than one branch the branches of a kind see the same tokens, and the sum of what they
    say is added (Three things, equation 2).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        branches = range(config.branches)
        self.attention = nn.ModuleList(Branch(config, Attention(config)) for _ in branches)
        self.mlp = nn.ModuleList(Branch(config, MLP(config)) for _ in branches)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Each branch in turn."""
        for branch in (*self.attention, *self.mlp):
            cast(Branch[Any], branch).reset_parameters(generator)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens in, tokens out: (B, N, D)."""
        for branches in (self.attention, self.mlp):
            tokens = tokens + sum(branch(tokens) for branch in branches)
        return tokens

    def attention_weights(self, tokens: Tensor) -> Tensor:
        """What each head attends to at the block's input: (B, branches * heads, N, N)."""
        branches = (cast(Branch[Attention], branch) for branch in self.attention)
        return torch.cat([each.body.weights(each.norm(tokens)) for each in branches], dim=1)
