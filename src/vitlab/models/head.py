"""From tokens to class scores."""

import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.stem import lecun_normal_


class Head(nn.Module):
    """Pool, the optional tanh layer, and the linear classifier (ViT paper, 3.1 and D.3)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.pool = config.pool
        self.zero = config.zero_head
        wide = config.pre_logits
        self.pre_logits = nn.Linear(config.width, wide) if wide else None
        self.classify = nn.Linear(config.features, config.classes)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Classifier zero (Google) or truncated normal 0.02 (DeiT); the tanh layer LeCun-normal."""
        if self.pre_logits is not None:
            lecun_normal_(self.pre_logits.weight, generator)
            nn.init.zeros_(self.pre_logits.bias)
        if self.zero:
            nn.init.zeros_(self.classify.weight)
        else:
            nn.init.trunc_normal_(self.classify.weight, std=0.02, generator=generator)
        nn.init.zeros_(self.classify.bias)

    def features(self, tokens: Tensor) -> Tensor:
        """What the classifier sees: (B, N, D) -> (B, features)."""
        pooled = tokens[:, 0] if self.pool == "token" else tokens.mean(dim=1)
        return pooled if self.pre_logits is None else self.pre_logits(pooled).tanh()

    def forward(self, features: Tensor) -> Tensor:
        """Class scores: (B, features) -> (B, classes)."""
        return self.classify(features)
