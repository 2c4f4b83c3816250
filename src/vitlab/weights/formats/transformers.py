"""Hugging Face transformers' folders: a file of tensors and the config.json that explains it.

Source: the modeling files of vit, deit, beit, dinov2, dinov2_with_registers, dinov3_vit, vit_mae,
clip and siglip in transformers, and the released files, whose names are theirs on the hub.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.entries import (
    Entry,
    computed,
    halves,
    layer,
    same,
    shaped,
    stacked,
    with_prefix_rows,
    without_key,
)
from vitlab.weights.formats.timm.facts import IMAGENET, INCEPTION, OPENAI
from vitlab.weights.reading import Hints, Reading
from vitlab.weights.source import Shape, Source

NAME = "transformers"


@dataclass(frozen=True)
class Words:
    """What a family calls the parts of a model, and how its images are prepared by default.

    Attributes:
        classes: names of its classes, most telling last; the first is without a classifier
        block: prefix of block {}
        patch, token, registers, positions: of the embedding
        norms, qkv, project, mlp, scales, norm: of the encoder
        prepared: normalization, interpolation, crop, fit
    """

    classes: tuple[str, ...]
    block: str = "encoder.layer.{}"
    patch: str = "embeddings.patch_embeddings.projection"
    token: str = "embeddings.cls_token"
    registers: str = "embeddings.register_tokens"
    positions: str = "embeddings.position_embeddings"
    norms: tuple[str, str] = ("layernorm_before", "layernorm_after")
    qkv: tuple[str, str, str] = (
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    )
    project: str = "attention.output.dense"
    mlp: tuple[str, str] = ("intermediate.dense", "output.dense")
    scales: tuple[str, str] = ("", "")
    norm: str = "layernorm"
    prepared: tuple[dict[str, Any], str, float, str] = (INCEPTION, "bilinear", 1.0, "squash")


VIT = Words(("ViTModel", "ViTForImageClassification"))
DINO2 = Words(
    ("Dinov2Model", "Dinov2ForImageClassification"),
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
    prepared=(IMAGENET, "bicubic", 224 / 256, "crop"),
)
CLIP = Words(
    ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    block="encoder.layers.{}",
    patch="embeddings.patch_embedding",
    token="embeddings.class_embedding",
    positions="embeddings.position_embedding.weight",
    norms=("layer_norm1", "layer_norm2"),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    project="self_attn.out_proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    norm="post_layernorm",
    prepared=(OPENAI, "bicubic", 1.0, "crop"),
)
FAMILIES: dict[str, Words] = {
    "vit": VIT,
    "deit": replace(
        VIT,
        classes=(
            "DeiTModel",
            "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher",
        ),
        registers="embeddings.distillation_token",
        prepared=(IMAGENET, "bicubic", 224 / 256, "crop"),
    ),
    "beit": replace(
        VIT,
        classes=("BeitModel", "BeitForImageClassification"),
        scales=("lambda_1", "lambda_2"),
        norm="pooler.layernorm",
        prepared=(INCEPTION, "bicubic", 224 / 256, "crop"),
    ),
    "vit_mae": replace(
        VIT, classes=("ViTMAEModel",), prepared=(IMAGENET, "bicubic", 1.0, "squash")
    ),
    "dinov2": DINO2,
    "dinov2_with_registers": replace(
        DINO2,
        classes=("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
    ),
    "dinov3_vit": replace(
        DINO2,
        classes=("DINOv3ViTModel",),
        block="layer.{}",
        patch="embeddings.patch_embeddings",
        qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        project="attention.o_proj",
        mlp=("mlp.up_proj", "mlp.down_proj"),
        norm="norm",
        prepared=(IMAGENET, "bilinear", 1.0, "squash"),
    ),
    "clip_vision_model": CLIP,
    "siglip_vision_model": replace(
        CLIP, classes=("SiglipVisionModel",), prepared=(INCEPTION, "bicubic", 1.0, "squash")
    ),
}
EPS = {  # where config.json does not say
    "dinov2": 1e-6, "dinov2_with_registers": 1e-6, "dinov3_vit": 1e-5,
    "clip_vision_model": 1e-5, "siglip_vision_model": 1e-6,
}  # fmt: skip
LEFT_OUT = {
    r".*(mask_token|position_ids|relative_position_index)|(.*\.)?rope_embeddings\..*": "not needed",
    r"decoder\..*|lm_head\..*": "for pre-training alone",
    r"text_model\..*|text_projection\..*|logit_(scale|bias)": "of the text model",
}
ACTS = {
    "gelu": "exact", "gelu_python": "exact", "gelu_new": "tanh", "gelu_fast": "tanh",
    "gelu_pytorch_tanh": "tanh", "quick_gelu": "quick",
}  # fmt: skip


def reading(source: Source, hints: Hints) -> Reading | None:
    """What such a folder says, or None for another format."""
    config, kind = source.config, source.config.get("model_type")
    if source.kind == "npz" or not isinstance(kind, str) or "architecture" in config:
        return None
    if isinstance(config.get("vision_config"), dict):  # CLIP and SigLIP with their text model
        inner = config["vision_config"]
        kind, config = inner.get("model_type", f"{kind}_vision_model"), {**inner}
    if kind not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise UserError(f"{source.path} is a {kind} of {NAME}; of these it can be one of {known}")
    words = FAMILIES[kind]
    prefix = _prefix(source, words)
    shapes = {n.removeprefix(prefix): s for n, s in source.shapes.items() if n.startswith(prefix)}
    heads = {n: s for n, s in source.shapes.items() if not n.startswith(prefix)} if prefix else {}
    shapes |= {f"/{name}": shape for name, shape in heads.items()}  # outside the backbone
    if not prefix:
        shapes |= {f"/{name}": shape for name, shape in source.shapes.items()}
    fields = _fields(kind, config, shapes) | _prepared(source, words) | _labels(source.config)
    vit = ViTConfig(**(fields | hints.choices))
    table = entries(vit, kind, shapes)
    stored = [e.renamed(lambda n: n[1:] if n.startswith("/") else prefix + n) for e in table]
    left_out = {f"{re.escape(prefix)}({p})": why for p, why in LEFT_OUT.items()} | LEFT_OUT
    if vit.classes and not vit.pre_logits:
        left_out[re.escape(prefix) + r"pooler\.dense\..*"] = "not seen by the classifier"
    return Reading(f"{NAME}, {kind}", vit, stored, left_out)


def _prefix(source: Source, words: Words) -> str:
    """What stands before the names of the backbone: nothing, `vit.`, `vision_model.`, …"""
    for name in sorted(source.shapes, key=len):
        if name.endswith(f"{words.patch}.weight"):
            return name.removesuffix(f"{words.patch}.weight")
    raise UserError(f"{source.path}: tensor {words.patch}.weight is missing ({NAME})")


def _fields(kind: str, config: dict[str, Any], shapes: dict[str, Shape]) -> dict[str, Any]:
    """The model that config.json describes; what the tensors say better comes from them."""
    words, width = FAMILIES[kind], config.get("hidden_size", 768)
    act = config.get("hidden_act", "quick_gelu" if words.norm == "post_layernorm" else "gelu")
    gated = config.get("use_swiglu_ffn") or config.get("use_gated_mlp")
    block = words.block.format(0)
    names = ("mlp.weights_out", "mlp.down_proj") if gated else (words.mlp[1],)
    wide = [shapes[n][-1] for n in (f"{block}.{name}.weight" for name in names) if n in shapes]
    size = config.get("image_size", 224)
    fields: dict[str, Any] = {
        "width": width,
        "depth": config.get("num_hidden_layers", 12),
        "heads": config.get("num_attention_heads", 12),
        "mlp": wide[0] if wide else config.get("intermediate_size", 3072),
        "patch": config.get("patch_size", 16),
        "image_size": tuple(size) if isinstance(size, list) else size,
        "channels": config.get("num_channels", 3),
        "norm_eps": config.get("layer_norm_eps", EPS.get(kind, 1e-12)),
        "ffn": "swiglu" if gated else "mlp",
        "qkv_bias": f"{block}.{words.qkv[0]}.bias" in shapes,
        "layer_scale": 1.0 if words.scales[0] and f"{block}.{words.scales[0]}" in shapes else 0,
        "resampling": "bicubic",
    }
    if not gated or kind != "dinov3_vit":  # a gated MLP of DINOv3 is of SiLU whatever it says
        if act not in ACTS:
            raise UserError(f"hidden_act={act!r} is not among {', '.join(ACTS)}")
        fields["gelu"] = ACTS[act]
    if kind == "dinov3_vit":
        if gated and act != "silu":
            raise UserError(f"a gated MLP of DINOv3 with hidden_act={act!r}, not silu")
        rope = config.get("rope_parameters") or {}
        base = rope.get("rope_theta") or config.get("rope_theta", 100.0)
        fields |= {
            "positions": "rope",
            "rope_base": base,
            "bias": f"{block}.{words.project}.bias" in shapes,
        }
    fields["registers"] = 1 if kind == "deit" else 0
    if kind in ("dinov2_with_registers", "dinov3_vit"):
        fields["registers"] = config.get("num_register_tokens", 4 if "with" in kind else 0)
    return fields | _pool(kind, config, shapes)


def _pool(kind: str, config: dict[str, Any], shapes: dict[str, Shape]) -> dict[str, Any]:
    """What the classifier sees, and how many classes it has."""
    classes = shapes.get("/classifier.bias", (0,))[0]
    fields: dict[str, Any] = {"classes": classes, "pool": "token"}
    if "pooler.dense.bias" in shapes and not classes:
        if config.get("pooler_act", "tanh") != "tanh":
            raise UserError(f"pooler_act={config['pooler_act']!r} is not tanh")
        fields["pre_logits"] = shapes["pooler.dense.bias"][0]
    match kind:
        case "deit" if "/distillation_classifier.bias" in shapes:
            classes = shapes["/distillation_classifier.bias"][0]
            return {"classes": classes, "pool": "prefix", "class_token": True}
        case "beit":
            shared = "encoder.relative_position_bias.relative_position_bias_table" in shapes
            biases = shared or config.get("use_relative_position_bias")
            absolute = "embeddings.position_embeddings" in shapes
            if biases and absolute:
                raise UserError("BEiT with positions of both kinds is beyond this model")
            fields["positions"] = "bias" if biases else "1d" if absolute else "none"
            fields["positions_at"] = "shared" if shared else "stem"
            if "pooler.layernorm.weight" in shapes:
                return fields | {"pool": "mean", "class_token": True, "norm_at": "pooled"}
        case "dinov2" | "dinov2_with_registers" if classes:
            return fields | {"pool": "both"}
        case "clip_vision_model":
            projection = shapes.get("/visual_projection.weight", (0,))
            fields |= {"classes": projection[0], "pre_norm": True, "stem_bias": False}
        case "siglip_vision_model":
            pooled = "head.probe" in shapes
            fields["pool"] = "attention" if pooled else "mean"
    return fields


def _prepared(source: Source, words: Words) -> dict[str, Any]:
    """How images are prepared: preprocessor_config.json, or the family's default."""
    normal, interpolation, crop, fit = words.prepared
    fields: dict[str, Any] = {**normal, "interpolation": interpolation, "crop": crop, "fit": fit}
    told = source.preprocessor
    for key, own in (("image_mean", "mean"), ("image_std", "std")):
        if isinstance(told.get(key), list) and told.get("do_normalize", True):
            fields[own] = tuple(told[key])
    if told.get("do_normalize") is False:
        fields |= {"mean": 0.0, "std": 1.0}
    resample = {2: "bilinear", 3: "bicubic"}.get(told.get("resample", 0))
    fields |= {"interpolation": resample} if resample else {}
    size, cropped = told.get("size"), told.get("crop_size")
    if isinstance(size, int):
        size = {"shortest_edge": size} if told.get("do_center_crop") else {"height": size}
    if isinstance(size, dict) and size:
        side = size.get("shortest_edge") or size.get("height")
        inner = cropped.get("height") if isinstance(cropped, dict) else cropped
        inner = inner if told.get("do_center_crop") and isinstance(inner, int) else side
        fields["fit"] = "crop" if "shortest_edge" in size else "squash"
        if isinstance(side, int) and isinstance(inner, int) and 0 < inner <= side:
            fields["crop"] = inner / side
    return fields


