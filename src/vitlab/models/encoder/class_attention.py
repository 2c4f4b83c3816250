"""CaiT's last layers, in which only the class token changes."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.config import ViTConfig
from vitlab.models.encoder.attention import attend, attention_weights
from vitlab.models.encoder.block import MLP, Branch
from vitlab.models.encoder.layout import Layout
from vitlab.models.layers import dense_macs, modules, params_of
from vitlab.models.model import Part


class ClassAttention(nn.Module):
    """The class token attends to itself and to all patches: (B, 1 + N, D) -> (B, 1, D)."""

    role: ClassVar[str] = "attention"

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = nn.Linear(config.width, config.width, bias=config.qkv_bias)
        self.kv = nn.Linear(config.width, 2 * config.width, bias=config.qkv_bias)
        self.project = nn.Linear(config.width, config.width, bias=config.bias)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform kernels, as in the other attention layers."""
        for weight in (self.q.weight, *self.kv.weight.chunk(2), self.project.weight):
            nn.init.xavier_uniform_(weight, generator=generator)
        for dense in (self.q, self.kv, self.project):
            if dense.bias is not None:
                nn.init.zeros_(dense.bias)

    def forward(self, tokens: Tensor, layout: Layout | None = None) -> Tensor:
        """Gather what the class token asks for; how the patches lie makes no difference."""
        q, k, v = self._heads(tokens)
        return self.project(attend(q, k, v).transpose(1, 2).flatten(2))

    def weights(self, tokens: Tensor) -> Tensor:
        """Return the attention that `forward` pays: (B, 1 + N, D) -> (B, h, 1, 1 + N)."""
        q, k, _ = self._heads(tokens)
        return attention_weights(q, k)

    def _heads(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the class token's query, (B, h, 1, d), and all keys and values."""
        q = self.q(tokens[:, :1]).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(tokens).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def macs(self, tokens: int) -> int:
        """Count multiply-adds for class token and patches, so many in all."""
        dense = dense_macs(self.q, self.project) + tokens * dense_macs(self.kv)
        return dense + 2 * tokens * self.q.in_features


class ClassBlock(nn.Module):
    """Class attention, then MLP, each with an identity around it."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        attention: Any = ClassAttention(config)
        self.attention: Branch[Any] = Branch(config, attention, 0.0)
        self.mlp = Branch(config, MLP(config), 0.0)

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
        for block in self.blocks:
            block.attention.reset_parameters(generator)
            block.mlp.reset_parameters(generator)

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

    def part(self, patches: int) -> Part:
        """Count parameters but the token's, and multiply-adds as those of the other blocks."""
        tokens, width, layers = 1 + patches, self.token.shape[-1], len(self.blocks)
        macs = layers * width * (tokens + 1)  # of the norms
        for block in self.blocks:
            macs += block.attention.body.macs(tokens) + block.mlp.body.macs(1)
        return Part("class attention", params_of(*self.blocks), macs)


def with_idle_token(weights: Tensor) -> Tensor:
    """Add a class token that attends to itself alone: (B, h, N, N) -> (B, h, 1 + N, 1 + N)."""
    full = F.pad(weights, (1, 0, 1, 0))
    full[:, :, 0, 0] = 1
    return full
