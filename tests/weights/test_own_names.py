"""Authors' own names: Perception Encoder, EVA-02, AIMv2, RoPE-ViT; and ours, as a state dict."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import vitlab
from made_models import noisy, pixels
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check
from weights.test_papers import renamed
from weights.test_timm_files import a_model, agree, some_images

# Patterns in timm's names, and the authors' words for them.
META = (
    (r"^patch_embed\.proj", "conv1"), (r"^pos_embed$", "positional_embedding"),
    (r"^cls_token$", "class_embedding"), (r"^norm_pre", "ln_pre"), (r"^norm\.", "ln_post."),
    (r"^blocks\.", "transformer.resblocks."), (r"\.norm([12])", r".ln_\1"),
    (r"\.gamma_([12])$", r".ls_\1.gamma"), (r"\.attn\.qkv\.", ".attn.in_proj_"),
    (r"\.attn\.proj\.", ".attn.out_proj."), (r"mlp\.fc1", "mlp.c_fc"),
    (r"mlp\.fc2", "mlp.c_proj"), (r"^attn_pool\.latent", "attn_pool.probe"),
    (r"^attn_pool\.norm", "attn_pool.layernorm"), (r"^attn_pool\.proj", "attn_pool.attn.out_proj"),
)  # fmt: skip
BAAI = (
    (r"mlp\.fc1_g", "mlp.w1"), (r"mlp\.fc1_x", "mlp.w2"), (r"mlp\.fc2", "mlp.w3"),
    (r"mlp\.norm", "mlp.ffn_ln"), (r"attn\.norm", "attn.inner_attn_ln"),
    (r"attn\.([qv])_proj\.bias", r"attn.\1_bias"),
)  # fmt: skip
APPLE = (
    (r"^patch_embed\.", "preprocessor.patchifier."), (r"^pos_embed$", "preprocessor.pos_embed"),
    (r"^blocks\.", "trunk.blocks."), (r"^norm\.", "trunk.post_trunk_norm."),
    (r"\.norm([12])\.", r".norm_\1."), (r"mlp\.fc1_g", "mlp.fc1"), (r"mlp\.fc1_x", "mlp.fc3"),
)  # fmt: skip


def by_meta(model: Any) -> dict[str, Tensor]:
    tensors = renamed(model.state_dict(), *META)
    tensors = {k: t[0] if k == "positional_embedding" else t for k, t in tensors.items()}
    if "class_embedding" in tensors:
        tensors["class_embedding"] = tensors["class_embedding"].flatten()
    for part in ("weight", "bias"):
        if f"attn_pool.q.{part}" in tensors:
            both = [tensors.pop(f"attn_pool.{name}.{part}") for name in ("q", "kv")]
            tensors[f"attn_pool.attn.in_proj_{part}"] = torch.cat(both)
    if "head.weight" in tensors:
        tensors["proj"] = tensors.pop("head.weight").T.contiguous()
        tensors.pop("head.bias")
    return tensors


PERCEPTION = {
    "vit_pe_core_tiny_patch16_384": 12, "vit_pe_spatial_tiny_patch16_512": 12,
    "vit_pe_lang_large_patch14_448": 13,
}  # fmt: skip


@pytest.mark.parametrize("name", PERCEPTION)
def test_perception_encoder(name: str, tmp_path: Path) -> None:
    side = 28 if "patch14" in name else 48
    heads = {"num_heads": 3} if "patch14" in name else {}
    other = a_model(name, ref_feat_shape=(side // 14 if "patch14" in name else 3,) * 2, **heads)
    if getattr(other, "head", None) is not None and hasattr(other.head, "bias"):
        torch.nn.init.zeros_(other.head.bias)  # its own files have none
    prefix = "visual." if "core" in name else ""
    tensors = {prefix + key: tensor for key, tensor in by_meta(other).items()}
    torch.save(tensors | ({"logit_scale": torch.ones(())} if prefix else {}), tmp_path / "PE.pt")
    model: Any = vitlab.load(tmp_path / "PE.pt")
    agree(model, other, some_images(side))
    config = model.config
    assert (config.rope_grid, config.fit, config.mean) == (0, "squash", (0.5,) * 3)
    assert config.rope_offset == float(config.has_token)
    if config.pool == "attention":
        assert (config.pool_heads, config.pool_prefix) == (8, config.has_token)


def test_perception_encoder_at_another_size_is_as_its_own_code(tmp_path: Path) -> None:
    """Bilinear positions, and rows and columns that are counted on, not scaled."""
    name = "vit_pe_core_tiny_patch16_384"
    other = a_model(name, ref_feat_shape=(3, 3))
    torch.save(by_meta(other), tmp_path / "PE.pt")
    wide = a_model(name, img_size=(64, 80), ref_feat_shape=(4, 5))
    state = dict(other.state_dict())
    grid = state["pos_embed"][:, 1:].unflatten(1, (3, 3)).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(grid, (4, 5), mode="bilinear", align_corners=False)
    rows = resized.flatten(2).transpose(1, 2)
    wide.load_state_dict(state | {"pos_embed": torch.cat([state["pos_embed"][:, :1], rows], 1)})
    images, model = some_images((64, 80)), vitlab.load(tmp_path / "PE.pt", image_size=(64, 80))
    with torch.inference_mode():
        torch.testing.assert_close(
            model.encode(images), wide.forward_features(images), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize(
    ("name", "rules", "prefix", "more"),
    [
        ("eva02_base_patch16_clip_224", BAAI, "visual.", {"rope.freqs_cos": (9, 64)}),
        ("eva02_tiny_patch14_224", BAAI, "", {"blocks.0.attn.rope.freqs_sin": (16, 64)}),
        ("aimv2_large_patch14_224", APPLE, "", {}),
    ],
)
def test_others(
    name: str, rules: Any, prefix: str, more: dict[str, tuple[int, int]], tmp_path: Path
) -> None:
    other = a_model(name)
    tensors = renamed(other.state_dict(), *rules) | {
        key: torch.zeros(shape) for key, shape in more.items()
    }
    torch.save({prefix + key: tensor for key, tensor in tensors.items()}, tmp_path / "own.pt")
    size = other.patch_embed.img_size
    agree(vitlab.load(tmp_path / "own.pt", image_size=size), other, some_images(size))


CONFIG = {
    "model_type": "aimv2", "hidden_size": 1024, "num_hidden_layers": 1, "num_attention_heads": 8,
    "intermediate_size": 2816, "image_size": 28, "patch_size": 14, "rms_norm_eps": 1e-5,
    "qkv_bias": False, "use_bias": False, "projection_dropout": 0.0, "attention_dropout": 0.0,
    "architectures": ["AIMv2Model"], "auto_map": {"AutoModel": "modeling_aimv2.AIMv2Model"},
}  # fmt: skip


def test_aimv2_with_its_own_configuration(tmp_path: Path) -> None:
    other = a_model("aimv2_large_patch14_224", num_classes=0)
    save_file(renamed(other.state_dict(), *APPLE), tmp_path / "model.safetensors")
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    agree(vitlab.load(tmp_path), other, some_images(28))
    file.write_text(json.dumps(CONFIG | {"num_attention_heads": 16, "rms_norm_eps": 0.5}))
    config: Any = vitlab.load(tmp_path).config
    assert (config.heads, config.norm_eps) == (16, 0.5)
    for wrong in ({"use_bias": True}, {"hidden_act": "gelu"}, {"surprising": 1}):
        file.write_text(json.dumps(CONFIG | wrong))
        with pytest.raises(WeightsError):
            vitlab.load(tmp_path)


SMALL = "ViT(width=192,depth=2,heads=3,mlp=96)/8"
CHOICES: dict[str, dict[str, Any]] = {
    "features": {"classes": 0, "pre_logits": 16},
    "both": {"pool": "both", "registers": 2, "layer_scale": 0.1},
    "attention": {"pool": "attention", "qkv_bias": False},
    "gated": {"ffn": "swiglu", "norm": "rms", "qk_norm": True, "bias": False},
    "clip": {"pre_norm": True, "stem_bias": False, "norm_inner_mlp": True},
    "hmlp": {"stem": "hmlp", "stem_norm": "batch"},
    "parallel": {"branches": 2, "layer_scale": 0.1},
}


def of_ours(**choices: Any) -> Any:
    return noisy(vitlab.create(SMALL, **({"classes": 3} | choices), image_size=32))


def same(back: Any, model: Any) -> None:
    with torch.inference_mode():
        assert torch.equal(back(pixels(32)), model(pixels(32)))


@pytest.mark.parametrize(("number", "case"), [*enumerate(CHOICES)])
def test_our_own_tensors_alone(number: int, case: str, tmp_path: Path) -> None:
    model, prefix = of_ours(**CHOICES[case]), ("", "model.", "lightning.net.")[number % 3]
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    content = {"state_dict": state | {"loss.weight": torch.ones(7)}} if prefix else state
    torch.save(content, tmp_path / "own.ckpt")
    back = vitlab.load(tmp_path / "own.ckpt")
    same(back, model)
    origins = load_check(tmp_path / "own.ckpt").origins
    assert {origins[name] for name in ("heads", "gelu", "norm_eps", "mean")} <= {
        "assumed", "tensors",
    }  # fmt: skip


def test_what_tensors_do_not_show_is_said_and_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = of_ours(gelu="tanh", norm_eps=0.1, mean=0.25)
    torch.save(model.state_dict(), tmp_path / "own.pth")
    with caplog.at_level(logging.WARNING, "vitlab"):
        vitlab.load(tmp_path / "own.pth")
    assert all(f" {each}," in caplog.text for each in ("heads 3", "gelu exact", "norm_eps 1e-06"))
    back = vitlab.load(tmp_path / "own.pth", name=SMALL, gelu="tanh", norm_eps=0.1, mean=0.25)
    same(back, model)
    assert back.config.mean == (0.25,) * 3


def test_a_configuration_beside_the_file_says_all(tmp_path: Path) -> None:
    model = of_ours(gelu="tanh", positions="2d", registers=1, pool="prefix")
    vitlab.save(model, tmp_path / "saved")
    shutil.copy(tmp_path / "saved" / "config.json", tmp_path)
    with torch.no_grad():
        model.head.classify.bias.add_(1.0)  # trained further, so that checksums are of others
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "last.ckpt")
    back = vitlab.load(tmp_path / "last.ckpt")
    assert back.config == model.config
    same(back, model)
    assert set(load_check(tmp_path / "last.ckpt").origins.values()) == {"file"}


@pytest.mark.parametrize("choices", [{"positions": "2d"}, {"stem": "resnet", "stages": (1,)}])
def test_what_cannot_be_read_names_what_works(choices: dict[str, Any], tmp_path: Path) -> None:
    model: Any = vitlab.create("ViT-Ti1/16", 3, 32, **choices)
    torch.save(model.state_dict(), tmp_path / "own.pth")
    advice = r"save the model with vitlab\.save\(model, FOL"
    with pytest.raises(WeightsError, match=advice) as caught:
        vitlab.load(tmp_path / "own.pth")
    assert len(str(caught.value).replace(str(tmp_path), "")) < 200