def _labels(config: dict[str, Any]) -> dict[str, Any]:
    """Names of the classes, unless they are only numbered."""
    told = config.get("id2label")
    if not isinstance(told, dict):
        return {}
    names = [told.get(str(number)) for number in range(len(told))]
    if not all(isinstance(name, str) for name in names):
        return {}
    if all(name == f"LABEL_{number}" for number, name in enumerate(names)):
        return {}
    return {"labels": tuple(str(name) for name in names)}


def entries(config: ModelConfig, kind: str, shapes: dict[str, Shape] | None = None) -> list[Entry]:
    """The table for a configuration as one of the families; `/name` is outside the backbone.

    Args:
        config: of the model
        kind: the family's model_type
        shapes: of a file, whose dialect is followed; None for what is written today

    Raises:
        ValueError: transformers has no place for such a model.
    """
    if not isinstance(config, ViTConfig) or config.branches > 1 or config.stem != "linear":
        raise UserError(f"{NAME} has no place for {config.name}")
    words = FAMILIES[kind]
    table = [*layer("stem.layers.0", words.patch, config.stem_bias)]
    table += _prefix_entries(config, kind, words)
    if config.pre_norm:
        table += layer("pre_norm", "pre_layrnorm")
    for number in range(config.depth):
        table += _block(config, kind, number, words)
    norm = "head.norm" if config.norm_at == "pooled" else "norm"
    outside = kind == "beit" and config.norm_at == "tokens"
    lone = outside and shapes is not None and "layernorm.weight" not in shapes
    table += layer(norm, ("/layernorm" if lone else "layernorm") if outside else words.norm)
    if config.pre_logits:
        table += layer("head.pre_logits", "pooler.dense")
    if config.pool == "attention":
        table += _siglip_head()
    return table + _head(config, kind)


