"""Multi-head self-attention, and the one place that decides how it is computed."""

from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.grid import Grid
from vitlab.models.layers import norm_of, reset_parts, reset_xavier
from vitlab.models.positions.positions import Positions

Axis = Literal["row", "column"] | None  # along which lines of the grid are sequences
LONGEST = 1024  # tokens up to which plain products are faster than PyTorch's fused kernel, in bf16
Heads = tuple[Tensor, Tensor, Tensor, Tensor | None]  # queries, keys, values; bias on the logits


class Attention(nn.Module):
    """Multi-head self-attention (ViT paper, appendix A): (B, N, D) -> (B, N, D).

    With an axis, tokens attend along their own row or column of the grid only (D.6).
    """

    role: ClassVar[str] = "attention"

    def __init__(self, config: ViTConfig, axis: Axis = None) -> None:
        super().__init__()
        self.heads, self.grid, self.axis = config.heads, config.grid, axis
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
        own = self.norms is not None or self.axis is not None or leading is not None
        own = own or (positions is not None and positions.relates)
        if not own and suits_joint(qkv, self.training):
            joint: Any = JointAttention.apply
            return cast(Tensor, joint(qkv, self.heads))
        q, k, v, bias = self.split(qkv, positions)
        if leading is not None:
            q = q[..., :leading, :]
            bias = None if bias is None else bias[..., :leading, :]
        found = attend(q, k, v, bias).transpose(1, 2).flatten(2)
        return self.unfold(found, self._grid(positions))

    def split(self, qkv: Tensor, positions: Positions | None) -> Heads:
        """Return queries, keys and values, each (B, h, N, d), and the bias on the logits."""
        qkv = self.fold(qkv, self._grid(positions))
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
        return self.spread(attention_weights(q, k, bias), self._grid(positions))

    def _grid(self, positions: Positions | None) -> Grid:
        """Return rows and columns of the patches."""
        return self.grid if positions is None else positions.grid

    # Rows or columns as sequences; without an axis, sequences stay as they are

    def fold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Make rows or columns sequences: (B, r c, C) -> (B r, c, C) or (B c, r, C)."""
        if self.axis is None:
            return tokens
        return self._turned(tokens.unflatten(1, grid)).flatten(0, 1)

    def unfold(self, tokens: Tensor, grid: Grid) -> Tensor:
        """Bring them back to raster order, (B, r c, C)."""
        if self.axis is None:
            return tokens
        lines = tokens.unflatten(0, (-1, grid[self.axis == "column"]))
        return self._turned(lines).flatten(1, 2)

    def spread(self, weights: Tensor, grid: Grid) -> Tensor:
        """Write attention within sequences as attention over all tokens, zero elsewhere.

        (B S, h, L, L) -> (B, h, N, N)
        """
        if self.axis is None:
            return weights
        patches = grid[0] * grid[1]
        numbers = torch.arange(patches, device=weights.device)[None, :, None]
        places = self.fold(numbers, grid)[..., 0]  # the patch at each place, (S, L)
        within = weights.unflatten(0, (-1, len(places))).transpose(1, 2)  # (B, h, S, L, L)
        full = weights.new_zeros(*within.shape[:2], patches, patches)
        full[:, :, places[:, :, None], places[:, None, :]] = within
        return full

    def _turned(self, square: Tensor) -> Tensor:
        """Rows, or columns, first: (B, r, c, C) there and back."""
        return square if self.axis == "row" else square.transpose(1, 2)


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


def suits_joint(qkv: Tensor, training: bool) -> bool:
    """Return whether `JointAttention` is faster for queries, keys and values, (B, N, 3D).

    Not for gradients outside training: who looks at them may differentiate twice.
    """
    return (
        training is torch.is_grad_enabled()
        and qkv.device.type == "cpu"
        and qkv.dtype is torch.bfloat16
        and qkv.shape[1] <= LONGEST
        and type(qkv) is Tensor
        and not torch.compiler.is_compiling()
    )


class JointAttention(torch.autograd.Function):
    """softmax(q kT / sqrt(d)) v of queries, keys and values side by side, in bf16 on a CPU.

    It computes what `attend` does, with the same bits. Written out, it turns heads and tokens
    around once for all three, and once for their gradient: 2 to 3% less time for a step of ViT-Ti
    in bf16, and 9 to 12% less for attention in inference.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int) -> Tensor:
        """Gather values for all tokens: (B, N, 3D) -> (B, N, D)."""
        count, tokens, wide = qkv.shape
        ctx.size = count, heads, tokens, wide // (3 * heads)
        split = qkv.view(count, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).contiguous()
        all_heads = split.flatten(1, 2)  # (3, B h, N, d)
        q, k, v = all_heads
        q.mul_(q.shape[-1] ** -0.5)
        weights = torch.bmm(q, k.transpose(1, 2)).softmax(-1)
        ctx.save_for_backward(all_heads, weights)
        gathered = torch.bmm(weights, v).view(ctx.size)
        return gathered.transpose(1, 2).flatten(2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of queries, keys and values, (B, N, 3D)."""
        all_heads, weights = ctx.saved_tensors
        (count, heads, tokens, depth), (q, k, v) = ctx.size, all_heads
        turned = grad.view(count, tokens, heads, depth).transpose(1, 2).flatten(0, 1)
        of_heads = torch.empty_like(all_heads)
        torch.bmm(weights.transpose(1, 2), turned, out=of_heads[2])
        of_weights = torch.bmm(turned, v.transpose(1, 2))
        of_logits = torch._softmax_backward_data(of_weights, weights, -1, weights.dtype)
        torch.bmm(of_logits, k, out=of_heads[0]).mul_(depth**-0.5)
        torch.bmm(of_logits.transpose(1, 2), q, out=of_heads[1])
        back = of_heads.view(3, count, heads, tokens, depth).permute(1, 3, 0, 2, 4)
        return back.reshape(count, tokens, -1), None
