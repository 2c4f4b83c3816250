"""Multi-head self-attention, and the one place that decides how it is computed."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig


class Attention(nn.Module):
    """Multi-head self-attention (ViT paper, appendix A): (B, N, D) -> (B, N, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.project = nn.Linear(config.width, config.width)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Xavier-uniform for q, k and v each by itself (their stack would get a smaller bound)."""
        for weight in (*self.qkv.weight.chunk(3), self.project.weight):
            nn.init.xavier_uniform_(weight, generator=generator)
        for bias in (self.qkv.bias, self.project.bias):
            if bias is not None:
                nn.init.zeros_(bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Every token gathers from all: (B, N, D) -> (B, N, D)."""
        gathered = attend(*self._split(tokens))  # (B, h, N, D/h)
        return self.project(gathered.transpose(1, 2).flatten(2))

    def weights(self, tokens: Tensor) -> Tensor:
        """The attention that `forward` gives each token over all: (B, h, N, N), rows sum to 1."""
        q, k, _ = self._split(tokens)
        return attention_weights(q, k)

    def _split(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv(tokens).unflatten(-1, (3, self.heads, -1))  # (B, N, 3, h, D/h)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v  # each (B, h, N, D/h)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q kT / sqrt(d)) v over (B, h, N, d), by the form that was measured the faster.

    PyTorch's fused kernel, but for bfloat16 on a CPU, where its backward pass takes 1.6 to 7 times
    as long as two plain products up to about a thousand tokens (figures in docs/log.md).
    """
    if q.device.type == "cpu" and q.dtype is torch.bfloat16 and q.shape[-2] <= 1024:
        return attention_weights(q, k) @ v
    return F.scaled_dot_product_attention(q, k, v)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q kT / sqrt(d)): (B, h, N, d) twice -> (B, h, N, N)."""
    return ((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)).softmax(-1)
