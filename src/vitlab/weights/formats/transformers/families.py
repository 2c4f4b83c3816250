"""The families of transformers, each with its names and its config.json, read and written.

Source: the modeling files of vit, deit, beit, dinov2, dinov2_with_registers, dinov3_vit, vit_mae,
clip and siglip in transformers, and the released files, whose names are theirs on the Hub.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.vit_names import Names
from vitlab.weights.source import Shape

Content = dict[str, Any]  # of config.json
Shapes = dict[str, Shape]  # by names without the backbone's prefix; `/name` is outside of it
ACTS = {
    "gelu": "exact", "gelu_python": "exact", "gelu_new": "tanh", "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh", "quick_gelu": "quick",
}  # fmt: skip
WRITTEN_ACTS = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
# Keys of config.json and fields of ours with the same meaning, and their defaults.
KEYS: dict[str, tuple[str, Any]] = {
    "hidden_size": ("width", 768),
    "num_hidden_layers": ("depth", 12),
    "num_attention_heads": ("heads", 12),
    "intermediate_size": ("mlp", 3072),
    "image_size": ("image_size", 224),
    "patch_size": ("patch", 16),
    "num_channels": ("channels", 3),
}


@dataclass(frozen=True, kw_only=True)
class Family(Names):
    """One model_type: its names, and its config.json.

    Attributes:
        classes: names of its classes, the most specific last; the first has no classifier
        fits: it has a model of this configuration, if no family before it has
        prefix: of the backbone, in classes with a classifier
        gate: the key that says that MLPs are gated
        scale: the key of LayerScale's initial value
        keys: as KEYS, of this family alone
        eps, act: layer_norm_eps and hidden_act if config.json does not say
        reads: further fields, by config.json and shapes
        writes: further keys of config.json
        prepared: default preprocessing
    """

    classes: tuple[str, ...]
    fits: Callable[[ViTConfig], bool] = lambda config: False
    prefix: str = ""
    gate: str = ""
    scale: str = ""
    keys: dict[str, tuple[str, Any]] = field(default_factory=dict)
    eps: float = 1e-12
    act: str = "gelu"
    reads: Callable[[Content, Shapes], dict[str, Any]] = lambda content, shapes: {}
    writes: Callable[[ViTConfig], Content] = lambda config: {}
    prepared: dict[str, Any]


def _prepared(normal: dict[str, Any], interpolation: str, crop: float, fit: str) -> dict[str, Any]:
    return {**normal, "interpolation": interpolation, "crop": crop, "fit": fit}


def _read_pooler(content: Content, shapes: Shapes) -> dict[str, Any]:
    """The tanh layer, which only models without a classifier use."""
    if "pooler.dense.bias" not in shapes or "/classifier.bias" in shapes:
        return {}
    if content.get("pooler_act", "tanh") != "tanh":
        raise WeightsError(f"unsupported pooler_act={content['pooler_act']!r}: only tanh is")
    return {"pre_logits": shapes["pooler.dense.bias"][0]}


def _write_pooler(config: ViTConfig) -> Content:
    if not config.pre_logits:
        return {}
    return {"pooler_output_size": config.pre_logits, "pooler_act": "tanh"}


def _read_deit(content: Content, shapes: Shapes) -> dict[str, Any]:
    if "/distillation_classifier.bias" not in shapes:
        return {"registers": 1, **_read_pooler(content, shapes)}
    classes = shapes["/distillation_classifier.bias"][0]
    return {"registers": 1, "classes": classes, "pool": "prefix", "class_token": True}


def _read_beit(content: Content, shapes: Shapes) -> dict[str, Any]:
    shared = "encoder.relative_position_bias.relative_position_bias_table" in shapes
    biases = shared or content.get("use_relative_position_bias")
    absolute = "embeddings.position_embeddings" in shapes
    if biases and absolute:
        raise WeightsError("unsupported: BEiT with both absolute and relative positions")
    fields: dict[str, Any] = _read_pooler(content, shapes) | {
        "positions": "bias" if biases else "1d" if absolute else "none",
        "positions_at": "shared" if shared else "stem",
    }
    if "pooler.layernorm.weight" in shapes:
        fields |= {"pool": "mean", "class_token": True, "norm_at": "pooled"}
    return fields


def _write_beit(config: ViTConfig) -> Content:
    shared = config.positions_at == "shared"
    return {
        "use_relative_position_bias": not shared,
        "use_shared_relative_position_bias": shared,
        "use_mean_pooling": config.norm_at == "pooled",
    }


def _read_dinov2(content: Content, shapes: Shapes) -> dict[str, Any]:
    return {"pool": "both"} if "/classifier.bias" in shapes else {}


def _write_dinov2(config: ViTConfig) -> Content:
    gated = config.ffn == "swiglu"
    if gated and config.mlp != (config.width * 4 * 2 // 3 + 7) // 8 * 8:
        raise WeightsError(f"transformers' DINOv2 has no gated MLP with mlp={config.mlp}")
    if not gated and config.mlp % config.width:
        raise WeightsError("transformers' DINOv2 needs an mlp that is a multiple of the width")
    ratio = 4 if gated else config.mlp // config.width
    return {"mlp_ratio": ratio, "num_register_tokens": config.registers}


def _read_dinov3(content: Content, shapes: Shapes) -> dict[str, Any]:
    rope = content.get("rope_parameters") or {}
    return {
        "positions": "rope",
        "rope_base": rope.get("rope_theta") or content.get("rope_theta", 100.0),
        "bias": "layer.0.attention.o_proj.bias" in shapes,
    }


def _write_dinov3(config: ViTConfig) -> Content:
    return {
        "rope_theta": config.rope_base,
        **{f"{part}_bias": config.qkv_bias for part in ("query", "value")},
        **{f"{part}_bias": config.bias for part in ("proj", "mlp")},
        "key_bias": False,
    }


def _read_clip(content: Content, shapes: Shapes) -> dict[str, Any]:
    classes = shapes.get("/visual_projection.weight", (0,))[0]
    return {"classes": classes, "pre_norm": True, "stem_bias": False}


def _write_clip(config: ViTConfig) -> Content:
    return {"projection_dim": config.classes or config.width}


def _read_siglip(content: Content, shapes: Shapes) -> dict[str, Any]:
    return {"pool": "attention" if "head.probe" in shapes else "mean"}


VIT = Family(
    classes=("ViTModel", "ViTForImageClassification"),
    fits=lambda config: (
        config.pool == "token" and config.norm_at == "tokens" and not config.registers
    ),
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
    reads=_read_pooler,
    writes=_write_pooler,
    prepared=_prepared(INCEPTION, "bilinear", 1.0, "squash"),
)
DINOV2 = replace(
    VIT,
    classes=("Dinov2Model", "Dinov2ForImageClassification"),
    fits=lambda config: (
        config.layer_scale > 0 and config.norm_at == "tokens" and not config.registers
    ),
    prefix="dinov2.",
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    gate="use_swiglu_ffn",
    gated=("mlp.weights_in", "mlp.weights_out"),
    scale="layerscale_value",
    eps=1e-6,
    reads=_read_dinov2,
    writes=_write_dinov2,
    prepared=_prepared(IMAGENET, "bicubic", 224 / 256, "crop"),
)
CLIP = replace(
    VIT,
    classes=("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    fits=lambda config: config.pre_norm,
    prefix="vision_model.",
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
    eps=1e-5,
    act="quick_gelu",
    reads=_read_clip,
    writes=_write_clip,
    prepared=_prepared(OPENAI, "bicubic", 1.0, "crop"),
)
# By model_type. The first that fits a configuration writes it.
FAMILIES: dict[str, Family] = {
    "beit": replace(
        VIT,
        classes=("BeitModel", "BeitForImageClassification"),
        fits=lambda config: config.positions == "bias",
        prefix="beit.",
        scales=("lambda_1", "lambda_2"),
        biases=("attention.attention.query.bias", "attention.attention.value.bias"),
        norm="pooler.layernorm",
        bias_table="attention.attention.relative_position_bias.relative_position_bias_table",
        shared_table="encoder.relative_position_bias.relative_position_bias_table",
        scale="layer_scale_init_value",
        reads=_read_beit,
        writes=_write_beit,
        prepared=_prepared(INCEPTION, "bicubic", 224 / 256, "crop"),
    ),
    "dinov3_vit": replace(
        DINOV2,
        classes=("DINOv3ViTModel",),
        fits=lambda config: config.positions == "rope",
        prefix="",
        block="layer.{0}.",
        patch="embeddings.patch_embeddings",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        project="attention.o_proj",
        mlp=("mlp.up_proj", "mlp.down_proj"),
        biases=("attention.q_proj.bias", "attention.v_proj.bias"),
        norm="norm",
        gate="use_gated_mlp",
        gated=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        keys={"num_register_tokens": ("registers", 0)},
        eps=1e-5,
        reads=_read_dinov3,
        writes=_write_dinov3,
        prepared=_prepared(IMAGENET, "bilinear", 1.0, "squash"),
    ),
    "clip_vision_model": CLIP,
    "siglip_vision_model": replace(
        CLIP,
        classes=("SiglipVisionModel",),
        fits=lambda config: config.pool == "attention",
        prefix="",
        eps=1e-6,
        reads=_read_siglip,
        writes=lambda config: {},
        prepared=_prepared(INCEPTION, "bicubic", 1.0, "squash"),
    ),
    "deit": replace(
        VIT,
        classes=(
            "DeiTModel",
            "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher",
        ),
        fits=lambda config: config.pool == "prefix",
        prefix="deit.",
        registers="embeddings.distillation_token",
        register_rows=True,
        reads=_read_deit,
        writes=lambda config: {},
        prepared=_prepared(IMAGENET, "bicubic", 224 / 256, "crop"),
    ),
    "dinov2": DINOV2,
    "dinov2_with_registers": replace(
        DINOV2,
        classes=("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
        fits=lambda config: config.layer_scale > 0 and config.norm_at == "tokens",
        prefix="dinov2_with_registers.",
        keys={"num_register_tokens": ("registers", 4)},
    ),
    "vit": VIT,
    "vit_mae": replace(
        VIT,
        classes=("ViTMAEModel",),
        fits=lambda config: False,
        prepared=_prepared(IMAGENET, "bicubic", 1.0, "squash"),
    ),
}


def read_fields(model_type: str, content: Content, shapes: Shapes) -> dict[str, Any]:
    """Return the configuration that config.json and the shapes of the tensors describe.

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    family = FAMILIES[model_type]
    block, gated = family.block.format(0), bool(family.gate and content.get(family.gate))
    fields = {
        own: content.get(key, default) for key, (own, default) in (KEYS | family.keys).items()
    }
    if isinstance(fields["image_size"], list):
        fields["image_size"] = tuple(fields["image_size"])
    last = (family.gated if gated else family.mlp)[-1]
    if contract := shapes.get(f"{block}{last}.weight"):
        fields["mlp"] = contract[-1]
    scaled = family.scales[0] and block + family.scales[0] in shapes
    fields |= {
        "norm_eps": content.get("layer_norm_eps", family.eps),
        "ffn": "swiglu" if gated else "mlp",
        "qkv_bias": f"{block}{family.qkv[0]}.bias" in shapes,
        "layer_scale": 1.0 if scaled else 0,
        "resampling": "bicubic",
        "classes": shapes.get("/classifier.bias", (0,))[0],
        "pool": "token",
    }
    return fields | _read_act(model_type, content, gated) | family.reads(content, shapes)


