"""Our models in others' formats: their libraries give our numbers, and we read back our bits."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from made_models import close, equal, noisy
from oracles import peers
from vitlab.errors import WeightsError

TI, SCALED, SWIGLU = "ViT-Ti2/8", {"layer_scale": 0.1}, {"ffn": "swiglu", "mlp": 100}
MEAN, GRID = {"pool": "mean", "class_token": True}, {"positions": "1d+rope", "rope_kind": "grid"}
CLIP = {"pre_norm": True, "stem_bias": False}
BEIT, ROPE = {"positions": "bias"}, {"positions": "rope", "norm_eps": 1e-5}
TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TI, {}), "Google's GELU, mean": (TI, {"gelu": "tanh", "pool": "mean"}),
    "no classes": (TI, {"classes": 0, "norm_at": "none"}),
    "registers": (TI, SCALED | {"registers": 3}), "parallel": ("ViT-Ti2x2/8", SCALED),
    "odd MLP": ("ViT(width=48,depth=2,heads=3,mlp=100)/8", {"qk_norm": True}),
    "no biases": (TI, {"bias": False, "qkv_bias": False}),
    "CLIP": (TI, CLIP | {"gelu": "quick", "norm_eps": 1e-5}),
    "SigLIP": (TI, {"pool": "attention", "classes": 0}),
    "BEiT": (TI, BEIT | MEAN | SCALED | {"norm_at": "pooled"}),
    "BEiT, shared": (TI, BEIT | SCALED | {"positions_at": "shared"}),
    "SwiGLU": (TI, SCALED | SWIGLU),
    "DINOv3": (TI, ROPE | MEAN | SCALED | {"registers": 4, "qkv_bias": False}),
    "distilled": (TI, {"pool": "prefix", "registers": 1, "class_token": True}),
    "hybrid": ("R26+ViT-Ti2/32", {"resnet": "timm"}),
    "Perception Encoder": (TI, GRID | CLIP | {
        "rope_offset": 1.0, "pool": "attention", "pool_heads": 8, "pool_mlp": 99, "norm_eps": 1e-5,
        "pool_prefix": True, "class_token": True,
    }),
    "RoPE-ViT": (TI, ROPE | {"rope_kind": "grid", "qk_norm": True, "norm_eps": 1e-6}),
    "registers with positions, rotated": (TI, GRID | {"registers": 2}),
    "BEiT with both, SwiGLU": (TI, SWIGLU | {"positions": "1d+bias"}),
    "channels, no positions": (TI, {"channels": 4, "positions": "none", "mean": 0.5, "std": 0.5}),
    "mean of all tokens": (TI, MEAN | {"pool_prefix": True}),
}  # fmt: skip


def a_model(name: str, choices: dict[str, Any], size: Any = (32, 32)) -> Any:
    """Every tensor random, but what a format cannot represent."""
    own = {"classes": 5, "mean": (0.1, 0.2, 0.3), "crop": 0.875, **choices}
    model = noisy(vitlab.create(name, image_size=size, **own))
    with torch.no_grad():
        if model.config.positions in ("bias", "1d+bias", "rope") and model.config.qkv_bias:
            for block in model.blocks:
                block.attention[0].body.qkv.bias.chunk(3)[1].zero_()
        if model.config.pre_norm and model.config.classes:
            model.head.classify.bias.zero_()
    return model


def same(model: Any, loaded: Any) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name


def same_bits(model: Any, loaded: Any) -> None:
    assert loaded.config == model.config
    assert equal(loaded, model)


@pytest.mark.parametrize("case", TIMM)
def test_timm_loads_it(case: str, tmp_path: Path) -> None:
    """Its own format, and our own folders, which have its names where they can."""
    model = a_model(*TIMM[case], (64, 32) if "R26" in TIMM[case][0] else (32, 48))
    images = torch.randn(2, model.config.channels, *model.config.size)
    theirs = vitlab.save(model, tmp_path / "theirs", to="timm")
    loaded = vitlab.load(theirs)
    same(model, loaded)
    assert loaded.config.mean == model.config.mean
    ours = vitlab.save(model, tmp_path / "ours")
    same_bits(model, vitlab.load(ours))
    for folder in [theirs] if case.startswith("BEiT") else [theirs, ours]:
        other = peers.timm().create_model(f"local-dir:{folder}", pretrained=True).eval()
        with torch.inference_mode():
            close(other(images), model(images))


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("ViT-Ti2/8", {"gelu": "tanh"}),
        ("ViT-Ti2/8", {"gelu": "tanh", "pool": "attention", "pre_logits": 12}),
        ("R26+ViT-Ti2/32", {"gelu": "tanh", "classes": 0}),
        ("BiT-R(1-1)x1", {}),
    ],
)
def test_googles_format_and_back(
    name: str, choices: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = vitlab.create(name, image_size=64, **{"classes": 5, **choices})
    vitlab.save(model, tmp_path / "m", to="google")
    loaded = vitlab.load(tmp_path / "m" / "model.npz", image_size=64)
    same(model, loaded)
    assert vitlab.load(tmp_path / "m").config.name == name


TI, ROPE = "ViT-Ti1/16", {"positions": "rope"}
POOLED = MEAN | {"norm_at": "pooled"}
DINO2 = {"layer_scale": 0.1, "pool": "both"}
# Format, model, choices of which the first are named if no message is given.
REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    *(
        ("google", TI, choices | {"gelu": choices.get("gelu", "tanh")}, "")
        for choices in (
            {"norm_at": "none"}, {"norm_at": "pooled", "pool": "mean"}, {"qkv_bias": False},
            {"bias": False}, {"stem": "hmlp"}, {"stem_bias": False}, ROPE, {"positions": "2d"},
            {"positions": "bias"}, {"positions": "none"}, {"positions_at": "every"},
            {"gelu": "exact"}, {"norm_eps": 1e-5}, {"norm": "rms"}, {"pool": "both"},
            {"qk_norm": True}, {"ffn": "swiglu"}, {"pre_norm": True}, {"layer_scale": 0.1},
            {"registers": 1}, {"branches": 2},
        )
    ),
    ("timm", "ViT-Ti1x3/8", {}, "timm cannot represent branches=3"),
    ("timm", TI, {"pre_logits": 8}, ""),
    ("timm", TI, {"norm_eps": 1e-3}, ""),
    ("timm", TI, {"stem": "hmlp", "stem_norm": "batch"}, ""),
    ("timm", TI, {"bias": False, **ROPE}, ""),
    ("timm", TI, {"qk_norm": True, "positions": "bias"}, ""),
    ("timm", TI, {"norm": "rms", "norm_eps": 1e-5}, ""),
    ("timm", TI, {"norm": "rms", **ROPE, "rope_kind": "grid"}, ""),
    ("timm", TI, {"norm_order": "after"}, ""),
    ("timm", TI, {"pool_heads": 2, "pool": "attention"}, ""),
    ("timm", TI, {"ffn": "swiglu", "pool": "attention"}, ""),
    ("timm", "R26+ViT-Ti1/32", {}, "timm cannot represent resnet='google'"),
    ("timm", "BiT-R50x1", {}, "cannot represent BiT-R50x1"),
    ("transformers", TI, {"stem": "hmlp"}, ""),
    ("transformers", TI, {"norm": "rms"}, ""),
    ("transformers", TI, {"qk_norm": True}, ""),
    ("transformers", TI, {"pool": "mean", "registers": 1}, "cannot represent pool=mean"),
    ("transformers", TI, {"pool": "attention"}, "siglip_vision_model has no classifier"),
    ("transformers", TI, {"pre_logits": 5},
     "pool=token and norm_at=tokens and pre_logits=5 and classes=5 toge"),
    ("transformers", TI, DINO2 | {"pre_logits": 5}, "and pre_logits=5 and classes=5 together$"),
    ("transformers", TI, DINO2 | {"classes": 0}, "pool=both and norm_at=tokens and layer_scale=0"),
    ("transformers", TI, {"image_size": (16, 32), "pre_norm": True, "stem_bias": False,
                          "gelu": "quick"}, "takes square images: cannot represent image_size=.16"),
    ("transformers", TI, DINO2 | {"image_size": (16, 32)}, "dinov2 takes square images"),
    ("transformers", TI, POOLED | {"image_size": (16, 32), "positions": "bias"},
     "beit takes square images"),
    ("transformers", TI, ROPE | {"layer_scale": 0.1, "classes": 0, "rope_kind": "grid"},
     "rope_kind='grid'"),
    ("transformers", TI, ROPE | {"layer_scale": 0.1},
     "dinov3_vit has no classifier: save with classes=0"),
    ("transformers", TI, DINO2 | {"ffn": "swiglu", "mlp": 32}, "DINOv2 has no gated MLP with mlp="),
    ("transformers", TI, DINO2 | {"mlp": 40}, "DINOv2 needs an mlp that is a multiple of the wid"),
    ("onnx", TI, {}, "unknown format 'onnx': choose from vitlab, transformers, timm, google"),
    ("delta", TI, {}, "unknown format 'delta'"),
]  # fmt: skip


@pytest.mark.parametrize(("to", "name", "choices", "message"), REFUSED)
def test_what_a_format_cannot_represent_is_named(
    to: Any, name: str, choices: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with torch.device("meta" if to != "transformers" else "cpu"):
        model = vitlab.create(name, **{"classes": 5, "image_size": 32, **choices})
    field, value = next(iter(choices.items()), ("", ""))
    words = message or f"{to} cannot .*" + re.escape(f"{field}={value!r}")
    with pytest.raises(ValueError, match=words) as caught:
        vitlab.save(model, tmp_path / "m", to=to)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_is_lost_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = vitlab.create("ViT-Ti1/8", 2, 16, gelu="tanh", labels=("cat", "dog"), crop=0.5)
    with caplog.at_level(logging.WARNING):
        vitlab.save(model, tmp_path / "m", to="google")
    assert "crop=0.5" in caplog.text
    assert "labels=('cat', 'dog')" in caplog.text


def test_what_reading_back_finds_out(tmp_path: Path) -> None:
    """A bias that CLIP's projection does not have."""
    clip = a_model(*TIMM["CLIP"])
    with torch.no_grad():
        clip.head.classify.bias += 1
    with pytest.raises(WeightsError, match=r"cannot represent the values of head.classify.bias"):
        vitlab.save(clip, tmp_path / "m", to="transformers")
    assert not list(tmp_path.iterdir())
