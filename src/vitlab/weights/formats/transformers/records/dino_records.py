"""The families of DINO in transformers: DINOv2, with registers, DINOv3, and TIPS v2.

Source: the modeling files of transformers 5.23.
"""

from dataclasses import replace

from vitlab.images import IMAGENET
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.transformers.config_json import (
    read_dinov2,
    read_dinov3,
    write_dinov2,
    write_dinov3,
)
from vitlab.weights.formats.transformers.family import prepared, read_only
from vitlab.weights.formats.transformers.records.vit_records import ATTENTION, VIT

UNCHANGED = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def _pooled(config: ViTConfig) -> bool:
    """Whether class token and mean of the patches, beside each other, have what a head reads."""
    pools = ("token", "mean", "both") if config.classes else ("token",)
    own = config.has_token, config.norm_at, config.pre_logits
    return config.pool in pools and own == (True, "tokens", 0)


DINOV2 = replace(
    VIT,
    model_type="dinov2",
    classes=("Dinov2Model", "Dinov2ForImageClassification"),
    fits=lambda config: not config.registers and _pooled(config),
    prefix="dinov2.",
    any_size=True,
    square=True,
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    gate="use_swiglu_ffn",
    gated=("mlp.weights_in", "mlp.weights_out"),
    spellings=ATTENTION,
    scale="layerscale_value",
    reads=read_dinov2,
    writes=write_dinov2,
    processor="Bit",
    prepared=prepared(IMAGENET, "bicubic", 224 / 256, "crop"),
)
REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    classes=("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
    fits=_pooled,
    prefix="dinov2_with_registers.",
    resampling="antialiased",
)
DINOV3 = replace(
    DINOV2,
    model_type="dinov3_vit",
    classes=("DINOv3ViTModel",),
    classified=False,
    fits=lambda config: config.positions == "rope",
    prefix="",
    square=False,
    block="layer.{0}.",
    patch="embeddings.patch_embeddings",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    project="attention.o_proj",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    norm="norm",
    gate="use_gated_mlp",
    gated=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    spellings={r"^model\.layer\.": "layer."},
    key_bias="key_bias",
    reads=read_dinov3,
    writes=write_dinov3,
    processor="DINOv3ViT",
    prepared=prepared(IMAGENET, "bilinear", 1.0, "squash"),
)
TIPS = read_only(
    REGISTERS,
    "tipsv2_vision_model",
    "Tipsv2VisionModel",
    classified=False,
    patch="patch_embed.proj",
    token="cls_token",
    registers="register_tokens",
    positions="pos_embed",
    block="blocks.{0}.",
    qkv=("attn.qkv",),
    project="attn.proj",
    mlp=("mlp.c_fc", "mlp.c_proj"),
    scales=("ls1.gamma", "ls2.gamma"),
    gated=("mlp.w12", "mlp.w3"),
    norm="norm",
    resampling="bilinear-antialiased",
    processor="Tipsv2",
    prepared=prepared(UNCHANGED, "bilinear", 1.0, "squash"),
)
