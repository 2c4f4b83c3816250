"""Class attention (CaiT): layers in which only the class token changes; and pooling by queries."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig
from vitlab.models.encoder.attention import attend, attention_weights
from vitlab.models.encoder.block import MLP, Branch
from vitlab.models.layers import modules, reset_parts, reset_xavier


class CrossAttention(nn.Module):
    """Some tokens, of each image or of all, attend to others: (B, M, D), (B, N, D) -> (B, M, D)."""

    role: ClassVar[str] = "attention"

    def __init__(self, config: ViTConfig, heads: int, qkv_bias: bool, bias: bool) -> None:
        super().__init__()
        self.heads, width = heads, config.width
        self.q = nn.Linear(width, width, bias=qkv_bias)
        self.kv = nn.Linear(width, 2 * width, bias=qkv_bias)
        self.project = nn.Linear(width, width, bias=bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform kernels, as in the other attention layers."""
        reset_xavier([(self.q, 1), (self.kv, 2), (self.project, 1)], generator)

    def form(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the values that queries gather, each (B, h, …, d)."""
        return attend(q, k, v)

    def gathered(self, asking: Tensor, tokens: Tensor) -> Tensor:
        """Return what the asking tokens gather from the others: (B, M, D)."""
        q, k, v = self.split(asking, tokens)
        return self.project(self.form(q, k, v).transpose(1, 2).flatten(2))

    def split(self, asking: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, (B, h, M, d), and keys and values, (B, h, N, d)."""
        q = self.q(asking).expand(tokens.shape[0], -1, -1)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(tokens).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v


class ClassAttention(CrossAttention):
    """The class token attends to itself and to all patches: (B, 1 + N, D) -> (B, 1, D)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__(config, config.heads, config.qkv_bias, config.bias)

    def forward(self, tokens: Tensor, *_: object) -> Tensor:
        """Gather what the class token asks for; how the patches lie makes no difference."""
        return self.gathered(tokens[:, :1], tokens)

    def weights(self, tokens: Tensor) -> Tensor:
        """Return the attention that `forward` pays: (B, 1 + N, D) -> (B, h, 1, 1 + N)."""
        return attention_weights(*self.split(tokens[:, :1], tokens)[:2])


class ClassBlock(nn.Module):
    """Class attention, then MLP, each with an identity around it."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.attention: Branch[Any] = Branch(config, ClassAttention(config))
        self.mlp = Branch(config, MLP(config))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights of each branch."""
        reset_parts(generator, self.attention, self.mlp)

    def forward(self, token: Tensor, patches: Tensor) -> Tensor:
        """Transform the class token: (B, 1, D) and (B, N, D) -> (B, 1, D)."""
        token = token + self.attention(torch.cat([token, patches], dim=1))
        return token + self.mlp(token)


class ClassLayers(nn.Module):
    """A class token that gathers from the patches when these are done (CaiT).

    Source: Touvron et al., Going deeper with Image Transformers, 2021, section 3.
    """

    undecayed: ClassVar[tuple[str, ...]] = ("token",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(1, 1, config.width))
        self.blocks = modules(ClassBlock(config) for _ in range(config.class_blocks))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the token as CaiT's code does, and each block."""
        nn.init.trunc_normal_(self.token, std=0.02, generator=generator)
        reset_parts(generator, *self.blocks)

    def forward(self, patches: Tensor) -> Tensor:
        """Put the class token, as it is in the end, before the patches: -> (B, 1 + N, D)."""
        token = self.token.expand(patches.shape[0], -1, -1)
        for block in self.blocks:
            token = block(token, patches)
        return torch.cat([token, patches], dim=1)

    def before(self, patches: Tensor) -> Tensor:
        """Put the class token, as it enters, before the patches: (B, N, D) -> (B, 1 + N, D)."""
        return torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], dim=1)

    def attention_maps(self, patches: Tensor) -> list[Tensor]:
        """Return each layer's attention, (B, h, 1 + N, 1 + N); patches attend to themselves."""
        token, maps = self.token.expand(patches.shape[0], -1, -1), []
        for block in self.blocks:
            tokens = block.attention.entering(torch.cat([token, patches], dim=1))
            weights = block.attention.body.weights(tokens)  # (B, h, 1, 1 + N)
            own = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)[1:]
            maps.append(torch.cat([weights, own.expand(*weights.shape[:2], -1, -1)], dim=2))
            token = block(token, patches)
        return maps


def with_idle_token(weights: Tensor) -> Tensor:
    """Add a class token that attends to itself alone: (B, h, N, N) -> (B, h, 1 + N, 1 + N)."""
    full = F.pad(weights, (1, 0, 1, 0))
    full[:, :, 0, 0] = 1
    return full
