"""Multi-head self-attention, and the one place that decides how it is computed."""

from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig
from vitlab.models.encoder.joint_attention import LONGEST, JointAttention, suits_joint
from vitlab.models.encoder.patterns import Axis, Pattern
from vitlab.models.layers import norm_of, reset_parts, reset_xavier
from vitlab.models.positions.positions import Positions

Heads = tuple[Tensor, Tensor, Tensor, Tensor | None]  # queries, keys, values; bias on the logits


class Attention(nn.Module):
    """Multi-head self-attention (ViT paper, appendix A): (B, N, D) -> (B, N, D).

    With an axis, tokens attend along their own row or column of the grid only (D.6).
    """

    role: ClassVar[str] = "attention"

    def __init__(self, config: ViTConfig, axis: Axis = None) -> None:
        super().__init__()
        self.heads, self.grid = config.heads, config.grid
        self.pattern = Pattern(axis)
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.norms: nn.Module | None = HeadNorms(config) if config.qk_norm else None
        self.norm: nn.Module = norm_of(config) if config.norm_inner_attention else nn.Identity()
        self.project = nn.Linear(config.width, config.width, bias=config.bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform kernels: q, k and v each, since a stack would get a smaller bound."""
        reset_xavier([(self.qkv, 3), (self.project, 1)], generator)
        reset_parts(generator, self.norms, self.norm)

    def forward(
        self, tokens: Tensor, positions: Positions | None = None, leading: int | None = None
    ) -> Tensor:
        """Let tokens attend to all, or to their row or column: (B, N, D) -> (B, N, D).

        Args:
            tokens: (B, N, D)
            positions: on the grid of the patches; None: none, on the configuration's grid
            leading: so many tokens, the first, attend to all: -> (B, leading, D); None: each does
        """
        return self.project(self.gathered(tokens, positions, leading))

    def gathered(
        self, tokens: Tensor, positions: Positions | None = None, leading: int | None = None
    ) -> Tensor:
        """Return what the last projection sees: (B, N, D) -> (B, N, heads * head width)."""
        qkv = self.qkv(tokens)
        if positions is not None and positions.packed:  # sizes mixed in one batch
            return self.norm(positions.attended(self, qkv))
        return self.norm(self.attended(qkv, positions, leading))

    def attended(self, qkv: Tensor, positions: Positions | None, leading: int | None) -> Tensor:
        """Return the values that each token attends to, heads side by side: (B, N, 3D) -> D."""
        own = self.norms is not None or self.pattern.axis is not None or leading is not None
        own = own or (positions is not None and positions.relates)
        if not own and suits_joint(qkv, self.training):
            joint: Any = JointAttention.apply
            return cast(Tensor, joint(qkv, self.heads))
        q, k, v, bias = self.split(qkv, positions)
        if leading is not None:
            q = q[..., :leading, :]
            bias = None if bias is None else bias[..., :leading, :]
        found = attend(q, k, v, bias).transpose(1, 2).flatten(2)
        return self.pattern.unfold(found, self._grid(positions))

    def split(self, qkv: Tensor, positions: Positions | None) -> Heads:
        """Return queries, keys and values, each (B, h, N, d), and the bias on the logits."""
        qkv = self.pattern.fold(qkv, self._grid(positions))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.norms is not None:
            q, k = self.norms(q, k)
        q, k, bias = (q, k, None) if positions is None else positions.relate(q, k)
        return q, k, v, bias

    def weights(self, tokens: Tensor, positions: Positions | None = None, *more: object) -> Tensor:
        """Return the attention that `forward` pays: (B, N, D) -> (B, h, N, N), rows sum to 1.

        What else `forward` takes makes no difference.
        """
        q, k, _, bias = self.split(self.qkv(tokens), positions)
        return self.pattern.spread(attention_weights(q, k, bias), self._grid(positions))

    def _grid(self, positions: Positions | None) -> tuple[int, int]:
        """Return rows and columns of the patches."""
        return self.grid if positions is None else positions.grid


class HeadNorms(nn.Module):
    """Norms of queries and of keys over each head's channels (Dehghani et al., ViT-22B)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.q = norm_of(config, config.width // config.heads)
        self.k = norm_of(config, config.width // config.heads)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start as the identity."""
        reset_parts(generator, self.q, self.k)

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize queries and keys, each (B, h, N, d)."""
        return self.q(q), self.k(k)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q kT / sqrt(d) + bias) v over (B, h, N, d), by the form measured faster.

    PyTorch's fused kernel, but for bfloat16 on a CPU, where its backward pass takes 1.6 to 7 times
    as long as two plain products up to about a thousand tokens (figures in docs/log.md).
    """
    if q.device.type == "cpu" and q.dtype is torch.bfloat16 and q.shape[-2] <= LONGEST:
        return attention_weights(q, k, bias).to(v.dtype) @ v  # a bias may be in fp32
    mask = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q kT / sqrt(d) + bias): (B, h, N, d) twice -> (B, h, N, N)."""
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(-1)
