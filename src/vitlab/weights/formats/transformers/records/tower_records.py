"""The image towers of transformers' models of images and texts: CLIP, SigLIP and their kin.

Source: the modeling files of transformers 5.23.
"""

from dataclasses import replace

from vitlab.images import INCEPTION, OPENAI
from vitlab.weights.formats.transformers.config_json import (
    read_aimv2,
    read_clip,
    read_mean,
    read_siglip,
    write_clip,
)
from vitlab.weights.formats.transformers.family import prepared, read_only
from vitlab.weights.formats.transformers.records.vit_records import VIT

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
    spellings={  # of AltCLIP, and of OWL-ViT
        r"^encoder\.layer\.": "encoder.layers.",
        r"^pre_layernorm\.": "pre_layrnorm.",
    },
    reads=read_clip,
    writes=write_clip,
    processor="CLIP",
    prepared=prepared(OPENAI, "bicubic", 1.0, "crop"),
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
    prepared=prepared(INCEPTION, "bicubic", 1.0, "squash"),
)
NAFLEX = read_only(
    SIGLIP,
    "siglip2_vision_model",
    "Siglip2VisionModel",
    dense_patch=True,
    resampling="bilinear-antialiased",
    processor="Siglip2",
    prepared=prepared(INCEPTION, "bilinear", 1.0, "native"),
)
OF_CLIP = tuple(
    read_only(
        CLIP, f"{name}_vision_model", f"{kind}VisionModel", f"{kind}VisionModelWithProjection"
    )
    for name, kind in (
        ("metaclip_2", "MetaClip2"),
        ("chinese_clip", "ChineseCLIP"),
        ("altclip", "AltCLIP"),
        ("clipseg", "CLIPSeg"),
        ("git", "Git"),
        ("owlv2", "Owlv2"),
        ("owlvit", "OwlViT"),
    )
)
IDEFICS = tuple(
    read_only(
        SIGLIP,
        f"{name}_vision",
        f"{kind}VisionTransformer",
        reads=read_mean,
        resampling="nearest",
    )
    for name, kind in (("idefics2", "Idefics2"), ("idefics3", "Idefics3"), ("smolvlm", "SmolVLM"))
)
AIMV2 = read_only(
    SIGLIP,
    "aimv2_vision_model",
    "Aimv2VisionModel",
    patch="embeddings.patch_embed",
    stem_norm="embeddings.rms_norm",
    norms=("rms_norm1", "rms_norm2"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    project="attention.out_proj",
    mlp=(),
    gated=("ffn.gate_proj", "ffn.up_proj", "ffn.down_proj"),
    norm="rms_norm",
    reads=read_aimv2,
    processor="CLIP",
    prepared=prepared(OPENAI, "bicubic", 1.0, "crop"),
)
AIMV2_OWN = replace(  # of its authors' own code (apple/ml-aim), which the Hub's files follow
    AIMV2,
    patch="preprocessor.patchifier.proj",
    stem_norm="preprocessor.patchifier.norm",
    positions="preprocessor.pos_embed",
    flat=False,
    block="trunk.blocks.{0}.",
    norms=("norm_1", "norm_2"),
    qkv=("attn.qkv",),
    project="attn.proj",
    gated=("mlp.fc1", "mlp.fc3", "mlp.fc2"),
    norm="trunk.post_trunk_norm",
)
