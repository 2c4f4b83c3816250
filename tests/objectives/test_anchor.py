"""The Gram anchor against its equation in NumPy, in each task that has it."""

from typing import Any

import numpy as np
import pytest
import torch

from objectives.test_dino import CONFIG, SMALL, batch_of, images_of
from vitlab.models.create import build
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.pretext_tasks import pretext_task
from vitlab.recipes.pretext import Pretext

CROPS = {"dino": SMALL, "lejepa": {"head_width": 20, "local_crops": 3, "local_size": 8}}
FIXED = torch.Generator


def similarities(model: VisionTransformer, images: torch.Tensor) -> np.ndarray[Any, Any]:
    """The matrix X X^T of each image's patch tokens, of length 1."""
    tokens = model.encode(images).detach().double().numpy()[:, CONFIG.prefix :]
    rows = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    return np.einsum("bpd,bqd->bpq", rows, rows)


@pytest.mark.parametrize("task", ["dino", "lejepa"])
def test_it_is_the_mean_squared_difference_of_the_similarities(task: str) -> None:
    losses, batch = {}, batch_of()
    for weight in (0.0, 2.0):
        model = build(CONFIG, FIXED().manual_seed(1))
        assert isinstance(model, VisionTransformer)
        own = pretext_task(task)(Pretext(task=task, anchor=weight, **CROPS[task]), CONFIG)  # type: ignore[arg-type]
        own.reset_parameters(FIXED().manual_seed(2))
        own.start(model)
        large = torch.cat(images_of(batch)[:2])
        before = similarities(model, large)
        with torch.no_grad():
            for each in model.blocks.parameters():
                each += 0.1 * torch.randn(each.shape, generator=FIXED().manual_seed(len(each)))
        moved = ((similarities(model, large) - before) ** 2).mean()
        assert moved > 1e-3
        losses[weight] = own.train().loss(model, batch, FIXED().manual_seed(3))[0]
    assert (losses[2.0] - losses[0.0]).item() == pytest.approx(2 * moved, rel=1e-3)
    losses[2.0].backward()
    assert all(w.grad is None for name, w in own.named_parameters() if "anchor" in name)
