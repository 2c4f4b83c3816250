"""Our models as others' files: what their configurations say, and the tensors by their names."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.weights.entries import Entry
from vitlab.weights.formats import big_transfer as bit
from vitlab.weights.formats import google
from vitlab.weights.formats import transformers as huggingface
from vitlab.weights.formats.timm import table as timm_table
from vitlab.weights.formats.timm.facts import ACTS, POOLS
from vitlab.weights.formats.timm.table import Dialect

Files = dict[str, dict[str, Any]]  # JSON by file name


def tensors_of(entries: Sequence[Entry], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A model's tensors under the other format's names."""
    written: dict[str, Tensor] = {}
    for entry in entries:
        made = entry.write([state[name].detach() for name in entry.ours])
        written |= {
            name: tensor.contiguous() for name, tensor in zip(entry.theirs, made, strict=True)
        }
    return written


def as_google(config: ModelConfig) -> list[Entry]:
    """The table for an `.npz`."""
    return bit.entries(config) if isinstance(config, ResNetConfig) else google.entries(config)


def as_timm(config: ModelConfig) -> tuple[list[Entry], Files]:
    """The table and the config.json with which timm builds and loads the model.

    Raises:
        ValueError: timm has no such model.
    """
    if not isinstance(config, ViTConfig):
        raise UserError(f"{timm_table.NAME} has no place for {config.name} in this format")
    if config.stem == "linear" and config.stem_bias == config.pre_norm:
        raise UserError("timm has a norm before the encoder just where the stem has no bias")
    if config.branches > 2:
        raise UserError(f"timm has two parallel branches, not {config.branches}")
    fixed = config.positions in ("bias", "rope")
    dialect = Dialect(
        register_rows=config.registers > 0 and config.positions == "1d",
        registers="dist_token" if config.pool == "prefix" else "reg_token",
        split_bias=fixed and config.qkv_bias,
        split_gate=config.positions == "rope",
        scale="gamma_{}" if fixed else "ls{}.gamma",
        distilled=config.pool == "prefix",
    )
    dialect = replace(dialect, split_gate=dialect.split_gate and config.ffn == "swiglu")
    told = {
        "architecture": _architecture(config),
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": _pool(config),
        "model_args": _arguments(config),
        "pretrained_cfg": {
            "architecture": _architecture(config),
            "input_size": [config.channels, *config.size],
            "fixed_input_size": True,
            "interpolation": config.interpolation,
            "crop_pct": config.crop,
            "crop_mode": "squash" if config.fit == "squash" else "center",
            "mean": list(config.mean),
            "std": list(config.std),
            "num_classes": config.classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if config.labels:
        told["label_names"] = list(config.labels)
    return timm_table.entries(config, dialect), {"config.json": told}


HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def _architecture(config: ViTConfig) -> str:
    """The one of timm's constructors that the arguments can make into this model."""
    if config.positions == "bias":
        return "beit_base_patch16_224"
    if config.positions == "rope":
        return "vit_base_patch16_dinov3"
    if config.stem == "resnet":
        if config.stages not in HYBRIDS:
            raise UserError(f"timm has no hybrid of stages {config.stages}")
        return HYBRIDS[config.stages]
    if config.pool == "prefix":
        return "deit_base_distilled_patch16_224"
    if config.branches == 2:
        return "vit_base_patch16_18x2_224"
    if config.ffn == "swiglu":
        return "vit_giant_patch14_dinov2"
    if config.norm_eps == 1e-5:
        return f"vit_base_patch16_clip_{'quickgelu_' if config.gelu == 'quick' else ''}224"
    return "vit_base_patch16_224"


def _pool(config: ViTConfig) -> str:
    names = {own: name for name, own in POOLS.items()} | {"prefix": "token"}
    if config.pool not in names:
        raise UserError(f"{timm_table.NAME} has no place for pool={config.pool}")
    return names[config.pool]


def _arguments(config: ViTConfig) -> dict[str, Any]:
    """What timm's constructor is told, whatever it would assume."""
    hidden = config.mlp * (2 if config.ffn == "swiglu" and config.positions != "rope" else 1)
    arguments: dict[str, Any] = {
        "img_size": list(config.size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": (hidden + 0.5) / config.width,  # timm rounds down
        "qkv_bias": config.qkv_bias,
        "in_chans": config.channels,
    }
    if config.stem == "linear":
        arguments["patch_size"] = config.patch
    if config.layer_scale:
        arguments["init_values"] = config.layer_scale
    act = next(name for name, own in ACTS.items() if own == config.gelu)
    if config.pool != "prefix":
        arguments["global_pool"] = _pool(config)
    if config.positions == "bias":
        shared = config.positions_at == "shared"
        kind = "use_shared_rel_pos_bias" if shared else "use_rel_pos_bias"
        return arguments | {"use_rel_pos_bias": False} | {kind: True}
    if config.positions == "rope":
        gated = {"swiglu_mlp": config.ffn == "swiglu"}
        registers = {"num_reg_tokens": config.registers, "class_token": config.has_token}
        return arguments | gated | registers | {"rope_temperature": config.rope_base}
    arguments |= {"act_layer": act} if config.ffn == "mlp" and config.gelu != "quick" else {}
    if config.pool == "prefix":
        return arguments
    return arguments | {
        "class_token": config.has_token,
        "reg_tokens": config.registers,
        "pre_norm": config.pre_norm,
        "qk_norm": config.qk_norm,
        "proj_bias": config.bias,
        "fc_norm": config.norm_at == "pooled",
        "final_norm": config.norm_at != "none",
        "pos_embed": "none" if config.positions == "none" else "learn",
    }


def as_transformers(config: ModelConfig) -> tuple[list[Entry], Files]:
    """The table, and config.json and preprocessor_config.json of the family that has such a model.

    Raises:
        ValueError: transformers has no such model.
    """
    if not isinstance(config, ViTConfig):
        raise UserError(f"{huggingface.NAME} has no place for {config.name} in this format")
    kind = _family(config)
    words = huggingface.FAMILIES[kind]
    place = 2 if config.pool == "prefix" else int(config.classes > 0)
    if place >= len(words.classes):
        raise UserError(f"transformers' {kind} has no classifier: save with classes=0")
    prefix = {"vit": "vit.", "deit": "deit.", "beit": "beit.", "dinov2": "dinov2."}
    prefix |= {
        "dinov2_with_registers": "dinov2_with_registers.",
        "clip_vision_model": "vision_model.",
    }
    before = prefix.get(kind, "") if config.classes else ""
    table = [
        entry.renamed(lambda name: name[1:] if name.startswith("/") else before + name)
        for entry in (*huggingface.entries(config, kind), *_unused(config, kind))
    ]
    act = next(name for name, own in huggingface.ACTS.items() if own == config.gelu)
    act = "gelu_pytorch_tanh" if config.gelu == "tanh" else act
    rows, columns = config.size
    told: dict[str, Any] = {
        "architectures": [words.classes[place]],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "intermediate_size": config.mlp,
        "hidden_act": "silu" if kind == "dinov3_vit" and config.ffn == "swiglu" else act,
        "layer_norm_eps": config.norm_eps,
        "image_size": rows if rows == columns else [rows, columns],
        "patch_size": config.patch,
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
    }
    told |= _particular(config, kind)
    if config.classes and kind != "clip_vision_model":
        labels = config.labels or tuple(f"LABEL_{n}" for n in range(config.classes))
        told["id2label"] = {str(number): label for number, label in enumerate(labels)}
        told["label2id"] = {label: number for number, label in enumerate(labels)}
    return table, {"config.json": told, "preprocessor_config.json": _preprocessor(config)}


def _unused(config: ViTConfig, kind: str) -> list[Entry]:
    """The mask token of pre-training, which DINO's classes expect to find; zero, as they start."""
    if not kind.startswith("dino"):
        return []
    shape = (1, 1, config.width) if kind == "dinov3_vit" else (1, config.width)
    name = ("embeddings.mask_token",)
    return [Entry((), name, lambda tensors: [], lambda tensors: [torch.zeros(shape)])]


def _family(config: ViTConfig) -> str:
    """The model_type of transformers that has such a model."""
    if config.stem_norm != "none" or config.stem_act != "none" or config.qk_norm:
        raise UserError("transformers has no place for norms in the stem or on queries and keys")
    if config.positions in ("bias", "rope"):
        return {"bias": "beit", "rope": "dinov3_vit"}[config.positions]
    if config.pre_norm:
        return "clip_vision_model"
    if config.pool in ("attention", "prefix"):
        return {"attention": "siglip_vision_model", "prefix": "deit"}[config.pool]
    if config.layer_scale and config.norm_at == "tokens":
        return "dinov2_with_registers" if config.registers else "dinov2"
    if config.registers or config.pool != "token" or config.norm_at != "tokens":
        raise UserError(
            f"transformers has no place for pool={config.pool}, registers={config.registers} and "
            f"norm_at={config.norm_at} together"
        )
    return "vit"


def _particular(config: ViTConfig, kind: str) -> dict[str, Any]:
    """What one family alone says."""
    match kind:
        case "beit":
            shared = config.positions_at == "shared"
            return {
                "use_relative_position_bias": not shared,
                "use_shared_relative_position_bias": shared,
                "use_mean_pooling": config.norm_at == "pooled",
                "layer_scale_init_value": config.layer_scale,
            }
        case "dinov3_vit":
            return {
                "rope_theta": config.rope_base,
                "num_register_tokens": config.registers,
                "use_gated_mlp": config.ffn == "swiglu",
                "layerscale_value": config.layer_scale,
                **{f"{part}_bias": config.qkv_bias for part in ("query", "value")},
                **{f"{part}_bias": config.bias for part in ("proj", "mlp")},
                "key_bias": False,
            }
        case "dinov2" | "dinov2_with_registers":
            gated = config.ffn == "swiglu"
            if gated and config.mlp != (config.width * 4 * 2 // 3 + 7) // 8 * 8:
                raise UserError(f"transformers' DINOv2 has no gated MLP of {config.mlp} units")
            if not gated and config.mlp % config.width:
                raise UserError("transformers' DINOv2 needs an MLP that is a multiple of the width")
            return {
                "mlp_ratio": 4 if gated else config.mlp // config.width,
                "use_swiglu_ffn": gated,
                "num_register_tokens": config.registers,
                "layerscale_value": config.layer_scale,
            }
        case "clip_vision_model":
            return {"projection_dim": config.classes or config.width}
        case "vit" if config.pre_logits:
            return {"pooler_output_size": config.pre_logits, "pooler_act": "tanh"}
    return {}


def _preprocessor(config: ViTConfig) -> dict[str, Any]:
    """As transformers' image processors have it; a crop is a share of a shorter side."""
    rows, columns = config.size
    cropped = config.fit == "crop"
    told: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.mean),
        "image_std": list(config.std),
        "resample": {"bilinear": 2, "bicubic": 3}[config.interpolation],
    }
    if cropped:
        side = round(min(rows, columns) / config.crop)
        return told | {
            "size": {"shortest_edge": side},
            "do_center_crop": True,
            "crop_size": {"height": rows, "width": columns},
        }
    return told | {"size": {"height": rows, "width": columns}}
