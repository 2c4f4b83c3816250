"""Files with timm's names, random weights, read and written: timm's numbers, or a reason."""

import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from made_models import close, noisy
from oracles import peers
from vitlab.errors import OptionError, WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.create import build
from vitlab.weights.load import load_check

SMALL = {"depth": 1, "num_classes": 7}
PLAIN: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 2, "img_size": 48},
    "vit_small_patch16_18x2_224": {"depth": 2, "img_size": 32},
    "vit_wee_patch16_reg1_gap_256": {"img_size": 64},
    "vit_so150m_patch16_reg4_gap_256": {"embed_dim": 224, "img_size": 64},
    "vit_base_patch16_clip_224": {"embed_dim": 192, "img_size": 32},
    "vit_base_patch32_clip_quickgelu_224": {"embed_dim": 192, "img_size": 64},
    "vit_base_patch16_siglip_224": {"embed_dim": 192, "img_size": 32, "num_classes": 0},
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},
    "vit_giant_patch14_dinov2": {"img_size": 28, "embed_dim": 192, "num_heads": 3},
    "vit_small_patch16_dinov3": {"img_size": 48, "num_classes": 0},
    "vit_small_plus_patch16_dinov3": {"img_size": 48},
    "vit_intern300m_patch14_448": {"embed_dim": 256, "img_size": 28, "num_classes": 0},
    "vit_tiny_r_s16_p8_224": {"img_size": 64},
    "deit_tiny_patch16_224": {"img_size": 48},
    "deit_tiny_distilled_patch16_224": {"img_size": 48},
    "deit3_small_patch16_224": {"img_size": 48},
    "beitv2_base_patch16_224": {"embed_dim": 192, "img_size": 48},
    "eva_giant_patch14_224": {"embed_dim": 256, "img_size": 28},
}
# Other norms, positions and pools.
BEYOND: dict[str, dict[str, Any]] = {
    "eva02_tiny_patch14_224": {"depth": 2, "img_size": 56},
    "eva02_base_patch14_448": {"img_size": 42, "num_classes": 7},
    "eva02_base_patch16_clip_224": {"img_size": 48},
    "eva02_enormous_patch14_clip_224": {"img_size": 28, "embed_dim": 64, "num_classes": 5},
    "vit_pe_core_tiny_patch16_384": {"img_size": 48, "num_classes": 5},
    "vit_pe_lang_large_patch14_448": {"img_size": 28, "embed_dim": 192},
    "vit_pe_spatial_tiny_patch16_512": {"img_size": 48},
    "vit_small_patch16_rope_224": {"img_size": 48},
    "vit_small_patch16_rope_ape_224": {"img_size": 48},
    "vit_medium_patch16_rope_reg1_gap_256": {"embed_dim": 128, "img_size": 48},
    "aimv2_large_patch14_224": {"img_size": 28, "num_classes": 5},
    "beit3_base_patch16_224": {"img_size": 32},
    "beit_base_patch16_224": {"embed_dim": 192, "img_size": 32, "use_abs_pos_emb": True},
    "vit_base_patch16_rpn_224": {"img_size": 32, "embed_dim": 96},
    "test_vit4": {"img_size": 32},
}  # fmt: skip
CASES = {name: SMALL | choices for name, choices in PLAIN.items()} | {
    name: {"depth": 1} | choices for name, choices in BEYOND.items()
}
# A file without a name or configuration beside it that is no other family's.
TELLING = {
    "eva02_tiny_patch14_224": {"rope_grid": 16, "rope_kind": "grid", "heads": 3},
    "eva02_base_patch14_448": {"rope_grid": 16, "heads": 12, "norm_eps": 1e-6},
    "eva02_base_patch16_clip_224": {"rope_grid": 16, "norm_inner_attention": True},
    "aimv2_large_patch14_224": {"heads": 8, "norm": "rms", "norm_eps": 1e-5},
    "beit3_base_patch16_224": {"norm_eps": 1e-5, "norm_inner_mlp": True},
    "beit_base_patch16_224": {"positions": "1d+bias"},
}


def randomized(model: nn.Module, seed: int = 4) -> nn.Module:
    """Every tensor random, so that no zero or one hides a mistake; periods stay."""
    kept = {n: t.clone() for n, t in model.state_dict().items() if "running" in n or "periods" in n}
    noisy(model, 0.02, seed).load_state_dict(kept, strict=False)
    return model


