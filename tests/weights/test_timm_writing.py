"""What timm gets from us: its own loader takes what is written, or a field is refused."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitlab
from oracles import peers
from vitlab.errors import OptionError, WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.create import build
from weights.test_timm_files import close

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "branches": st.sampled_from([1, 1, 1, 2, 3]),
    "stem": st.sampled_from(["linear", "linear", "linear", "hmlp", "resnet"]),
    "stem_norm": st.sampled_from(["none", "none", "batch", "layer"]),
    "stem_act": st.sampled_from(["none", "none", "gelu"]),
    "stages": st.sampled_from([(), (2, 2, 2, 2), (1,)]),
    "resnet": st.sampled_from(["timm", "google"]),
    "positions": st.sampled_from(
        [
            "none",
            "1d",
            "1d",
            "2d",
            "relative",
            "bias",
            "rope",
            "1d+bias",
            "1d+rope",
        ]
    ),
    "positions_at": st.sampled_from(["stem", "stem", "every", "shared"]),
    "pre_norm": st.booleans(),
    "class_token": st.sampled_from([None, True, False]),
    "pool": st.sampled_from(["token", "mean", "both", "prefix", "attention"]),
    "norm_at": st.sampled_from(["tokens", "pooled", "none"]),
    "queries": st.sampled_from([1, 1, 2]),
    "pre_logits": st.sampled_from([0, 0, 0, 12]),
    "registers": st.sampled_from([0, 0, 1, 3]),
    "layer_scale": st.sampled_from([0.0, 0.1]),
    "attention": st.sampled_from(["global", "global", "axial"]),
    "qkv_bias": st.booleans(),
    "bias": st.sampled_from([True, True, False]),
    "qk_norm": st.sampled_from([False, False, True]),
    "ffn": st.sampled_from(["mlp", "swiglu"]),
    "gelu": st.sampled_from(["exact", "tanh", "quick"]),
    "norm_eps": st.sampled_from([1e-6, 1e-5, 1e-4]),
    "rope_base": st.sampled_from([100.0, 50.0]),
    "rope_kind": st.sampled_from(["image", "grid"]),
    "rope_grid": st.sampled_from([0, 5]),
    "rope_offset": st.sampled_from([0.0, 1.0]),
    "norm": st.sampled_from(["layer", "layer", "rms"]),
    "norm_order": st.sampled_from(["before", "before", "after"]),
    "norm_inner_attention": st.booleans(),
    "norm_inner_mlp": st.booleans(),
    "pool_heads": st.sampled_from([0, 8]),
    "pool_mlp": st.sampled_from([0, 50]),
    "pool_prefix": st.booleans(),
    "channels": st.sampled_from([1, 3, 4]),
    "image_size": st.sampled_from([32, (32, 64), 64]),
    "classes": st.sampled_from([0, 3]),
    "mlp": st.sampled_from([24, 52]),
    "heads": st.sampled_from([2, 4]),
    "fit": st.sampled_from(["crop", "squash"]),
}


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    """A plain model, a few of whose fields have other values; those that do not go are dropped."""
    fields: dict[str, Any] = {"width": 32, "depth": 1, "patch": 16, "heads": 2, "mlp": 24}
    fields |= {"image_size": 32, "classes": 3}
    config = ViTConfig(**fields)
    for name in draw(st.permutations(list(FIELDS)))[: draw(st.integers(1, 9))]:
        chosen = {name: draw(FIELDS[name])}
        if name == "positions" and chosen[name] == "rope":
            chosen |= {"norm_eps": 1e-5, "gelu": "exact"}
        if name == "pre_norm":
            chosen["stem_bias"] = not chosen[name]
        if name == "stem" and chosen[name] == "resnet":
            chosen |= {"patch": 32, "stages": (2, 2, 2, 2), "resnet": "timm"}
        try:
            config = replace(config, **chosen)
        except OptionError:
            continue
    return config


def randomly(config: ViTConfig) -> Any:
    model = build(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and "running" not in name:
                tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return model


def in_timm(model: Any, folder: Path) -> None:
    """Compare with the model that timm builds and loads from a folder, with nothing left over."""
    other = peers.timm().create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, model.config.channels, *model.config.size)
    with torch.inference_mode():
        close(other(images), model(images))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs())
def test_timm_takes_what_is_written(config: ViTConfig) -> None:
    model = randomly(config)
    with TemporaryDirectory() as place:
        try:
            vitlab.save(model, Path(place) / "m", to="timm")
        except WeightsError as error:
            assert "\n" not in str(error)
            named = [name for name in config.as_dict() if f"{name}=" in str(error)]
            assert named or config.name in str(error), error
            return
        in_timm(model, Path(place) / "m")


PARTICULAR: dict[str, tuple[str, dict[str, Any]]] = {
    "another number of channels": ("ViT-Ti1/16", {"channels": 4}),
    "branches without LayerScale": ("ViT-Ti1x2/16", {}),
    "no positions": ("ViT-Ti1/16", {"positions": "none"}),
    "keys with a bias, rotated": ("ViT-Ti1/16", {"positions": "rope", "norm_eps": 1e-5}),
    "keys with a bias that the softmax makes void": ("ViT-Ti1/16", {"positions": "bias"}),
    "DINOv3 with SwiGLU": (
        "ViT-Ti1/16", {"positions": "rope", "norm_eps": 1e-5, "ffn": "swiglu", "mlp": 100}
    ),
    "EVA-02": (
        "ViT-Ti1/16",
        {
            "positions": "1d+rope", "rope_kind": "grid", "rope_grid": 16, "ffn": "swiglu",
            "mlp": 100, "norm_inner_mlp": True, "norm_inner_attention": True,
        },
    ),
    "EVA-02-CLIP-E": ("ViT-Ti1/16", {"positions": "1d+rope", "norm_order": "after"}),
    "Perception Encoder": (
        "ViT-Ti1/16",
        {
            "positions": "1d+rope", "rope_kind": "grid", "rope_offset": 1.0, "pool": "attention",
            "pool_heads": 8, "pool_mlp": 99, "pool_prefix": True, "class_token": True,
            "norm_eps": 1e-5, "pre_norm": True, "stem_bias": False,
        },
    ),
    "RoPE-ViT": (
        "ViT-Ti1/16", {"positions": "rope", "rope_kind": "grid", "qk_norm": True},
    ),
    "registers with positions, rotated": (
        "ViT-Ti1/16", {"positions": "1d+rope", "rope_kind": "grid", "registers": 2},
    ),
    "BEiT with both": ("ViT-Ti1/16", {"positions": "1d+bias"}),
    "BEiT with SwiGLU": ("ViT-Ti1/16", {"positions": "bias", "ffn": "swiglu", "mlp": 100}),
    "BEiT-3": ("ViT-Ti1/16", {"norm_inner_attention": True, "norm_inner_mlp": True}),
    "RMS norms": ("ViT-Ti1/16", {"norm": "rms", "qk_norm": True}),
    "mean of all tokens": (
        "ViT-Ti1/16", {"pool": "mean", "class_token": True, "pool_prefix": True},
    ),
    "rotary without LayerScale": ("ViT-Ti1/16", {"positions": "rope", "qk_norm": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTICULAR)
def test_what_others_could_not_load(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, choices = PARTICULAR[case]
    model = randomly(vitlab.create(name, 3, 32, **choices).config)
    vitlab.save(model, tmp_path / "m", to="timm")
    assert not caplog.text  # nothing is lost, not even how positions were to be resized
    in_timm(model, tmp_path / "m")
    images = torch.randn(2, model.config.channels, 32, 32)
    close(vitlab.load(tmp_path / "m")(images), model(images))


def test_a_hybrids_patches_may_be_larger_than_a_place_of_its_map(tmp_path: Path) -> None:
    config = ViTConfig(
        width=32, depth=1, heads=2, mlp=24, image_size=64, classes=3, stem="resnet",
        stages=(2, 2, 2, 2), resnet="timm", patch=64,
    )  # fmt: skip
    model = randomly(config)
    vitlab.save(model, tmp_path / "m", to="timm")
    in_timm(model, tmp_path / "m")
    assert vitlab.load(tmp_path / "m").config.patch == 64


def test_what_timm_resamples_otherwise_is_kept_for_us(tmp_path: Path) -> None:
    """Positions at other sizes, read back here as they were."""
    model = vitlab.create("ViT-Ti2/16", classes=None, image_size=64, resampling="bicubic").eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(torch.randn_like(tensor))
    vitlab.save(model, tmp_path / "timm", to="timm")
    again = vitlab.load(tmp_path / "timm")
    assert again.config.resampling == "bicubic"
    images = torch.randn(1, 3, 96, 48)
    assert torch.equal(again.encode(images), model.encode(images))
    theirs = peers.timm().create_model(f"local-dir:{tmp_path}/timm", pretrained=True).eval()
    same = torch.ones(1, 3, 64, 64)
    close(theirs(same), model(same))
