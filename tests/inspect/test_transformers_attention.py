"""Families of transformers, random weights through our loader: rollout, distance and relevance.

All are recomputed from the attention that transformers gives out, with its gradients.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

import vitlab

SMALL: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32,
    "image_size": 32, "patch_size": 8, "num_labels": 4, "attn_implementation": "eager",
}  # fmt: skip
# configuration, model, further choices, tokens before the patches
FAMILIES: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "ViT": ("ViTConfig", "ViTForImageClassification", {}, 1),
    "DeiT": ("DeiTConfig", "DeiTForImageClassification", {}, 2),
    "BEiT": (
        "BeitConfig", "BeitForImageClassification", {"use_relative_position_bias": True}, 1,
    ),
    "DINOv2": (
        "Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification",
        {"num_register_tokens": 2}, 3,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: Any, tmp_path_factory: Any) -> tuple[Any, str]:
    """One of transformers' models, and its name here."""
    torch.manual_seed(0)
    config, kind, choices, _ = FAMILIES[request.param]
    theirs: Any = getattr(transformers, kind)(getattr(transformers, config)(**SMALL, **choices))
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            weight.mul_(6) if weight.ndim == 2 else weight.add_(0.1 * torch.randn_like(weight))
            if "relative_position_bias_table" in name:
                weight.copy_(torch.randn_like(weight))
    theirs.eval()(torch.zeros(1, 3, 32, 32))  # it keeps an index, of use in gradients too
    return theirs, request.param


def pooled(name: str, rows: NDArray[np.float64], prefix: int) -> NDArray[np.float64]:
    """What each family's classifier reads of (N, N): its class token, patches, or both."""
    if name == "BEiT":
        return rows[prefix:, prefix:].mean(0)
    if name == "DINOv2":
        return (rows[0, prefix:] + rows[prefix:, prefix:].mean(0)) / 2
    return rows[0, prefix:]


def test_attention_of_transformers_gives_the_same(family: tuple[Any, str], tmp_path: Path) -> None:
    theirs, name = family
    prefix = FAMILIES[name][3]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    classes = torch.tensor([3, 1])
    out = theirs(images, output_attentions=True)
    for weights in out.attentions:
        weights.retain_grad()
    out.logits.gather(1, classes[:, None]).sum().backward()
    maps = [each.detach().double().numpy() for each in out.attentions]
    slopes = [each.grad.double().numpy() for each in out.attentions]
    theirs.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path)
    torch.testing.assert_close(model(images), out.logits, rtol=1e-4, atol=1e-4)
    for image in range(2):
        flow = relevant = np.eye(16 + prefix)
        for paid, slope in zip(maps, slopes, strict=True):
            flow = (paid[image].mean(0) + np.eye(16 + prefix)) / 2 @ flow
            relevant = relevant + np.maximum(paid * slope, 0)[image].mean(0) @ relevant
        for found, want in (
            (vitlab.inspect.rollout(model, images), flow),
            (vitlab.inspect.relevance(model, images, classes), relevant),
        ):
            rows = pooled(name, want, prefix)
            np.testing.assert_allclose(found[image].flatten(), rows, rtol=2e-3, atol=1e-5)
    apart = [[8 * math.dist(divmod(q, 4), divmod(k, 4)) for k in range(16)] for q in range(16)]
    want = [(each[:, :, prefix:, prefix:] * apart).sum(-1).mean((0, 2)) for each in maps]
    found = vitlab.inspect.attention_distance(model, images)
    assert np.std(want) > 0.1
    np.testing.assert_allclose(found, want, rtol=1e-4)
