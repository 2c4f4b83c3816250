"""The arguments of timm's constructors that config.json keeps: each is represented or refused.

Source: timm's VisionTransformer, VisionTransformerDistilled and hybrids, Beit and Eva.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.config import ViTConfig, map_stride
from vitlab.weights.formats.timm.timm_rotary import KINDS

NAME = "timm"
ACTS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
# As timm compares names; their epsilon is 1e-6.
LAYER_NORMS, RMS_NORMS = ("layernorm", "layernormfp32"), ("rmsnorm", "rmsnormfp32")
Agrees = Callable[[ViTConfig, Any], bool]


def _is(field: str) -> Agrees:
    return lambda config, value: bool(value == getattr(config, field))


def _only(*values: Any) -> Agrees:
    return lambda config, value: value in values


# Each argument, the field that it is about, and whether it agrees with a model's configuration.
ARGUMENTS: dict[str, tuple[str, Agrees]] = {
    "embed_dim": ("width", _is("width")),
    "depth": ("depth", _is("depth")),
    "num_heads": ("heads", _is("heads")),
    "in_chans": ("channels", _is("channels")),
    "num_classes": ("classes", _is("classes")),
    "qkv_bias": ("qkv_bias", _is("qkv_bias")),
    "qk_norm": ("qk_norm", _is("qk_norm")),
    "proj_bias": ("bias", _is("bias")),
    "class_token": ("class_token", _is("has_token")),
    "reg_tokens": ("registers", _is("registers")),
    "num_reg_tokens": ("registers", _is("registers")),
    "pre_norm": ("pre_norm", _is("pre_norm")),
    "use_pre_transformer_norm": ("pre_norm", _is("pre_norm")),
    "rope_temperature": ("rope_base", lambda c, v: not _turned(c) or v == c.rope_base),
    "img_size": ("image_size", lambda c, v: floored(v, c.patch) == c.size),
    "patch_size": ("patch", lambda c, v: v in (patch_size(c), [patch_size(c)] * 2)),
    "mlp_ratio": ("mlp", lambda c, v: bool(hidden(c) & _widths(int(c.width * v)))),
    "init_values": ("layer_scale", lambda c, v: (v is not None) == bool(c.layer_scale)),
    "global_pool": (  # without a classifier, no pool is as good as any
        "pool",
        lambda c, v: c.pool in (POOLS.get(v), {"token": "prefix"}.get(v)) or not (v or c.classes),
    ),
    "act_layer": (
        "gelu",
        lambda c, v: v in ("silu", "swish") if c.ffn == "swiglu" else ACTS.get(v) == c.gelu,
    ),
    "norm_layer": ("norm", lambda c, v: norm_in(v) == c.norm and c.norm_eps == 1e-6),
    "fc_norm": ("norm_at", lambda c, v: v in (None, c.norm_at == "pooled")),
    "use_fc_norm": ("norm_at", lambda c, v: v in (None, c.norm_at == "pooled")),
    "final_norm": ("norm_at", lambda c, v: v == (c.norm_at != "none")),
    "use_post_transformer_norm": ("norm_at", lambda c, v: v in (None, c.norm_at == "tokens")),
    "pos_embed": ("positions", lambda c, v: v == ("learn" if _learned(c) else "none")),
    "use_abs_pos_emb": ("positions", lambda c, v: v == _learned(c)),
    "use_rot_pos_emb": ("positions", lambda c, v: v == _turned(c)),
    "use_rel_pos_bias": ("positions", lambda c, v: v == (_biased(c) and not _shared(c))),
    "use_shared_rel_pos_bias": ("positions", lambda c, v: v == (_biased(c) and _shared(c))),
    "swiglu_mlp": ("ffn", lambda c, v: v == (c.ffn == "swiglu")),
    "swiglu_align_to": ("mlp", lambda c, v: not v or c.mlp % v == 0),
    "attn_pool_num_heads": ("pool_heads", lambda c, v: v in (None, c.pool_heads or c.heads)),
    "attn_pool_mlp_ratio": (
        "pool_mlp", lambda c, v: v is None or int(c.width * v) == (c.pool_mlp or c.mlp),
    ),
    "rope_type": ("rope_kind", lambda c, v: not _turned(c) or KINDS.get(v) == c.rope_kind),
    "rope_grid_indexing": ("positions", _only("ij", "xy")),
    "rope_grid_offset": ("rope_offset", lambda c, v: not _turned(c) or v == c.rope_offset),
    "rope_mrope_section": ("positions", _only(None)),
    "embed_norm_layer": (
        "stem_norm", lambda c, v: v is None or (c.stem_norm == "layer" and norm_in(v) == c.norm),
    ),
    "mlp_layer": ("ffn", _only(None)),
    "num_kv_heads": ("heads", lambda c, v: v in (None, c.heads)),
    "scale_attn_norm": ("norm_inner_attention", _is("norm_inner_attention")),
    "scale_attn_inner": ("norm_inner_attention", _is("norm_inner_attention")),
    "scale_mlp_norm": ("norm_inner_mlp", _is("norm_inner_mlp")),
    "scale_mlp": ("norm_inner_mlp", _is("norm_inner_mlp")),
    "use_post_norm": ("norm_order", lambda c, v: v == (c.norm_order == "after")),
    "pool_include_prefix": (
        "pool_prefix", lambda c, v: v == c.pool_prefix or c.pool == "token" or not c.prefix,
    ),
    "dynamic_img_pad": ("pool", _only(False)),
    "attn_only_layer_scale": ("layer_scale", _only(False)),
    "use_naflex": ("positions", _only(None, False)),
    "features_only": ("classes", _only(False)),
}  # fmt: skip
# Reviewed: how training goes and weights start, names of tensors, what the tensors show anyway.
WITHOUT_EFFECT = {
    "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate",
    "drop_path_rate", "weight_init", "fix_init", "head_init_scale", "dynamic_img_size",
    "strict_img_size", "rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords",
    "qkv_fused", "attn_type", "pretrained_strict", "out_indices", "ref_feat_shape",
    "rope_rotate_half",
}  # fmt: skip


def stated(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that arguments state and that no tensor shows."""
    fields: dict[str, Any] = {}
    if isinstance(arguments.get("num_heads"), int):
        fields["heads"] = arguments["num_heads"]
    if arguments.get("act_layer") in ACTS:
        fields["gelu"] = ACTS[arguments["act_layer"]]
    if arguments.get("global_pool") in POOLS:
        fields["pool"] = POOLS[arguments["global_pool"]]
    if norm_in(arguments.get("norm_layer")):
        fields["norm_eps"] = 1e-6
    if isinstance(arguments.get("attn_pool_num_heads"), int):
        fields["pool_heads"] = arguments["attn_pool_num_heads"]
    if "use_post_norm" in arguments:
        fields["norm_order"] = "after" if arguments["use_post_norm"] else "before"
    if "pool_include_prefix" in arguments:
        fields["pool_prefix"] = bool(arguments["pool_include_prefix"])
    return fields


