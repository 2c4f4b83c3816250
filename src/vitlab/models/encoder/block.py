"""The encoder's block: residual branches of attention, then of MLPs; stochastic depth."""

import math
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.attention import Attention, Axis
from vitlab.models.layers import modules, norm_of, reset_parts, reset_xavier
from vitlab.models.positions.positions import Positions


class Block(nn.Module):
    """Attention, then MLP, each with an identity around it (ViT paper, equations 2 and 3).

    With more than one branch, all branches of a kind see the same tokens, and the sum of their
    outputs is added (Three things, equation 2).
    """

    def __init__(self, config: ViTConfig, axis: Axis = None, drop_path: float = 0.0) -> None:
        super().__init__()
        branches = range(config.branches)
        self.attention: Sequence[Branch[Attention]] = modules(
            Branch(config, Attention(config, axis), drop_path) for _ in branches
        )
        self.mlp: Sequence[Branch[MLP]] = modules(
            Branch(config, MLP(config), drop_path) for _ in branches
        )

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of each branch in turn."""
        reset_parts(generator, *self.attention, *self.mlp)

    def forward(
        self, tokens: Tensor, positions: Positions | None = None, leading: int | None = None
    ) -> Tensor:
        """Transform tokens: (B, N, D) -> (B, N, D), or (B, leading, D).

        Args:
            tokens: (B, N, D)
            positions: on the grid of the patches; None: none within attention
            leading: how many tokens leave the block, the first; None: all
        """
        attended = total([branch(tokens, positions, leading) for branch in self.attention])
        tokens = tokens[:, :leading] + attended
        return tokens + total([branch(tokens, positions) for branch in self.mlp])

    def attention_weights(self, tokens: Tensor, positions: Positions | None = None) -> Tensor:
        """Return each head's attention at the block's input: (B, branches * heads, N, N)."""
        weights = [each.body.weights(each.entering(tokens), positions) for each in self.attention]
        return torch.cat(weights, dim=1)


def total(added: list[Tensor]) -> Tensor:
    """Sum the outputs of parallel branches."""
    return added[0] if len(added) == 1 else torch.stack(added).sum(0)


class MLP(nn.Module):
    """Two dense layers with a GELU between (ViT paper, equation 3): (B, N, D) -> (B, N, D).

    As SwiGLU (Shazeer, 2020) the first is twice as wide, and one half gates the other.
    """

    role: ClassVar[str] = "ffn"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.gated = config.ffn == "swiglu"
        wide = config.mlp * (2 if self.gated else 1)
        self.expand = nn.Linear(config.width, wide, bias=config.bias)
        self.act = nn.SiLU() if self.gated else gelu(config)
        self.drop = nn.Dropout(config.dropout)
        self.norm = norm_of(config, config.mlp) if config.norm_inner_mlp else nn.Identity()
        self.contract = nn.Linear(config.mlp, config.width, bias=config.bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform kernels, and biases of deviation 1e-6, as the official code."""
        layers = [(self.expand, 2 if self.gated else 1), (self.contract, 1)]
        reset_xavier(layers, generator, bias_std=1e-6)
        reset_parts(generator, self.norm)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform each token by itself: (B, N, D) -> (B, N, D)."""
        return self.contract(self.hidden(tokens))

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return what the second layer sees: (B, N, D) -> (B, N, mlp)."""
        hidden = self.expand(tokens)
        if self.gated:
            gate, value = hidden.chunk(2, -1)
            hidden = self.act(gate) * value
        else:
            hidden = self.act(hidden)
        return self.norm(self.drop(hidden))


def gelu(config: ViTConfig) -> nn.Module:
    """Return the form of GELU that the weights were trained with."""
    if config.gelu == "quick":
        return QuickGELU()
    return nn.GELU("tanh" if config.gelu == "tanh" else "none")


