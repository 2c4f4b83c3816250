"""What does not fit is refused in one line, by every function."""

from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.errors import OptionError
from vitlab.models.packed import Packed

MODEL = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", 3, 16, zero_head=False)
LABELS = torch.tensor([1])
LOOKS: dict[str, Any] = {
    "attention_distance": vitlab.inspect.attention_distance,
    "attention_entropy": vitlab.inspect.attention_entropy,
    "class_attention": vitlab.inspect.class_attention,
    "feature_colors": vitlab.inspect.feature_colors,
    "norm_map": vitlab.inspect.norm_map,
    "rollout": vitlab.inspect.rollout,
    "token_norms": vitlab.inspect.token_norms,
    "token_similarity": vitlab.inspect.token_similarity,
    "similar_patches": lambda model, images: vitlab.inspect.similar_patches(model, images, 0),
    "relevance": lambda model, images: vitlab.inspect.relevance(model, images, LABELS),
    "gradcam": lambda model, images: vitlab.inspect.gradcam(model, images, LABELS),
}
WRONG: dict[str, tuple[Any, str]] = {
    "1x1": (torch.zeros(1, 3, 1, 1), "patch=8"),
    "channels": (torch.zeros(1, 1, 16, 16), r"images must be \(B, 3, 16, 16\)"),
    "one image": (torch.zeros(3, 16, 16), r"images must be \(B, 3, 16, 16\)"),
    "none": (torch.zeros(0, 3, 16, 16), "no images: give at least one"),
    "no pixels": (torch.zeros(1, 3, 0, 0), "no images: give at least one"),
    "bytes": (torch.zeros(1, 3, 16, 16, dtype=torch.uint8), "normalized numbers, not torch.uint8"),
    "NaN": (torch.full((1, 3, 16, 16), torch.nan), "not finite"),
    "an array": (np.zeros((1, 3, 16, 16), np.float32), "must be a tensor, not ndarray|normalized"),
    "a file": ("photo.jpg", "must be a tensor, not a str"),
    "packed": (Packed.of([torch.zeros(3, 16, 16)], 8), "packed images have no common"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_images_that_do_not_fit_are_refused(name: str) -> None:
    for images, message in WRONG.values():
        with pytest.raises(OptionError, match=message) as refused:
            LOOKS[name](MODEL, images)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["attention_distance", "attention_entropy"])
def test_streams_are_checked_batch_by_batch(name: str) -> None:
    measure = getattr(vitlab.inspect, name)
    for batches in ([], [torch.zeros(0, 3, 16, 16)]):
        with pytest.raises(OptionError, match="no images"):
            measure(MODEL, batches)
    with pytest.raises(OptionError, match="not finite"):
        measure(MODEL, [torch.ones(4, 3, 16, 16), torch.full((4, 3, 16, 16), torch.inf)])


def test_images_of_another_number_type_are_taken_as_the_models() -> None:
    images = torch.randn(1, 3, 16, 16)
    for name, look in LOOKS.items():
        torch.testing.assert_close(look(MODEL, images.double()), look(MODEL, images), msg=name)
        assert look(MODEL, images.half()).dtype == look(MODEL, images).dtype
