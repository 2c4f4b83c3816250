"""Folders as transformers writes them, random weights: the same numbers as in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from oracles import peers

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
BIASED = {"use_relative_position_bias": True}
SHARED = {"use_shared_relative_position_bias": True}
KEEP = {"mask_ratio": 0.0}
# class of configuration, class of model, choices, and the output that ours gives
CASES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "ViT": ("ViTConfig", "ViTModel", {}, "pooler_output"),
    "ViT, classes": ("ViTConfig", "ViTForImageClassification", {"num_labels": 5}, "logits"),
    "ViT, tanh, no biases": (
        "ViTConfig",
        "ViTForImageClassification",
        {"hidden_act": "gelu_new", "qkv_bias": False},
        "logits",
    ),
    "DeiT": ("DeiTConfig", "DeiTModel", {}, "pooler_output"),
    "DeiT, classes": ("DeiTConfig", "DeiTForImageClassification", {"num_labels": 5}, "logits"),
    "DeiT, teacher": (
        "DeiTConfig",
        "DeiTForImageClassificationWithTeacher",
        {"num_labels": 5},
        "logits",
    ),
    "BEiT": ("BeitConfig", "BeitModel", BIASED, "pooler_output"),
    "BEiT, shared": ("BeitConfig", "BeitModel", SHARED, "pooler_output"),
    "BEiT, classes": ("BeitConfig", "BeitForImageClassification", BIASED, "logits"),
    "BEiT, absolute": (
        "BeitConfig",
        "BeitForImageClassification",
        {"use_absolute_position_embeddings": True},
        "logits",
    ),
    "BEiT, no scale": (
        "BeitConfig",
        "BeitModel",
        {**BIASED, "layer_scale_init_value": 0.0},
        "pooler_output",
    ),
    "DINOv2": ("Dinov2Config", "Dinov2Model", {}, "pooler_output"),
    "DINOv2, classes": (
        "Dinov2Config",
        "Dinov2ForImageClassification",
        {"num_labels": 5},
        "logits",
    ),
    "DINOv2, SwiGLU": ("Dinov2Config", "Dinov2Model", {"use_swiglu_ffn": True}, "pooler_output"),
    "DINOv2, registers": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersModel",
        {"num_register_tokens": 3},
        "pooler_output",
    ),
    "DINOv2, registers, classes": (
        "Dinov2WithRegistersConfig",
        "Dinov2WithRegistersForImageClassification",
        {},
        "logits",
    ),
    "DINOv3": ("DINOv3ViTConfig", "DINOv3ViTModel", {"num_register_tokens": 4}, "pooler_output"),
    "DINOv3, gated": (
        "DINOv3ViTConfig",
        "DINOv3ViTModel",
        {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 4},
        "pooler_output",
    ),
    "MAE": ("ViTMAEConfig", "ViTMAEModel", KEEP, "last_hidden_state"),
    "CLIP": ("CLIPVisionConfig", "CLIPVisionModel", {}, "pooler_output"),
    "CLIP, projection": (
        "CLIPVisionConfig",
        "CLIPVisionModelWithProjection",
        {"projection_dim": 6},
        "image_embeds",
    ),
    "SigLIP": ("SiglipVisionConfig", "SiglipVisionModel", {}, "pooler_output"),
}


def another(case: str, **choices: Any) -> nn.Module:
    """A model of transformers' with every tensor random."""
    transformers = peers.transformers()
    config_class, model_class, own, _ = CASES[case]
    config = getattr(transformers, config_class)(**SMALL | own | choices)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.05 * torch.randn(tensor.shape, generator=generator))
    return model


def some_images(size: int = 32) -> Tensor:
    return torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(3))


def close(got: Tensor, want: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(got, want, rtol=0, atol=atol)


@pytest.mark.parametrize("case", CASES)
def test_outputs_are_transformers(case: str, tmp_path: Path) -> None:
    other, output, images = another(case), CASES[case][3], some_images()
    other.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path)
    with torch.inference_mode():
        if case == "MAE":
            want = other(images, noise=torch.arange(16.0).expand(3, -1))
            close(model.encode(images), want.last_hidden_state)
            return
        want = other(images)
        close(model(images), getattr(want, output))
        if output == "pooler_output":
            close(model.features(images), want.pooler_output)
        last = getattr(want, "last_hidden_state", None)
        if last is not None and "CLIP" not in case:  # whose last states are not normalized
            close(model.encode(images), last)