def _head(config: ViTConfig, kind: str) -> list[Entry]:
    if not config.classes:
        return []
    if config.pool == "prefix":
        names = ("/cls_classifier", "/distillation_classifier")
        return [
            halves(f"head.classify.{part}", (f"{names[0]}.{part}", f"{names[1]}.{part}"))
            for part in ("weight", "bias")
        ]
    if kind == "clip_vision_model":
        zero = computed("head.classify.bias", lambda: torch.zeros(config.classes))
        return [same("head.classify.weight", "/visual_projection.weight"), zero]
    return layer("head.classify", "/classifier")


def _prefix_entries(config: ViTConfig, kind: str, words: Words) -> list[Entry]:
    """Class token, registers and positions."""
    table: list[Entry] = []
    width, clip = config.width, words.positions.endswith(".weight")
    if config.has_token:
        table.append(
            shaped("token", words.token, (1, 1, width), (width,))
            if clip
            else same("token", words.token)
        )
    if kind == "deit":
        both = (words.registers, words.positions)
        return [*table, with_prefix_rows(config.has_token, config.registers, both)]
    if config.registers:
        table.append(same("registers", words.registers))
    match config.positions, config.positions_at:
        case "1d", "stem" if clip:
            places = (config.placed, width)
            table.append(shaped("positions.0.table", words.positions, (1, *places), places))
        case "1d", "stem":
            table.append(same("positions.0.table", words.positions))
        case "bias", "shared":
            name = "encoder.relative_position_bias.relative_position_bias_table"
            table.append(same("positions.0.table", name))
        case "bias", "stem":
            inside = "attention.attention.relative_position_bias.relative_position_bias_table"
            for number in range(config.depth):
                name = f"{words.block.format(number)}.{inside}"
                table.append(same(f"positions.{number}.table", name))
        case (("none" | "rope"), _):
            pass
        case _:
            raise UserError(
                f"{NAME} has no place for positions={config.positions} as they are here"
            )
    return table