def written(model: nn.Module, file: Path) -> Path:
    """As timm's repositories hold it."""
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if file.suffix == ".safetensors":
        save_file(tensors, file)
    else:
        torch.save(tensors, file)
    return file


def a_model(name: str, **more: Any) -> Any:
    return randomized(peers.timm().create_model(name, **CASES[name] | more))


def some_images(size: int | tuple[int, int], count: int = 2) -> Tensor:
    rows, columns = (size, size) if isinstance(size, int) else size
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, rows, columns, generator=generator)


def agree(model: Any, other: Any, images: Tensor) -> None:
    with torch.inference_mode():
        tokens = other.forward_features(images)
        close(model.encode(images), tokens)
        close(model(images), other(images))
        if not hasattr(other, "head_dist"):
            close(model.features(images), other.forward_head(tokens, pre_logits=True))


@pytest.mark.parametrize("name", CASES)
def test_by_name_or_content(name: str, tmp_path: Path) -> None:
    other, size = a_model(name), CASES[name]["img_size"]
    file = written(other, tmp_path / ("any.pth" if "deit" in name else "any.safetensors"))
    heads = {"heads": CASES[name]["num_heads"]} if "num_heads" in CASES[name] else {}
    asked = size if name in BEYOND or "dinov3" in name else None  # no positions to tell by
    model = vitlab.load(file, None, asked, name=f"{name}.random", **heads)
    assert model.config.size == (size, size)
    agree(model, other, some_images(size, 3))
    if told := TELLING.get(name):
        model = vitlab.load(file, image_size=size)
        agree(model, other, some_images(size))
        assert {key: getattr(model.config, key) for key in told} == told


RESIZED = {
    "vit_tiny_patch16_224": (48, 80),
    "vit_small_patch14_reg4_dinov2": (84, 56),
    "vit_small_patch16_dinov3": (64, 32),
    "eva02_tiny_patch14_224": (28, 70),
    "vit_pe_core_tiny_patch16_384": (64, 32),
    "vit_small_patch16_rope_ape_224": (64, 32),
    "aimv2_large_patch14_224": (42, 28),
    "beit_base_patch16_224": (64, 48),
}


@pytest.mark.filterwarnings("ignore:torch.searchsorted", "ignore:Using a non-tuple")  # timm's
@pytest.mark.parametrize("name", RESIZED)
def test_positions_are_resized_as_timm_does(name: str, tmp_path: Path) -> None:
    other, size = a_model(name), RESIZED[name]
    file = written(other, tmp_path / "any.safetensors")
    wide = a_model(name, img_size=size)
    family = sys.modules[type(other).__module__]
    wide.load_state_dict(family.checkpoint_filter_fn(other.state_dict(), wide))
    images, model = some_images(size), vitlab.load(file, name=name, image_size=size)
    with torch.inference_mode():
        close(model(images), wide(images))
        if name in BEYOND:
            model = vitlab.load(file, name=name, image_size=CASES[name]["img_size"])
            close(model(images), wide(images))
            close(model.resize(size)(images), wide(images))


def test_perception_encoder_by_content(tmp_path: Path) -> None:
    """Its positions are those of the grid that its rotary ones are for, which is told."""
    grid = {"ref_feat_shape": (3, 3)}
    for name in ("vit_pe_core_tiny_patch16_384", "vit_pe_spatial_tiny_patch16_512"):
        other = a_model(name, **grid)
        file = written(other, tmp_path / "model.safetensors")
        agree(vitlab.load(file), other, some_images(48))
        found = load_check(file)
        assert (found.origins["rope_grid"], found.origins["rope_kind"]) == ("assumed", "family")
        assert "rope_grid 3" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("vit_small_patch16_rope_224", "no positions are stored"),
        ("vit_medium_patch16_rope_reg1_gap_256", "no positions are stored"),
        ("vit_base_patch16_rpn_224", "may be another model, as in vit_base_patch16_rpn_224"),
    ],
)
def test_what_leaves_no_trace_is_refused(name: str, part: str, tmp_path: Path) -> None:
    file = written(a_model(name), tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=part):
        vitlab.load(file)
    with pytest.raises(WeightsError, match=f"({part}|which channels rotary positions turn)"):
        vitlab.load(file, positions="rope", rope_kind="grid", image_size=48)


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


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
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
