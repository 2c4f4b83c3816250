"""Multi-head self-attention, and the one place that decides how it is computed."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig
from vitlab.models.position import BiasPositions, Inner, RelativePositions, RotaryPositions

Axis = Literal["row", "column"] | None


class Attention(nn.Module):
    """Multi-head self-attention (ViT paper, appendix A): (B, N, D) -> (B, N, D).

    With an axis, tokens attend along their own row or column of the grid only (D.6).
    """

    def __init__(self, config: ViTConfig, axis: Axis = None) -> None:
        super().__init__()
        self.heads, self.axis, self.grid = config.heads, axis, config.grid
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.norms = HeadNorms(config) if config.qk_norm else None
        self.project = nn.Linear(config.width, config.width, bias=config.bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Xavier-uniform for q, k and v each by itself (their stack would get a smaller bound)."""
        for weight in (*self.qkv.weight.chunk(3), self.project.weight):
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in (self.qkv.bias, self.project.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        if self.norms is not None:
            self.norms.reset_parameters()

    def forward(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """Every token gathers from all, or from its row or column: (B, N, D) -> (B, N, D)."""
        return self.project(self.mix(tokens, inner))

    def mix(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """What the heads gather, side by side, before the output projection: (B, N, D)."""
        folded = fold(tokens, self.axis, self.grid)
        q, k, v = split(self.qkv(folded), self.heads)
        return unfold(gather(q, k, v, self.norms, inner), self.axis, self.grid, len(tokens))

    def weights(self, tokens: Tensor, inner: Inner | None = None) -> Tensor:
        """The attention that `forward` gives each token over all: (B, h, N, N), rows sum to 1."""
        q, k, _ = split(self.qkv(fold(tokens, self.axis, self.grid)), self.heads)
        return spread(head_weights(q, k, self.norms, inner), self.axis, self.grid)


class HeadNorms(nn.Module):
    """LayerNorm of queries and of keys over each head's channels (Dehghani et al., ViT-22B)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.q = nn.LayerNorm(config.width // config.heads, config.norm_eps)
        self.k = nn.LayerNorm(config.width // config.heads, config.norm_eps)

    def reset_parameters(self) -> None:
        """Identity at first."""
        self.q.reset_parameters()
        self.k.reset_parameters()

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Each (B, h, N, d)."""
        return self.q(q), self.k(k)


def split(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each (B, h, N, d), from (B, N, 3 h d)."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return q, k, v


def gather(q: Tensor, k: Tensor, v: Tensor, norms: nn.Module | None, inner: Inner | None) -> Tensor:
    """Attention of (B, h, N, d) by whatever acts within it, heads side by side: (B, N, h d)."""
    q, k, bias = prepare(q, k, norms, inner)
    return attend(q, k, v, bias).transpose(1, 2).flatten(2)


def head_weights(q: Tensor, k: Tensor, norms: nn.Module | None, inner: Inner | None) -> Tensor:
    """The weights that `gather` uses, (B, h, N, N)."""
    return attention_weights(*prepare(q, k, norms, inner))


def prepare(
    q: Tensor, k: Tensor, norms: nn.Module | None, inner: Inner | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Queries and keys as they meet, and the bias on their logits."""
    if norms is not None:
        q, k = norms(q, k)
    if isinstance(inner, RotaryPositions):
        q, k = inner.turn(q), inner.turn(k)
    bias = inner.bias(q) if isinstance(inner, RelativePositions | BiasPositions) else None
    return q, k, bias


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kT / sqrt(d) + bias) v over (B, h, N, d), by the form measured the faster.

    PyTorch's fused kernel, but for bfloat16 on a CPU, where its backward pass takes 1.6 to 7 times
    as long as two plain products up to about a thousand tokens (figures in docs/log.md).
    """
    if q.device.type == "cpu" and q.dtype is torch.bfloat16 and q.shape[-2] <= 1024:
        return attention_weights(q, k, bias) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q kT / sqrt(d) + bias): (B, h, N, d) twice -> (B, h, N, N)."""
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(-1)


def fold(tokens: Tensor, axis: Axis, grid: tuple[int, int]) -> Tensor:
    """Rows or columns as sequences of their own: (B, r c, D) -> (B r, c, D) or (B c, r, D)."""
    if axis is None:
        return tokens
    square = tokens.unflatten(1, grid)
    return (square if axis == "row" else square.transpose(1, 2)).flatten(0, 1)


def unfold(tokens: Tensor, axis: Axis, grid: tuple[int, int], batch: int) -> Tensor:
    """Back to raster order, (B, r c, D)."""
    if axis is None:
        return tokens
    lines = tokens.unflatten(0, (batch, -1))
    return (lines if axis == "row" else lines.transpose(1, 2)).flatten(1, 2)


def spread(weights: Tensor, axis: Axis, grid: tuple[int, int]) -> Tensor:
    """Weights along an axis as weights over all tokens, zero elsewhere: (B, h, r c, r c)."""
    if axis is None:
        return weights
    lines = grid[0] if axis == "row" else grid[1]
    weights = weights.unflatten(0, (-1, lines)).transpose(1, 2)  # (B, h, lines, length, length)
    same = torch.eye(lines, dtype=weights.dtype, device=weights.device)
    full = weights[:, :, :, :, None, :] * same[:, None, :, None]  # (…, line, place, line, place)
    if axis == "column":  # a place is (row, column), so (place on the line, line)
        full = full.transpose(2, 3).transpose(4, 5)
    return full.flatten(4, 5).flatten(2, 3)
