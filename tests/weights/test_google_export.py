"""Google's .npz as it is written: what cannot be is named, and timm reads the rest."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from oracles import peers
from vitlab.errors import WeightsError

UNREPRESENTED: list[dict[str, Any]] = [
    {"norm_at": "none"}, {"norm_at": "pooled", "pool": "mean"}, {"qkv_bias": False},
    {"bias": False}, {"stem": "hmlp"}, {"stem_bias": False}, {"positions": "rope"},
    {"positions": "2d"}, {"positions": "bias"}, {"positions": "none"}, {"positions_at": "every"},
    {"gelu": "exact"}, {"norm_eps": 1e-5}, {"norm": "rms"}, {"pool": "both"}, {"qk_norm": True},
    {"ffn": "swiglu"}, {"pre_norm": True}, {"layer_scale": 0.1}, {"registers": 1}, {"branches": 2},
]  # fmt: skip


@pytest.mark.parametrize("choices", UNREPRESENTED, ids=str)
def test_a_field_that_it_cannot_represent_is_named(choices: dict[str, Any], tmp_path: Path) -> None:
    model = vitlab.create("ViT-Ti1/8", 5, 32, **({"gelu": "tanh"} | choices))
    field, value = next(iter(choices.items()))
    with pytest.raises(WeightsError, match=f"google cannot represent {field}={value!r}") as refusal:
        vitlab.save(model, tmp_path / "m", to="google")
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pool", ["token", "attention"])
def test_timm_reads_it(pool: str, tmp_path: Path) -> None:
    """Its loader of Google's files, on the same configuration."""
    model = vitlab.create("ViT-Ti2/8", 5, 32, gelu="tanh", pool=pool).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(0.05 * torch.randn(tensor.shape))
    file = vitlab.save(model, tmp_path / "m", to="google") / "model.npz"
    pooled = {} if pool == "token" else {"class_token": False, "global_pool": "map"}
    other = peers.timm().models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=192, depth=2, num_heads=3, num_classes=5,
        act_layer="gelu_tanh", **pooled,
    )  # fmt: skip
    other.load_pretrained(str(file))
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(other.eval()(images), model(images), rtol=0, atol=1e-5)