def _read_act(model_type: str, content: Content, gated: bool) -> dict[str, Any]:
    act = content.get("hidden_act", FAMILIES[model_type].act)
    if model_type == "dinov3_vit" and gated:
        if act != "silu":
            raise WeightsError(f"unsupported hidden_act={act!r} of DINOv3's gated MLP: silu is")
        return {}
    if act not in ACTS:
        raise WeightsError(f"unsupported hidden_act={act!r}: {', '.join(ACTS)} are")
    return {"gelu": ACTS[act]}


def write_content(model_type: str, config: ViTConfig) -> Content:
    """Return the config.json of a model.

    Raises:
        WeightsError: the family cannot represent the model.
    """
    family = FAMILIES[model_type]
    position = 2 if config.pool == "prefix" else int(config.classes > 0)
    if position >= len(family.classes):
        raise WeightsError(f"transformers' {model_type} has no classifier: save with classes=0")
    content: Content = {"architectures": [family.classes[position]], "model_type": model_type}
    content |= {key: getattr(config, own) for key, (own, _) in (KEYS | family.keys).items()}
    content |= {
        "hidden_act": WRITTEN_ACTS[config.gelu],
        "layer_norm_eps": config.norm_eps,
        "image_size": list(config.size) if config.size[0] != config.size[1] else config.size[0],
        "qkv_bias": config.qkv_bias,
    }
    if family.gate:
        content[family.gate] = config.ffn == "swiglu"
    if model_type == "dinov3_vit" and config.ffn == "swiglu":
        content["hidden_act"] = "silu"
    if family.scale:
        content[family.scale] = config.layer_scale
    return content | family.writes(config)