def check_arguments(
    path: object, arguments: Mapping[str, Any], config: ViTConfig, own_row: bool, chosen: set[str]
) -> None:
    """Compare the arguments of timm's constructor with the model that a file was read as.

    Args:
        path: for messages
        arguments: as config.json has them
        config: of the model
        own_row: the class token or the registers have positions
        chosen: fields that the user gave, which take precedence

    Raises:
        WeightsError: an argument that our model cannot represent, or that it contradicts.
    """
    for name, value in arguments.items():
        if name in WITHOUT_EFFECT:
            continue
        if name == "no_embed_class":
            field, agrees = "positions", not config.prefix or bool(value) != own_row
        elif name not in ARGUMENTS:
            raise WeightsError(f"{path}: unsupported model_args {name}={value!r} of {NAME}")
        else:
            field, agreement = ARGUMENTS[name]
            agrees = agreement(config, value)
        if not agrees and field not in chosen:
            raise WeightsError(
                f"{path}: unsupported model_args {name}={value!r} of {NAME} for this model, "
                f"{config.name} with {field}={getattr(config, field)!r}"
            )


def norm_in(value: Any) -> str:
    """Return the kind of norm that a name of timm's stands for; empty for any other."""
    name = value.replace("_", "").lower() if isinstance(value, str) else ""
    return {**dict.fromkeys(LAYER_NORMS, "layer"), **dict.fromkeys(RMS_NORMS, "rms")}.get(name, "")


def hidden(config: ViTConfig) -> set[int]:
    """Return the hidden units of an MLP as timm's `mlp_ratio` may count them.

    A gated MLP is counted twice in vision_transformer.py where gate and value are one layer, and
    once elsewhere.
    """
    return {config.mlp, config.mlp * (2 if config.ffn == "swiglu" else 1)}


def patch_size(config: ViTConfig) -> int:
    """Return the argument of that name: of the map that a ResNet leaves in a hybrid."""
    return config.patch // (map_stride(config.stages) if config.stem == "resnet" else 1)


def floored(size: Size | list[int], patch: int) -> tuple[int, int]:
    """Return the pixels of an image that patches cover."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return int(rows) // patch * patch, int(columns) // patch * patch


def _widths(units: int) -> set[int]:
    """Return the numbers of hidden units that timm makes of one: as it is, or aligned."""
    return {-(-units // to) * to for to in (1, 8, 64)}


def _learned(config: ViTConfig) -> bool:
    return "1d" in config.positions


def _turned(config: ViTConfig) -> bool:
    return "rope" in config.positions


def _biased(config: ViTConfig) -> bool:
    return "bias" in config.positions


def _shared(config: ViTConfig) -> bool:
    return config.positions_at == "shared"
