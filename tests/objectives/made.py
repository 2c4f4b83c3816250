"""Small models' configurations, generators and batches, for the tests of objectives."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlab.data.labels import SingleLabels
from vitlab.data.loading.batch import Batch
from vitlab.models.config import ViTConfig

NO_LABELS = SingleLabels(np.zeros(0, np.int64))


def small(**choices: Any) -> ViTConfig:
    fields = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "patch": 8, "image_size": 32}
    return ViTConfig(**{**fields, "classes": 0, **choices})


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch_of(images: Tensor, labels: Tensor | None = None) -> Batch:
    """Images without draws of their own, and zeros for labels."""
    count = len(images)
    labels = torch.zeros(count, dtype=torch.int64) if labels is None else labels
    return Batch(images, labels, torch.empty(count, 0), torch.arange(count))
