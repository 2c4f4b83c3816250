"""What timm gets from us: its own loader takes what is written, or a field is refused."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitlab
from made_models import close, noisy
from oracles import peers
from vitlab.errors import OptionError, WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.create import build

FIELDS: dict[str, tuple[Any, ...]] = {
    "branches": (1, 1, 1, 2, 3), "stem": ("linear", "linear", "linear", "hmlp", "resnet"),
    "stem_norm": ("none", "none", "batch", "layer"), "stem_act": ("none", "none", "gelu"),
    "stages": ((), (2, 2, 2, 2), (1,)), "resnet": ("timm", "google"),
    "positions": ("none", "1d", "1d", "2d", "relative", "bias", "rope", "1d+bias", "1d+rope"),
    "positions_at": ("stem", "stem", "every", "shared"), "pre_norm": (False, True),
    "class_token": (None, True, False), "pool": ("token", "mean", "both", "prefix", "attention"),
    "norm_at": ("tokens", "pooled", "none"), "queries": (1, 1, 2), "pre_logits": (0, 0, 0, 12),
    "registers": (0, 0, 1, 3), "layer_scale": (0.0, 0.1), "attention": ("global", "axial"),
    "qkv_bias": (False, True), "bias": (True, True, False), "qk_norm": (False, False, True),
    "ffn": ("mlp", "swiglu"), "gelu": ("exact", "tanh", "quick"), "norm_eps": (1e-6, 1e-5, 1e-4),
    "rope_base": (100.0, 50.0), "rope_kind": ("image", "grid"), "rope_grid": (0, 5),
    "rope_offset": (0.0, 1.0), "norm": ("layer", "layer", "rms"),
    "norm_order": ("before", "before", "after"), "norm_inner_attention": (False, True),
    "norm_inner_mlp": (False, True), "pool_heads": (0, 8), "pool_mlp": (0, 50),
    "pool_prefix": (False, True), "channels": (1, 3, 4), "image_size": (32, (32, 64), 64),
    "classes": (0, 3), "mlp": (24, 52), "heads": (2, 4), "fit": ("crop", "squash"),
}  # fmt: skip


@st.composite
def configs(draw: st.DrawFn) -> ViTConfig:
    """A plain model, a few of whose fields have other values; those that do not go are dropped."""
    fields: dict[str, Any] = {"width": 32, "depth": 1, "patch": 16, "heads": 2, "mlp": 24}
    fields |= {"image_size": 32, "classes": 3}
    config = ViTConfig(**fields)
    for name in draw(st.permutations(list(FIELDS)))[: draw(st.integers(1, 9))]:
        chosen = {name: draw(st.sampled_from(FIELDS[name]))}
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
    return noisy(build(config))


def in_timm(model: Any, folder: Path) -> None:
    """Compare with the model that timm builds and loads from a folder, with nothing left over."""
    other = peers.timm().create_model(f"local-dir:{folder}", pretrained=True).eval()
    images = torch.randn(2, model.config.channels, *model.config.size)
    with torch.inference_mode():
        close(other(images), model(images))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
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