def _block(config: ViTConfig, kind: str, number: int, words: Words) -> list[Entry]:
    ours, theirs = f"blocks.{number}", words.block.format(number)
    parts = (f"{ours}.attention.0", f"{ours}.mlp.0")
    table: list[Entry] = []
    for part, norm, scale in zip(parts, words.norms, words.scales, strict=True):
        table += layer(f"{part}.norm", f"{theirs}.{norm}")
        if config.layer_scale:
            table.append(same(f"{part}.scale", f"{theirs}.{scale}"))
    q, k, v = (f"{theirs}.{name}" for name in words.qkv)
    body = f"{parts[0]}.body"
    table.append(stacked(f"{body}.qkv.weight", [f"{n}.weight" for n in (q, k, v)]))
    if config.qkv_bias and kind in ("beit", "dinov3_vit"):
        table.append(without_key(f"{body}.qkv.bias", f"{q}.bias", f"{v}.bias"))
    elif config.qkv_bias:
        table.append(stacked(f"{body}.qkv.bias", [f"{n}.bias" for n in (q, k, v)]))
    table += layer(f"{body}.project", f"{theirs}.{words.project}", config.bias)
    return table + _mlp(config, kind, f"{parts[1]}.body", theirs, words)


def _mlp(config: ViTConfig, kind: str, ours: str, theirs: str, words: Words) -> list[Entry]:
    expand, contract = (f"{theirs}.{name}" for name in words.mlp)
    if config.ffn == "swiglu" and kind == "dinov3_vit":
        gate = f"{theirs}.mlp.gate_proj"
        parts = ("weight", "bias") if config.bias else ("weight",)
        table = [stacked(f"{ours}.expand.{p}", [f"{gate}.{p}", f"{expand}.{p}"]) for p in parts]
        return table + layer(f"{ours}.contract", contract, config.bias)
    if config.ffn == "swiglu":
        expand, contract = f"{theirs}.mlp.weights_in", f"{theirs}.mlp.weights_out"
    return [
        *layer(f"{ours}.expand", expand, config.bias),
        *layer(f"{ours}.contract", contract, config.bias),
    ]


def _siglip_head() -> list[Entry]:
    """The pool of PyTorch's own attention module, whose three projections are one tensor."""
    ours, table = "head.attend", [same("head.attend.queries", "head.probe")]
    for part in ("weight", "bias"):
        table.append(
            Entry(
                (f"{ours}.q.{part}", f"{ours}.kv.{part}"),
                (f"head.attention.in_proj_{part}",),
                lambda t: list(t[0].split([len(t[0]) // 3, 2 * len(t[0]) // 3])),
                lambda t: [torch.cat(t)],
            )
        )
    table += layer(f"{ours}.project", "head.attention.out_proj")
    table += layer(f"{ours}.norm", "head.layernorm")
    table += layer(f"{ours}.mlp.expand", "head.mlp.fc1")
    return table + layer(f"{ours}.mlp.contract", "head.mlp.fc2")
