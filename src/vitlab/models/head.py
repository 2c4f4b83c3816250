"""The head: tokens to class scores."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.encoder.attention import attention_weights
from vitlab.models.encoder.block import MLP
from vitlab.models.layers import (
    classifier,
    norm_of,
    reset_classifier,
    reset_dense,
    reset_parts,
    reset_xavier,
)


class Head(nn.Module):
    """Pool, the optional tanh layer, and the linear classifier (ViT paper, 3.1 and D.3)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.attend = AttentionPool(config) if config.pool == "attention" else None
        self.norm = norm_of(config) if config.norm_at in ("pooled", "both") else nn.Identity()
        wide = config.pre_logits
        self.pre_logits = nn.Linear(config.pooled, wide) if wide else None
        self.classify = classifier(config)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the tanh layer LeCun-normal; the rest as `AttentionPool` and `reset_classifier`."""
        reset_parts(generator, self.attend, self.norm)
        if self.pre_logits is not None:
            reset_dense(self.pre_logits, generator)
        reset_classifier(self.classify, self.config, generator)

    def features(self, tokens: Tensor) -> Tensor:
        """Compute the classifier's input: (B, N, D) -> (B, features), or (B, queries, features)."""
        pooled = self.norm(self._pooled(tokens))
        return pooled if self.pre_logits is None else self.pre_logits(pooled).tanh()

    def _pooled(self, tokens: Tensor) -> Tensor:
        prefix, patches = tokens[:, : self.config.prefix], tokens[:, self.config.prefix :]
        if self.config.pool_prefix:
            patches = tokens
        if self.attend is not None:
            return self.attend(patches)
        match self.config.pool:
            case "token":
                return tokens[:, 0]
            case "prefix":
                chosen = self.config.pool_tokens
                return (prefix[:, list(chosen)] if chosen else prefix).flatten(1)
            case "prefix-mean":
                return prefix.mean(dim=1)
            case "both":
                return torch.cat([tokens[:, 0], patches.mean(dim=1)], dim=-1)
            case _:
                return patches.mean(dim=1)

    @property
    def leading(self) -> int | None:
        """How many tokens the last block must compute, the first; None: all.

        (Rows and columns have no such tokens.)
        """
        read = {"token": 1, **dict.fromkeys(("prefix", "prefix-mean"), self.config.prefix)}
        return read.get(self.config.pool)

    def shares(self, tokens: Tensor) -> Tensor:
        """Return how much of each token enters the features: (B, N, D) -> (B, N), sums of 1.

        With several representations (class token and mean, prefix tokens, queries) it is the mean
        over them; with attention pooling, over its heads.
        """
        config, shares = self.config, tokens.new_zeros(tokens.shape[:2])
        first = 0 if config.pool_prefix else config.prefix
        if self.attend is not None:
            shares[:, first:] = self.attend.weights(tokens[:, first:]).mean(dim=(1, 2))
            return shares
        match config.pool:
            case "token":
                shares[:, 0] = 1
            case "prefix" | "prefix-mean":
                chosen = list(config.pool_tokens or range(config.prefix))
                shares[:, chosen] = 1 / len(chosen)
            case "both":
                shares[:, 0] = 0.5
                shares[:, first:] += 0.5 / shares[:, first:].shape[1]
            case _:
                shares[:, first:] = 1 / shares[:, first:].shape[1]
        return shares

    def forward(self, features: Tensor) -> Tensor:
        """Compute class scores: (…, features) -> (…, classes)."""
        return self.classify(features)


class AttentionPool(nn.Module):
    """Learned queries attend to all patches, then an MLP (MAP head; Zhai et al., 2022).

    Those of Perception Encoder have heads and an MLP of their own and see the class token too.
    One query gives one representation, (B, D); more of them are slots as in DETR, (B, queries, D).
    """

    role: ClassVar[str] = "attention"
    undecayed: ClassVar[tuple[str, ...]] = ("queries",)

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.heads, width = config.pool_heads or config.heads, config.width
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.project = nn.Linear(width, width)
        self.queries = nn.Parameter(torch.empty(1, config.queries, config.width))
        self.norm = norm_of(config)
        wide = config.pool_mlp or config.mlp
        self.mlp = MLP(replace(config, mlp=wide, norm_inner_mlp=False))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw Xavier-uniform throughout, the queries too, as big_vision starts them."""
        nn.init.xavier_uniform_(self.queries[0], generator=generator)
        reset_xavier([(self.q, 1), (self.kv, 2), (self.project, 1)], generator)
        reset_parts(generator, self.norm, self.mlp)

    def forward(self, tokens: Tensor) -> Tensor:
        """Pool tokens: (B, N, D) -> (B, D), or (B, queries, D) for more than one query."""
        gathered = F.scaled_dot_product_attention(*self._split(tokens))  # in every precision
        slots = self.project(gathered.transpose(1, 2).flatten(2))
        slots = slots + self.mlp(self.norm(slots))
        return slots[:, 0] if slots.shape[1] == 1 else slots

    def weights(self, tokens: Tensor) -> Tensor:
        """Return the attention that `forward` pays: (B, N, D) -> (B, h, queries, N)."""
        return attention_weights(*self._split(tokens)[:2])

    def _split(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, (B, h, M, d), and keys and values, (B, h, N, d)."""
        q = self.q(self.queries).expand(tokens.shape[0], -1, -1)
        q = q.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(tokens).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return q, k, v