@pytest.mark.parametrize("case", ["ViT, classes", "DINOv2, classes", "SigLIP"])
def test_other_sizes_as_transformers_interpolates(case: str, tmp_path: Path) -> None:
    other, images = another(case), some_images(48)
    other.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path, image_size=48)
    with torch.inference_mode():
        choices = {} if "DINO" in case else {"interpolate_pos_encoding": True}
        close(model(images), getattr(other(images, **choices), CASES[case][3]))


def test_a_full_size(tmp_path: Path) -> None:
    """ViT-B/16 at 224 in double precision."""
    transformers = peers.transformers()
    other = transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=10)).eval()
    other.save_pretrained(tmp_path)
    model = vitlab.load(tmp_path).double()
    assert model.config.name == "ViT-B/16"
    images = torch.randn(1, 3, 224, 224, dtype=torch.float64)
    with torch.inference_mode():
        close(model(images), other.double()(images).logits, 1e-6)  # their softmax is float32


def test_both_towers_and_pre_training_parts_are_left_out(tmp_path: Path) -> None:
    transformers = peers.transformers()
    text = {**SMALL, "vocab_size": 11, "max_position_embeddings": 7}
    for kind in ("CLIP", "Siglip"):
        config = getattr(transformers, f"{kind}Config")(text_config=text, vision_config=SMALL)
        whole = getattr(transformers, f"{kind}Model")(config).eval()
        whole.save_pretrained(tmp_path / kind)
        model = vitlab.load(tmp_path / kind)
        with torch.inference_mode():
            want = whole.get_image_features(some_images())
            close(model(some_images()), getattr(want, "pooler_output", want))
    mae = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SMALL, **KEEP)).eval()
    mae.save_pretrained(tmp_path / "mae")
    model = vitlab.load(tmp_path / "mae")
    with torch.inference_mode():
        want = mae.vit(some_images(), noise=torch.arange(16.0).expand(3, -1))
        close(model.encode(some_images()), want.last_hidden_state)
    beit = transformers.BeitForMaskedImageModeling(
        transformers.BeitConfig(**SMALL, **SHARED)
    ).eval()
    beit.save_pretrained(tmp_path / "beit")
    assert vitlab.load(tmp_path / "beit").config.classes == 0


def test_preprocessing_and_labels_travel(tmp_path: Path) -> None:
    other = another("DINOv2, classes", id2label={0: "ant", 1: "bee", 2: "cat", 3: "dog", 4: "eel"})
    other.save_pretrained(tmp_path)
    told = {
        "do_center_crop": True, "crop_size": {"height": 24, "width": 24}, "do_normalize": True,
        "size": {"shortest_edge": 32}, "resample": 2, "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.3, 0.2, 0.1],
    }  # fmt: skip
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    config = vitlab.load(tmp_path).config
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), (0.3, 0.2, 0.1))
    assert (config.crop, config.fit, config.interpolation) == (0.75, "crop", "bilinear")
    assert config.labels == ("ant", "bee", "cat", "dog", "eel")


EPS_CASES = [
    "ViT",
    "DeiT",
    "BEiT",
    "MAE",
    "DINOv2",
    "DINOv2, registers",
    "DINOv3",
    "CLIP",
    "SigLIP",
]


@pytest.mark.parametrize("case", EPS_CASES)
def test_an_epsilon_left_out_is_the_familys(case: str, tmp_path: Path) -> None:
    """Released config.json files leave out what equals the default."""
    other = another(case)
    other.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    del content["layer_norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    default = type(other.config)().layer_norm_eps
    assert vitlab.load(tmp_path).config.norm_eps == default


def test_shards(tmp_path: Path) -> None:
    other = another("ViT, classes")
    other.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    with torch.inference_mode():
        close(vitlab.load(tmp_path)(some_images()), other(some_images()).logits)


def test_what_is_not_reached_says_so(tmp_path: Path) -> None:
    transformers = peers.transformers()
    swin = transformers.SwinModel(
        transformers.SwinConfig(image_size=32, embed_dim=8, depths=[1], num_heads=[2])
    )
    swin.save_pretrained(tmp_path / "swin")
    with pytest.raises(
        ValueError,
        match=r"unsupported model_type swin of transformers \(stages of windows\): docs/weights",
    ):
        vitlab.load(tmp_path / "swin")
    other = another("ViT, classes", hidden_act="relu")
    other.save_pretrained(tmp_path / "relu")
    with pytest.raises(ValueError, match="unsupported hidden_act='relu': gelu, "):
        vitlab.load(tmp_path / "relu")
