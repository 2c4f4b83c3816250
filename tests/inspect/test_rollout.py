"""Rollout against the paper's own loop, written out."""

import numpy as np
import pytest
import torch

import vitlab


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_rollout_is_the_product_of_the_layers(pool: str) -> None:
    model = vitlab.create("ViT-Ti/8", 5, (24, 32), depth=4, pool=pool).train()
    images = torch.randn(3, 3, 24, 32)
    got = vitlab.inspect.rollout(model, images)
    assert got.shape == (3, 3, 4)
    assert model.training
    model.eval()
    with torch.inference_mode():
        maps = [each.double().numpy() for each in model.attention_maps(images)]
    for image in range(3):
        flow = np.eye(maps[0].shape[-1])
        for weights in maps:
            mixed = weights[image].mean(0) + np.eye(len(flow))
            flow = (mixed / mixed.sum(-1, keepdims=True)) @ flow
        rows = flow[0, 1:] if pool == "token" else flow.mean(0)
        np.testing.assert_allclose(got[image].flatten().numpy(), rows, atol=1e-6)
        assert np.allclose(flow.sum(-1), 1)
