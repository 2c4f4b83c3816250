"""The families of transformers, one record each.

Source: the modeling files of transformers 5.23, and the released files, whose names are theirs on
the Hub. Families with the same names and arithmetic are made from one another.
"""

from dataclasses import replace
from typing import Any

from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.transformers.family import Family
from vitlab.weights.formats.transformers.family_reading import (
    read_beit,
    read_clip,
    read_deit,
    read_dinov2,
    read_dinov3,
    read_mean,
    read_pooler,
    read_siglip,
    read_siglip2,
)
from vitlab.weights.formats.transformers.family_writing import (
    write_beit,
    write_clip,
    write_dinov2,
    write_dinov3,
    write_pooler,
)

UNCHANGED = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
# How transformers 5 names the parts of a block in memory; files keep the older names as a rule.
NEWER = {
    r"^layers\.": "encoder.layer.",
    r"attention\.q_proj": "attention.attention.query",
    r"attention\.k_proj": "attention.attention.key",
    r"attention\.v_proj": "attention.attention.value",
    r"attention\.o_proj": "attention.output.dense",
}
NEWER_MLP = {r"mlp\.fc1": "intermediate.dense", r"mlp\.fc2": "output.dense"}
TABLE = "relative_position_bias.relative_position_bias_table"


def _prepared(normal: dict[str, Any], interpolation: str, crop: float, fit: str) -> dict[str, Any]:
    return {**normal, "interpolation": interpolation, "crop": crop, "fit": fit}


def _plain(config: ViTConfig, pool: str) -> bool:
    """Whether a model is an unchanged ViT but for its pool."""
    own = (config.pool, config.norm_at, config.registers, config.layer_scale)
    return own == (pool, "tokens", 0, 0)


