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
# class of model, choices, and the output that ours gives
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "ViT": ("ViTModel", {}, "pooler_output"),
    "ViT, classes": ("ViTForImageClassification", {"num_labels": 5}, "logits"),
    "ViT, tanh, no biases": (
        "ViTForImageClassification", {"hidden_act": "gelu_new", "qkv_bias": False}, "logits",
    ),
    "DeiT": ("DeiTModel", {}, "pooler_output"),
    "DeiT, classes": ("DeiTForImageClassification", {"num_labels": 5}, "logits"),
    "DeiT, teacher": ("DeiTForImageClassificationWithTeacher", {"num_labels": 5}, "logits"),
    "BEiT": ("BeitModel", BIASED, "pooler_output"),
    "BEiT, shared": ("BeitModel", SHARED, "pooler_output"),
    "BEiT, classes": ("BeitForImageClassification", BIASED, "logits"),
    "BEiT, absolute": (
        "BeitForImageClassification", {"use_absolute_position_embeddings": True}, "logits",
    ),
    "BEiT, no scale": ("BeitModel", {**BIASED, "layer_scale_init_value": 0.0}, "pooler_output"),
    "DINOv2": ("Dinov2Model", {}, "pooler_output"),
    "DINOv2, classes": ("Dinov2ForImageClassification", {"num_labels": 5}, "logits"),
    "DINOv2, SwiGLU": ("Dinov2Model", {"use_swiglu_ffn": True}, "pooler_output"),
    "DINOv2, registers": ("Dinov2WithRegistersModel", {"num_register_tokens": 3}, "pooler_output"),
    "DINOv2, registers, classes": ("Dinov2WithRegistersForImageClassification", {}, "logits"),
    "DINOv3": ("DINOv3ViTModel", {"num_register_tokens": 4}, "pooler_output"),
    "DINOv3, gated": (
        "DINOv3ViTModel", {"use_gated_mlp": True, "hidden_act": "silu", "num_register_tokens": 4},
        "pooler_output",
    ),
    "MAE": ("ViTMAEModel", KEEP, "last_hidden_state"),
    "CLIP": ("CLIPVisionModel", {}, "pooler_output"),
    "CLIP, projection": ("CLIPVisionModelWithProjection", {"projection_dim": 6}, "image_embeds"),
    "SigLIP": ("SiglipVisionModel", {}, "pooler_output"),
}  # fmt: skip


def another(case: str, **choices: Any) -> nn.Module:
    """A model of transformers' with every tensor random."""
    transformers = peers.transformers()
    name, own, _ = CASES[case]
    kind = getattr(transformers, name)
    config = kind.config_class(**SMALL | own | choices)
    config._attn_implementation = "eager"
    model = kind(config).eval()
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
    other, output, images = another(case), CASES[case][2], some_images()
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
        close(model(images), getattr(other(images, **choices), CASES[case][2]))


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


def test_shards(tmp_path: Path) -> None:
    other = another("ViT, classes")
    other.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    with torch.inference_mode():
        close(vitlab.load(tmp_path)(some_images()), other(some_images()).logits)
