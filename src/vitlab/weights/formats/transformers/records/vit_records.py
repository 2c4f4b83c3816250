"""The plain Vision Transformers of transformers: ViT, MSN, MAE, I-JEPA, DeiT, BEiT, data2vec.

Source: the modeling files of transformers 5.23, and the released files, whose names are theirs on
the Hub.
"""

from dataclasses import replace

from vitlab.images import IMAGENET, INCEPTION
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.transformers.config_json import (
    read_beit,
    read_deit,
    read_intern,
    read_mean,
    read_pooler,
    read_vitpose,
    write_beit,
    write_pooler,
)
from vitlab.weights.formats.transformers.family import Family, prepared, read_only

# How transformers 5 names the parts of a block in memory; files keep the older names as a rule.
ATTENTION = {
    r"attention\.q_proj": "attention.attention.query",
    r"attention\.k_proj": "attention.attention.key",
    r"attention\.v_proj": "attention.attention.value",
    r"attention\.o_proj": "attention.output.dense",
}
NEWER = {
    r"^layers\.": "encoder.layer.",
    **ATTENTION,
    r"mlp\.fc1": "intermediate.dense",
    r"mlp\.fc2": "output.dense",
}
TABLE = "relative_position_bias.relative_position_bias_table"


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
    spellings=NEWER,
    reads=read_pooler,
    writes=write_pooler,
    prepared=prepared(INCEPTION, "bilinear", 1.0, "squash"),
)
MSN = replace(  # a ViT without a pooler
    VIT,
    model_type="vit_msn",
    classes=("ViTMSNModel", "ViTMSNForImageClassification"),
    fits=lambda config: _plain(config, "token") and not config.pre_logits,
    reads=lambda stated: {},
    prepared=prepared(IMAGENET, "bicubic", 1.0, "squash"),
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
    processor="DeiT",
    prepared=prepared(IMAGENET, "bicubic", 224 / 256, "squash"),
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
        rf"^(encoder\.layer\.\d+)\.{TABLE}": rf"\1.attention.attention.{TABLE}",
        r"^shared_position_bias": "encoder.relative_position_bias",
    },
    scale="layer_scale_init_value",
    reads=read_beit,
    writes=write_beit,
    processor="Beit",
    prepared=prepared(INCEPTION, "bicubic", 224 / 256, "crop"),
)
IJEPA = replace(
    VIT,
    model_type="ijepa",
    classes=("IJepaModel", "IJepaForImageClassification"),
    fits=lambda config: _plain(config, "mean") and not config.has_token,
    prefix="ijepa.",
    reads=read_mean,
    prepared=prepared(IMAGENET, "bilinear", 1.0, "squash"),
)
MAE = read_only(
    VIT,
    "vit_mae",
    "ViTMAEModel",
    classified=False,
    reads=lambda stated: {},
    prepared=prepared(IMAGENET, "bicubic", 1.0, "squash"),
)
DATA2VEC = read_only(
    BEIT,
    "data2vec-vision",
    "Data2VecVisionModel",
    "Data2VecVisionForImageClassification",
    prefix="data2vec_vision.",
)
INTERN = read_only(
    VIT,
    "internvl_vision",
    "InternVLVisionModel",
    classified=False,
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    project="attention.projection_layer",
    mlp=("mlp.fc1", "mlp.fc2"),
    scales=("lambda_1", "lambda_2"),
    scale="layer_scale_init_value",
    spellings={},
    reads=read_intern,
    prepared=prepared(IMAGENET, "bicubic", 1.0, "squash"),
)
INTERN_OWN = replace(  # of its authors' own code (OpenGVLab/InternVL)
    INTERN,
    model_type="intern_vit_6b",
    patch="embeddings.patch_embedding",
    token="embeddings.class_embedding",
    positions="embeddings.position_embedding",
    block="encoder.layers.{0}.",
    norms=("norm1", "norm2"),
    qkv=("attn.qkv",),
    project="attn.proj",
    scales=("ls1", "ls2"),
    scale="",
)
VITPOSE = read_only(
    VIT,
    "vitpose_backbone",
    "VitPoseBackbone",
    classified=False,
    prefix="",
    added_row=True,
    reads=read_vitpose,
    prepared=prepared(IMAGENET, "bilinear", 1.0, "squash"),
)