class QuickGELU(nn.Module):
    """OpenAI's approximation, x * sigmoid(1.702 x) (CLIP)."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Apply it to each number."""
        return hidden * torch.sigmoid(1.702 * hidden)


Body = TypeVar("Body", bound=nn.Module)


class Branch(nn.Module, Generic[Body]):
    """One residual branch: drop(body(norm(tokens))) * scale, to be added to the tokens.

    With norm_order=after it is drop(norm(body(tokens))) * scale.
    """

    def __init__(self, config: ViTConfig, body: Body, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm = norm_of(config)
        self.after = config.norm_order == "after"
        self.body: Body = body
        self.start = config.layer_scale
        self.scale = nn.Parameter(torch.empty(config.width)) if config.layer_scale else None
        self.drop = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start the norm as the identity and LayerScale as its constant; the body draws its own."""
        reset_parts(generator, self.norm, self.body)
        if self.scale is not None:
            nn.init.constant_(self.scale, self.start)

    def forward(
        self, tokens: Tensor, positions: Positions | None = None, leading: int | None = None
    ) -> Tensor:
        """Compute what to add to the tokens: (B, N, D) -> (B, N, D), or (B, leading, D).

        Stochastic depth takes a random subset of the batch and does no work for the rest; its
        output is scaled up to keep the expectation. In a packed sequence the rest is computed too.
        """
        if not (self.training and self.drop_path):
            return self._added(tokens, positions, leading)
        if positions is not None and positions.packed:  # sizes mixed in one batch
            kept = positions.drawn(self.drop_path, tokens)
            return self._added(tokens, positions) * kept
        chosen, weights = draw_kept(len(tokens), self.drop_path, tokens.device)
        # not `tokens[chosen]`, whose backward pass sorts the indices
        part = self._added(tokens.index_select(0, chosen), positions, leading)
        part = part * weights[:, None, None].to(part.dtype)
        return part.new_zeros(len(tokens), *part.shape[1:]).index_copy(0, chosen, part)

    def entering(self, tokens: Tensor) -> Tensor:
        """Return what the body sees of the block's input: (B, N, D) -> (B, N, D)."""
        return tokens if self.after else self.norm(tokens)

    def _added(
        self, tokens: Tensor, positions: Positions | None, leading: int | None = None
    ) -> Tensor:
        entering, body = self.entering(tokens), self.body
        attends = body.role == "attention"
        added: Tensor = body(entering, positions, leading) if attends else body(entering)
        added = self.drop(self.norm(added) if self.after else added)
        return added if self.scale is None else added * self.scale


def draw_kept(count: int, rate: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw the images of a batch that pass through a branch (stochastic depth; Huang et al., 2016).

    Of `count` images `count * (1 - rate)` are kept in expectation: that number is rounded up or
    down at random, so that small batches are dropped from at the stated rate too. The shapes are
    always the same, which a compiled model needs: where the draw rounds down, the last image
    passes with weight 0.

    Args:
        count: images in the batch
        rate: chance of an image to be dropped
        device: of the default generator that is drawn from

    Returns:
        Indices of the images that pass, (P,), and what to multiply their outputs by, (P,):
        1 / (1 - rate), which keeps the expectation, or 0.
    """
    kept = round(count * (1 - rate), 9)  # 100 * (1 - 0.07) is 93
    whole = math.floor(kept)
    chosen = torch.randperm(count, device=device)[: math.ceil(kept)]
    weights = torch.full(chosen.shape, 1 / (1 - rate), device=device)
    if kept == whole:
        return chosen, weights
    last = torch.rand(1, device=device) < kept - whole
    return chosen, torch.cat([weights[:whole], weights[whole:] * last])


def drop_rates(config: ViTConfig) -> list[float]:
    """Return the rate in each block: the same for all, or a ramp from 0."""
    if not config.drop_path_ramp or config.depth == 1:
        return [config.drop_path] * config.depth
    return [config.drop_path * i / (config.depth - 1) for i in range(config.depth)]
