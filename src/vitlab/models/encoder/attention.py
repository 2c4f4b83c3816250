"""Multi-head self-attention, and the one place that decides how it is computed."""

from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig
from vitlab.models.encoder.joint_attention import LONGEST, JointAttention, suits_joint
from vitlab.models.encoder.layout import Layout, joined, parted
from vitlab.models.encoder.reach import Axis, Line, Reach
from vitlab.models.encoder.windows import Windows
from vitlab.models.layers import dense_macs, norm_of, reset_norm

Heads = tuple[Tensor, Tensor, Tensor, Tensor | None]  # queries, keys, values; bias on the logits
HALF = (torch.float16, torch.bfloat16)


class Attention(nn.Module):
    """Multi-head self-attention (ViT paper, appendix A): (B, N, D) -> (B, N, D).

    With an axis, tokens attend along their own row or column of the grid only (D.6); with
    `config.window`, within their window.
    """

    role: ClassVar[str] = "attention"

    def __init__(self, config: ViTConfig, axis: Axis = None) -> None:
        super().__init__()
        self.heads, self.reach = config.heads, reach_of(config, axis)
        self.layout = Layout(config.grid)  # of images of the configuration's size, no positions
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.norms: nn.Module | None = HeadNorms(config) if config.qk_norm else None
        self.norm: nn.Module = norm_of(config) if config.norm_inner_attention else nn.Identity()
        self.talking = TalkingHeads(config) if config.talking_heads else None
        self.project = nn.Linear(config.width, config.width, bias=config.bias)
        self.blank: Tensor | None  # what padding gives, if not the bias of `qkv`
        self.register_buffer("blank", None, persistent=False)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform kernels: q, k and v each, since a stack would get a smaller bound."""
        for weight in (*self.qkv.weight.chunk(3), self.project.weight):
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in (self.qkv.bias, self.project.bias):
            if bias is not None:
                nn.init.zeros_(bias)
        if isinstance(self.norms, HeadNorms):
            self.norms.reset_parameters()
        reset_norm(self.norm)
        if self.talking is not None:
            self.talking.reset_parameters(generator)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Let tokens attend to all, or to their row, column or window: (B, N, D) -> (B, N, D).

        If only the first tokens are asked for, these attend to all: -> (B, layout.leading, D).
        """
        return self.project(self.gathered(tokens, layout))

    def gathered(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Return what the last projection sees: (B, N, D) -> (B, N, heads * head width)."""
        return self.norm(self._gathered(self.qkv(tokens), layout or self.layout))

    def _gathered(self, qkv: Tensor, layout: Layout) -> Tensor:
        """Return the values that each token attends to, heads side by side: (B, N, 3D) -> D."""
        if layout.runs:
            parts = zip(parted(qkv, layout.runs), layout.runs, strict=True)
            if self.reach.whole and self.talking is None:
                return attend_packed([self._heads(part, run.layout) for part, run in parts])
            return joined([self._gathered(part, run.layout) for part, run in parts])
        if self._plain(layout) and suits_joint(qkv, self.training):
            joint: Any = JointAttention.apply
            together: Tensor = joint(qkv, self.heads)
            return together
        form = attend if self.talking is None else self.talking
        q, k, v, bias = self._heads(qkv, layout)
        if layout.leading is not None:
            q = q[..., : layout.leading, :]
            bias = None if bias is None else bias[..., : layout.leading, :]
        gathered = form(q, k, v, bias).transpose(1, 2).flatten(2)
        return self.reach.unfold(gathered, layout.grid, qkv.shape[0])

    def _plain(self, layout: Layout) -> bool:
        """Return whether all tokens attend to all, by queries and keys as `qkv` gives them."""
        own = self.norms is not None or self.talking is not None or not self.reach.whole
        return not own and layout.relate is None and layout.leading is None

    def weights(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Return the attention that `forward` pays: (B, N, D) -> (B, h, N, N), rows sum to 1.

        In a window with padding they sum to less, since a part falls on the padding. With talking
        heads, it is the softmax of the mixed logits, before it is mixed once more.
        """
        layout = layout or self.layout
        q, k, _, bias = self._heads(self.qkv(tokens), layout)
        form = attention_weights if self.talking is None else self.talking.weights
        return self.reach.spread(form(q, k, bias), layout.grid)

    def _heads(self, qkv: Tensor, layout: Layout) -> Heads:
        """Return queries, keys and values, each (B, h, N, d), and the bias on the logits."""
        blank = self.qkv.bias if self.blank is None else self.blank
        qkv = self.reach.fold(qkv, layout.grid, blank)
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.norms is not None:
            q, k = self.norms(q, k)
        q, k, bias = layout.relate(q, k) if layout.relate else (q, k, None)
        return q, k, v, bias

    def macs(self, tokens: int) -> int:
        """Count multiply-adds: projections, scores and weighted sums over a token's sequence."""
        pairs = self.reach.pairs(tokens, self.layout.grid)
        talk = 0 if self.talking is None else 2 * self.heads**2
        inner = self.project.in_features
        return tokens * dense_macs(self.qkv, self.project) + pairs * (2 * inner + talk)


def reach_of(config: ViTConfig, axis: Axis) -> Reach:
    """Return which tokens attend to each other in a block of a configuration."""
    if axis is not None:
        return Line(axis)
    return Windows(config.window) if config.window else Reach()


class HeadNorms(nn.Module):
    """Norms of queries and of keys over each head's channels (Dehghani et al., ViT-22B)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.q = norm_of(config, config.width // config.heads)
        self.k = norm_of(config, config.width // config.heads)

    def reset_parameters(self) -> None:
        """Start as the identity."""
        self.q.reset_parameters()
        self.k.reset_parameters()

    def forward(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Normalize queries and keys, each (B, h, N, d)."""
        return self.q(q), self.k(k)


class TalkingHeads(nn.Module):
    """Attention whose heads exchange logits before the softmax, and weights after it.

    Source: Shazeer et al., Talking-Heads Attention, 2020; as in CaiT (Touvron et al., 2021).
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.before = nn.Linear(config.heads, config.heads)
        self.after = nn.Linear(config.heads, config.heads)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw truncated normals of 0.02, as CaiT's code."""
        for layer in (self.before, self.after):
            nn.init.trunc_normal_(layer.weight, std=0.02, generator=generator)
            nn.init.zeros_(layer.bias)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Gather values by mixed weights: each (B, h, N, d) -> (B, h, N, d)."""
        return across_heads(self.after, self.weights(q, k, bias)) @ v

    def weights(self, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the softmax of mixed logits: (B, h, N, d) twice -> (B, h, N, N)."""
        return across_heads(self.before, attention_logits(q, k, bias)).softmax(-1)


def across_heads(layer: nn.Linear, maps: Tensor) -> Tensor:
    """Apply a layer over the heads at each pair of tokens: (B, h, N, N) -> (B, h, N, N)."""
    return layer(maps.movedim(1, -1)).movedim(-1, 1)


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q kT / sqrt(d) + bias) v over (B, h, N, d), by the form measured faster.

    PyTorch's fused kernel, but for bfloat16 on a CPU, where its backward pass takes 1.6 to 7 times
    as long as two plain products up to about a thousand tokens (figures in docs/log.md).
    """
    if q.device.type == "cpu" and q.dtype is torch.bfloat16 and q.shape[-2] <= LONGEST:
        return attention_weights(q, k, bias).to(v.dtype) @ v  # a bias may be in fp32
    mask = None if bias is None else bias.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attend_packed(parts: list[Heads]) -> Tensor:
    """Attend within each image of a packed sequence, by the form that suits the device.

    On a GPU in half precision, one kernel for sequences of different lengths; else a product for
    every run of images of one size, which is also the form for biases on the logits.

    Args:
        parts: queries, keys, values (n, h, N, d) and bias of each run

    Returns:
        The heads side by side, (1, T, D).
    """
    if suits_varlen(*parts[0]) and all(bias is None for *_, bias in parts):
        return attend_varlen(parts)
    return joined([attend(*part).transpose(1, 2).flatten(2) for part in parts])


def suits_varlen(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> bool:
    """Return whether the kernel for variable lengths, FlashAttention's, takes such tensors."""
    return (
        q.device.type == "cuda"
        and q.dtype in HALF
        and q.dtype == k.dtype == v.dtype
        and q.shape[-1] % 8 == 0
        and q.shape[-1] <= 256
        and torch.cuda.get_device_capability(q.device) >= (8, 0)
    )


def attend_varlen(parts: list[Heads]) -> Tensor:
    """Attend within each image by PyTorch's variable-length kernel; as `attend_packed`."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (
        torch.cat([each.transpose(1, 2).flatten(0, 1) for each in same])  # (T, h, d)
        for same in zip(*(part[:3] for part in parts), strict=True)
    )
    lengths = [part[0].shape[2] for part in parts for _ in range(len(part[0]))]
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    ends = ends.to(q.device, non_blocking=True)
    gathered = varlen_attn(q, k, v, ends, ends, max(lengths), max(lengths))
    assert isinstance(gathered, Tensor)  # nothing else was asked for
    return gathered.flatten(1).unsqueeze(0)


def attention_weights(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute softmax(q kT / sqrt(d) + bias): (B, h, N, d) twice -> (B, h, N, N)."""
    return attention_logits(q, k, bias).softmax(-1)


def attention_logits(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute q kT / sqrt(d) + bias: (B, h, N, d) twice -> (B, h, N, N)."""
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return logits if bias is None else logits + bias
