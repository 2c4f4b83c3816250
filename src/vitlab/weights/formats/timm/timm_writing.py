"""A model as timm builds and loads it: an architecture, and the arguments that make it this model.

What timm cannot represent is refused by the name of the field, whatever our own reader could read.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import ImageSpec
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.timm.timm_arguments import ACTS, NAME, POOLS
from vitlab.weights.formats.timm.timm_config import PREPROCESSING
from vitlab.weights.formats.timm.timm_rotary import KINDS as KINDS_OF_ROPE

# Arguments of every constructor, of those with rotary positions, and of the plain ones.
COMMON = {
    "embed_dim": "width", "depth": "depth", "num_heads": "heads", "qkv_bias": "qkv_bias",
    "in_chans": "channels",
}  # fmt: skip
ROTARY = {
    "num_reg_tokens": "registers", "class_token": "has_token", "rope_temperature": "rope_base",
    "use_pre_transformer_norm": "pre_norm",
}  # fmt: skip
PLAIN = {
    "class_token": "has_token", "reg_tokens": "registers", "pre_norm": "pre_norm",
    "qk_norm": "qk_norm", "proj_bias": "bias",
}  # fmt: skip
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# Fields that an argument or an architecture stands for, or that change no output of timm's; any
# other must have its usual value.
REPRESENTED = {each.name for each in fields(ImageSpec)} | {
    "classes", "labels", "zero_head", "head_bias", "width", "depth", "heads", "mlp", "branches",
    "patch", "stem",
    "stem_bias", "stages", "resnet", "positions", "positions_at", "positions_size", "bias_locality",
    "resampling", "pre_norm",
    "class_token", "pool", "norm_at", "registers", "layer_scale", "drop_path", "drop_path_ramp",
    "dropout", "qkv_bias", "bias", "qk_norm", "ffn", "gelu", "norm_eps", "rope_base", "rope_kind",
    "rope_grid", "rope_offset", "norm", "norm_order", "norm_inner_attention", "norm_inner_mlp",
    "pool_heads", "pool_mlp", "pool_prefix",
}  # fmt: skip
Limit = tuple[Callable[[ViTConfig], bool], str]
# What each kind of constructor has no argument for: a condition, and the field that is at fault.
EVERY: tuple[Limit, ...] = (
    (lambda c: c.stem not in ("linear", "resnet"), "stem"),
    (lambda c: c.stem == "resnet" and c.resnet != "timm", "resnet"),
    (lambda c: c.stem == "resnet" and c.stages not in HYBRIDS, "stages"),
    (lambda c: c.branches > 2, "branches"),
    (lambda c: c.positions not in ("none", "1d", *KINDS), "positions"),
    (lambda c: c.rope_kind == "free", "rope_kind"),
    (lambda c: c.positions == "1d" and c.positions_at != "stem", "positions_at"),
    (lambda c: c.norm_eps not in (1e-5, 1e-6), "norm_eps"),
    (lambda c: c.pool not in ("token", "mean", "attention", "prefix"), "pool"),
    (lambda c: c.pool == "attention" and c.ffn == "swiglu", "ffn"),
    (lambda c: c.pool == "attention" and not c.bias, "bias"),
    (lambda c: c.pool == "prefix" and (c.registers, c.has_token) != (1, True), "registers"),
    (lambda c: c.pool == "prefix" and not c.classes, "classes"),
    (lambda c: c.pool == "prefix" and c.positions != "1d", "positions"),
)
BEIT: tuple[Limit, ...] = (
    (lambda c: not c.has_token, "class_token"),
    (lambda c: c.pool not in ("token", "mean"), "pool"),
    (lambda c: c.norm_at == "none", "norm_at"),
    (lambda c: not c.bias, "bias"),
    (lambda c: c.qk_norm, "qk_norm"),
    (lambda c: c.pre_norm, "pre_norm"),
    (lambda c: c.norm_eps != 1e-6, "norm_eps"),
    (lambda c: c.norm_order == "after", "norm_order"),
    (lambda c: c.norm_inner_attention, "norm_inner_attention"),
    (lambda c: c.norm_inner_mlp, "norm_inner_mlp"),
    (lambda c: c.pool_prefix, "pool_prefix"),
)
EVA: tuple[Limit, ...] = (
    (lambda c: not c.bias, "bias"),
    (lambda c: c.pool == "attention" and c.prefix > 0 and not c.pool_prefix, "pool"),
    (lambda c: c.pool == "mean" and c.pool_prefix, "pool_prefix"),
    (lambda c: c.norm_order == "after" and c.qk_norm, "qk_norm"),
    (lambda c: c.norm_order == "after" and c.layer_scale > 0, "layer_scale"),
    (lambda c: c.norm_order == "after" and c.ffn == "swiglu" and not c.norm_inner_mlp, "ffn"),
)
OF_ONE_KIND: tuple[Limit, ...] = (  # of beit.py and eva.py
    (lambda c: c.stem != "linear", "stem"),
    (lambda c: c.branches > 1, "branches"),
    (lambda c: c.ffn == "mlp" and c.gelu != "exact", "gelu"),
    (lambda c: c.norm == "rms", "norm"),
)
OF_EPSILON: tuple[Limit, ...] = (  # of vision_transformer.py, whose other architectures have 1e-6
    (lambda c: c.norm_eps != 1e-6 and _particular(c), "norm_eps"),
    (lambda c: c.branches > 1 and c.ffn == "swiglu", "ffn"),
    (lambda c: c.stem == "resnet" and c.branches > 1, "branches"),
    (lambda c: c.stem == "resnet" and c.ffn == "swiglu", "ffn"),
    (lambda c: c.pool == "prefix" and c.stem == "resnet", "stem"),
    (lambda c: c.pool == "prefix" and c.branches > 1, "branches"),
    (lambda c: c.pool == "prefix" and c.ffn == "swiglu", "ffn"),
    (lambda c: c.norm == "rms" and (_particular(c) or c.norm_eps != 1e-6), "norm"),
    (lambda c: c.norm_order == "after", "norm_order"),
    (lambda c: c.norm_inner_attention and _particular(c), "norm_inner_attention"),
    (lambda c: c.norm_inner_mlp and _particular(c), "norm_inner_mlp"),
    (lambda c: c.pool_heads not in (0, c.heads), "pool_heads"),
    (lambda c: c.pool_mlp not in (0, c.mlp), "pool_mlp"),
)


KINDS: dict[str, tuple[Limit, ...]] = {
    **dict.fromkeys(("bias", "1d+bias"), (*OF_ONE_KIND, *BEIT)),
    **dict.fromkeys(("rope", "1d+rope"), (*OF_ONE_KIND, *EVA)),
}


def _particular(config: ViTConfig) -> bool:
    special = config.stem == "resnet" or config.branches > 1
    return special or config.ffn == "swiglu" or config.pool == "prefix"


def check_written(config: ModelConfig) -> ViTConfig:
    """Refuse a model that timm cannot represent.

    Raises:
        WeightsError: the message names the field.
    """
    if not isinstance(config, ViTConfig) or config.attention == "axial":
        raise cannot(NAME, config.name)
    if config.stem == "linear" and config.stem_bias == config.pre_norm:
        raise WeightsError(
            f"{NAME} has a norm before the encoder exactly if the stem has no bias, so it cannot "
            f"represent pre_norm={config.pre_norm} with stem_bias={config.stem_bias}"
        )
    for name in (*_at_fault(config), *_unrepresented(config)):
        kind = f" with positions={config.positions}" if config.positions in KINDS else ""
        raise cannot(NAME, f"{name}={getattr(config, name)!r}{kind}")
    return config


def _unrepresented(config: ViTConfig) -> Iterator[str]:
    """Fields that no argument stands for, and whose value is not the usual one."""
    for each in fields(config):
        if each.name not in REPRESENTED and getattr(config, each.name) != each.default:
            yield each.name


def _at_fault(config: ViTConfig) -> Iterator[str]:
    for limit, name in (*EVERY, *KINDS.get(config.positions, OF_EPSILON)):
        if limit(config):
            yield name


def stored_as(config: ViTConfig) -> ViTConfig:
    """Return the configuration of the tensors that are written: with the positions of which size.

    Those that are stored, where timm resamples them in the forward pass as the model does, or where
    there is no classifier, so that the folder is of that size, as timm's own are; else those of the
    model's size.
    """
    if config.resampling == "antialiased" or not config.classes:
        return config.at_positions
    return config.settled


def written(config: ViTConfig, stored: ViTConfig) -> dict[str, Any]:
    """Return the config.json with which timm builds and loads a model.

    Args:
        config: the model's
        stored: that of the tensors
    """
    architecture = _architecture(config)
    used = config if config.resampling == "antialiased" else stored
    content = {
        "architecture": architecture,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": _pool(config),
        "model_args": _arguments(stored)
        | ({"dynamic_img_size": True} if used.size != stored.size else {}),
        "pretrained_cfg": {
            "architecture": architecture,
            "input_size": [config.channels, *used.size],
            "fixed_input_size": True,
            **{key: _plain(getattr(config, own)) for key, own in PREPROCESSING.items()},
            "crop_mode": "squash" if config.fit == "squash" else "center",
            "num_classes": config.classes,
            "pool_size": None,
            # where it is named, timm adapts a kernel for RGB to other channels
            "first_conv": "patch_embed.proj" if config.channels == 3 else None,
            "classifier": "head",
        },
    }
    return content | ({"label_names": list(config.labels)} if config.labels else {})


def _architecture(config: ViTConfig) -> str:
    """The architecture whose arguments can make it into a model."""
    if "bias" in config.positions:
        return "beit_base_patch16_224"
    if "rope" in config.positions:  # eva.py's epsilon is the architecture's
        return "vit_base_patch16_dinov3" if config.norm_eps == 1e-5 else "eva_giant_patch14_224"
    if config.stem == "resnet":
        return HYBRIDS[config.stages]
    if config.pool == "prefix":
        return "deit_base_distilled_patch16_224"
    if config.branches == 2:
        return "vit_base_patch16_18x2_224"
    if config.ffn == "swiglu":
        return "vit_giant_patch14_dinov2"
    return "vit_base_patch16_clip_224" if config.norm_eps == 1e-5 else "vit_base_patch16_224"


def _pool(config: ViTConfig) -> str:
    names = {own: name for name, own in POOLS.items()} | {"prefix": "token"}
    return names[config.pool]


def _arguments(config: ViTConfig) -> dict[str, Any]:
    """The arguments of timm's constructor, whatever the architecture's own are."""
    arguments = {key: getattr(config, own) for key, own in COMMON.items()} | {
        "img_size": list(config.size),
        "mlp_ratio": (_hidden(config) + 0.5) / config.width,  # timm rounds down
        "init_values": config.layer_scale or None,
    }
    if config.stem == "linear":
        arguments["patch_size"] = config.patch
    if config.pool != "prefix":
        arguments["global_pool"] = _pool(config)
    if "bias" in config.positions:
        return arguments | _of_beit(config)
    if "rope" in config.positions:
        return arguments | _of_eva(config)
    if config.ffn == "mlp":  # else the architecture brings it
        arguments["act_layer"] = next(name for name, own in ACTS.items() if own == config.gelu)
    plain = {key: getattr(config, own) for key, own in PLAIN.items()} | {
        "fc_norm": config.norm_at == "pooled",
        "final_norm": config.norm_at != "none",
        "no_embed_class": False,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "scale_attn_norm": config.norm_inner_attention,
        "scale_mlp_norm": config.norm_inner_mlp,
    }
    if config.norm == "rms":
        plain["norm_layer"] = "rmsnorm"
    if config.pool_prefix:
        plain["pool_include_prefix"] = True
    if config.pool == "prefix":  # whose second token is no register there
        plain = {key: plain[key] for key in ("pre_norm", "qk_norm", "proj_bias", "final_norm")}
    return arguments | plain


def _hidden(config: ViTConfig) -> int:
    """Hidden units of an MLP; a gated one counts twice in vision_transformer.py."""
    packed = config.ffn == "swiglu" and config.positions not in KINDS
    return config.mlp * (2 if packed else 1)


def _of_beit(config: ViTConfig) -> dict[str, Any]:
    shared = config.positions_at == "shared"
    return {
        "use_abs_pos_emb": "1d" in config.positions,
        "use_rel_pos_bias": not shared,
        "use_shared_rel_pos_bias": shared,
        "use_fc_norm": config.norm_at == "pooled",
        "swiglu_mlp": config.ffn == "swiglu",
    }


def _of_eva(config: ViTConfig) -> dict[str, Any]:
    gated, mixed = config.ffn == "swiglu", config.rope_kind == "mixed"
    if config.rope_kind not in KINDS_OF_ROPE.values():
        raise cannot(NAME, f"rope_kind={config.rope_kind}")
    pool_mlp = (config.pool_mlp or config.mlp) + 0.5
    return {key: getattr(config, own) for key, own in ROTARY.items()} | {
        "qk_norm": config.qk_norm,
        "attn_type": "rope",  # the kind whose keys may have a bias
        "use_rot_pos_emb": True,
        "use_abs_pos_emb": "1d" in config.positions,
        "rope_type": next(name for name, own in KINDS_OF_ROPE.items() if own == config.rope_kind),
        "rope_rotate_half": not mixed,
        "rope_grid_offset": config.rope_offset,
        "ref_feat_shape": [config.rope_grid] * 2 if config.rope_grid else None,
        "scale_attn_inner": config.norm_inner_attention,
        "scale_mlp": config.norm_inner_mlp,
        "use_post_norm": config.norm_order == "after",
        "attn_pool_num_heads": config.pool_heads or config.heads,
        "attn_pool_mlp_ratio": pool_mlp / config.width,
        "dynamic_img_size": True,
        "swiglu_mlp": gated,
        "swiglu_align_to": int(gated),  # gate and value apart, with as many units as there are
        "use_fc_norm": config.norm_at == "pooled",
        "use_post_transformer_norm": config.norm_at == "tokens",
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