VIT = Family(
    model_type="vit",
    classes=("ViTModel", "ViTForImageClassification"),
    fits=lambda config: _plain(config, "token") and (config.classes > 0) != (config.pre_logits > 0),
    prefix="vit.",
    patch="embeddings.patch_embeddings.projection",
    token="embeddings.cls_token",
    registers="embeddings.register_tokens",
    positions="embeddings.position_embeddings",
    block="encoder.layer.{0}.",
    norms=("layernorm_before", "layernorm_after"),
    qkv=(
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ),
    project="attention.output.dense",
    mlp=("intermediate.dense", "output.dense"),
    norm="layernorm",
    spellings=NEWER | NEWER_MLP,
    reads=read_pooler,
    writes=write_pooler,
    prepared=_prepared(INCEPTION, "bilinear", 1.0, "squash"),
)
MSN = replace(  # a ViT without a pooler
    VIT,
    model_type="vit_msn",
    classes=("ViTMSNModel", "ViTMSNForImageClassification"),
    fits=lambda config: _plain(config, "token") and not config.pre_logits,
    reads=lambda stated: {},
    writes=lambda config: {},
    prepared=_prepared(IMAGENET, "bicubic", 1.0, "squash"),
)
DEIT = replace(
    VIT,
    model_type="deit",
    classes=(
        "DeiTModel",
        "DeiTForImageClassification",
        "DeiTForImageClassificationWithTeacher",
    ),
    fits=lambda config: config.pool == "prefix",
    prefix="deit.",
    registers="embeddings.distillation_token",
    register_rows=True,
    reads=read_deit,
    writes=lambda config: {},
    processor="DeiT",
    prepared=_prepared(IMAGENET, "bicubic", 224 / 256, "squash"),
)
BEIT = replace(
    VIT,
    model_type="beit",
    classes=("BeitModel", "BeitForImageClassification"),
    fits=lambda config: config.positions in ("bias", "1d+bias"),
    prefix="beit.",
    square=True,
    scales=("lambda_1", "lambda_2"),
    biases=("attention.attention.query.bias", "attention.attention.value.bias"),
    norm="pooler.layernorm",
    bias_table=f"attention.attention.{TABLE}",
    shared_table=f"encoder.{TABLE}",
    spellings={
        **NEWER,
        **NEWER_MLP,
        rf"^(encoder\.layer\.\d+)\.{TABLE}": rf"\1.attention.attention.{TABLE}",
        r"^shared_position_bias": "encoder.relative_position_bias",
    },
    scale="layer_scale_init_value",
    reads=read_beit,
    writes=write_beit,
    processor="Beit",
    prepared=_prepared(INCEPTION, "bicubic", 224 / 256, "crop"),
)
DINOV2 = replace(
    VIT,
    model_type="dinov2",
    classes=("Dinov2Model", "Dinov2ForImageClassification"),
    fits=lambda config: (
        config.layer_scale > 0 and config.norm_at == "tokens" and not config.registers
    ),
    prefix="dinov2.",
    any_size=True,
    square=True,
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    gate="use_swiglu_ffn",
    gated=("mlp.weights_in", "mlp.weights_out"),
    spellings=NEWER,
    scale="layerscale_value",
    reads=read_dinov2,
    writes=write_dinov2,
    processor="Bit",
    prepared=_prepared(IMAGENET, "bicubic", 224 / 256, "crop"),
)
REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    classes=("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
    fits=lambda config: config.layer_scale > 0 and config.norm_at == "tokens",
    prefix="dinov2_with_registers.",
    resampling="antialiased",
)
DINOV3 = replace(
    DINOV2,
    model_type="dinov3_vit",
    classes=("DINOv3ViTModel",),
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
    prepared=_prepared(IMAGENET, "bilinear", 1.0, "squash"),
)
CLIP = replace(
    VIT,
    model_type="clip_vision_model",
    classes=("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    fits=lambda config: config.pre_norm,
    prefix="vision_model.",
    square=True,
    block="encoder.layers.{0}.",
    patch="embeddings.patch_embedding",
    token="embeddings.class_embedding",
    positions="embeddings.position_embedding.weight",
    flat=True,
    norms=("layer_norm1", "layer_norm2"),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    project="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    pre_norm="pre_layrnorm",  # their spelling
    norm="post_layernorm",
    spellings={r"^encoder\.layer\.": "encoder.layers."},  # of AltCLIP
    reads=read_clip,
    writes=write_clip,
    processor="CLIP",
    prepared=_prepared(OPENAI, "bicubic", 1.0, "crop"),
)
SIGLIP = replace(
    CLIP,
    model_type="siglip_vision_model",
    classes=("SiglipVisionModel",),
    fits=lambda config: config.pool == "attention",
    prefix="",
    reads=read_siglip,
    writes=lambda config: {},
    processor="Siglip",
    prepared=_prepared(INCEPTION, "bicubic", 1.0, "squash"),
)


def _read_only(family: Family, model_type: str, *classes: str, **changes: Any) -> Family:
    """Another name for the same arithmetic, which no model is written as."""
    return replace(
        family, model_type=model_type, classes=classes, fits=lambda config: False, **changes
    )


# The first that fits a configuration writes it.
_ALL = (
    BEIT,
    DINOV3,
    CLIP,
    SIGLIP,
    DEIT,
    DINOV2,
    REGISTERS,
    VIT,
    MSN,
    replace(
        VIT,
        model_type="ijepa",
        classes=("IJepaModel", "IJepaForImageClassification"),
        fits=lambda config: _plain(config, "mean") and not config.has_token,
        prefix="ijepa.",
        reads=read_mean,
        writes=lambda config: {},
        prepared=_prepared(IMAGENET, "bilinear", 1.0, "squash"),
    ),
    _read_only(
        VIT,
        "vit_mae",
        "ViTMAEModel",
        reads=lambda stated: {},
        prepared=_prepared(IMAGENET, "bicubic", 1.0, "squash"),
    ),
    _read_only(
        BEIT,
        "data2vec-vision",
        "Data2VecVisionModel",
        "Data2VecVisionForImageClassification",
        prefix="data2vec_vision.",
    ),
    _read_only(
        REGISTERS,
        "tipsv2_vision_model",
        "Tipsv2VisionModel",
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
        processor="Tipsv2",
        prepared=_prepared(UNCHANGED, "bilinear", 1.0, "squash"),
    ),
    _read_only(
        SIGLIP,
        "siglip2_vision_model",
        "Siglip2VisionModel",
        dense_patch=True,
        reads=read_siglip2,
        processor="Siglip2",
        prepared=_prepared(INCEPTION, "bilinear", 1.0, "squash"),
    ),
    _read_only(
        CLIP,
        "metaclip_2_vision_model",
        "MetaClip2VisionModel",
        "MetaClip2VisionModelWithProjection",
    ),
    _read_only(CLIP, "chinese_clip_vision_model", "ChineseCLIPVisionModel"),
    _read_only(CLIP, "altclip_vision_model", "AltCLIPVisionModel"),
    _read_only(CLIP, "clipseg_vision_model", "CLIPSegVisionModel"),
)
FAMILIES: dict[str, Family] = {family.model_type: family for family in _ALL}
