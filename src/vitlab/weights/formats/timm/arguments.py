"""The arguments of timm's constructors: what each is for a model, what it says, and what it leaves.

Source: timm's VisionTransformer, VisionTransformerDistilled and hybrids, Beit and Eva.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.configs.model_config import map_stride
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.entries import Pairs
from vitlab.weights.formats.names import floored
from vitlab.weights.formats.records import record, records, words
from vitlab.weights.sharded import Fields

NAME = "timm"
ACTS = record("gelu exact, gelu_tanh tanh, quick_gelu quick")
POOLS = record("token token, avg mean, map attention")
NORMS = record("layernorm layer, rmsnorm rms")  # whose epsilon is 1e-6
KINDS = record("cat grid, dinov3 image")
Family = Literal["vit", "beit", "eva"]

# Which field each argument of a constructor is about.
ARGUMENTS = records("""
    EVERY
        embed_dim width, depth depth, num_heads heads, in_chans channels, qkv_bias qkv_bias,
        img_size image_size, patch_size patch, mlp_ratio mlp, init_values layer_scale,
        global_pool pool
    vit
        @EVERY, pre_norm pre_norm, qk_norm qk_norm, proj_bias bias,
        scale_attn_norm norm_inner_attention, scale_mlp_norm norm_inner_mlp,
        pool_include_prefix pool_prefix, class_token class_token, reg_tokens registers,
        act_layer gelu, fc_norm norm_at, final_norm norm_at, no_embed_class positions,
        pos_embed positions
    RELATIVE  use_abs_pos_emb positions, use_fc_norm norm_at, swiglu_mlp ffn
    beit
        @EVERY, @RELATIVE, use_rel_pos_bias positions, use_shared_rel_pos_bias positions_at
    eva
        @EVERY, num_reg_tokens registers, use_pre_transformer_norm pre_norm, qk_norm qk_norm,
        rope_temperature rope_base, rope_grid_offset rope_offset,
        scale_attn_inner norm_inner_attention, scale_mlp norm_inner_mlp, class_token class_token,
        @RELATIVE, attn_type qkv_bias, use_rot_pos_emb positions, rope_type rope_kind,
        rope_rotate_half rope_kind, ref_feat_shape rope_grid, use_post_norm norm_order,
        attn_pool_num_heads pool_heads, attn_pool_mlp_ratio pool_mlp, dynamic_img_size image_size,
        swiglu_align_to mlp, use_post_transformer_norm norm_at
""")
READ = record("""
    num_classes classes, norm_layer norm
""") | ARGUMENTS["vit"] | ARGUMENTS["beit"] | ARGUMENTS["eva"]  # fmt: skip
# Reviewed: how training goes and weights start, names of tensors, what the tensors show anyway.
WITHOUT_EFFECT = words("""
    drop_rate pos_drop_rate patch_drop_rate proj_drop_rate attn_drop_rate drop_path_rate
    weight_init fix_init head_init_scale dynamic_img_size strict_img_size qkv_fused attn_type
    pretrained_strict out_indices ref_feat_shape swiglu_align_to attn_pool_mlp_ratio
    num_kv_heads embed_norm_layer rope_shift_coords rope_jitter_coords rope_rescale_coords
    rope_rotate_half rope_grid_indexing rope_mrope_section
""")
# What these add is not represented; and None leaves those to timm, and the tensors show the choice.
OFF = words("mlp_layer dynamic_img_pad attn_only_layer_scale use_naflex features_only")
OPEN = words("fc_norm use_fc_norm use_post_transformer_norm attn_pool_num_heads")
# Arguments that state a field which no tensor shows, as it is or by a word.
NUMBERS = record("num_heads heads, attn_pool_num_heads pool_heads, pool_include_prefix pool_prefix")
WORDS = {
    "act_layer": ("gelu", ACTS),
    "global_pool": ("pool", POOLS),
    "use_post_norm": ("norm_order", record("True after, False before")),
}
# Where another value than a model's own stands for it as well.
ALSO: dict[str, Callable[[ViTConfig, Any], bool]] = {
    "img_size": lambda c, v: floored(v, c.patch) == c.size,
    "patch_size": lambda c, v: v == [patch_size(c)] * 2,
    "mlp_ratio": lambda c, v: _fits(c, int(c.width * v)),
    "init_values": lambda c, v: v is not None and c.layer_scale > 0,
    "global_pool": lambda c, v: not (v or c.classes),  # without a classifier, no pool is any
    "act_layer": lambda c, v: v == "swish" and c.ffn == "swiglu",
    "norm_layer": lambda c, v: norm_in(v) == c.norm,
    "no_embed_class": lambda c, v: not c.prefix,
    "pool_include_prefix": lambda c, v: c.pool == "token" or not c.prefix,
}


def family_of(config: ViTConfig) -> Family:
    """Return whose constructor makes such a model: that of vision_transformer.py, beit.py, eva.py.

    Hybrids and distilled models have that of vision_transformer.py.
    """
    if "bias" in config.positions:
        return "beit"
    return "eva" if "rope" in config.positions else "vit"


def values_of(config: ViTConfig) -> Fields:
    """Return the values that a model's constructor has for every argument."""
    positions, gated = config.positions, config.ffn == "swiglu"
    learned, turned, biased = (kind in positions for kind in ("1d", "rope", "bias"))
    shared, distilled = config.positions_at == "shared", config.pool == "prefix"
    pooled = config.norm_at == "pooled"
    packed = gated and not (turned or biased)  # gate and value in one layer
    return {name: getattr(config, own) for name, own in READ.items()} | {
        "img_size": list(config.size),
        "patch_size": patch_size(config),
        "mlp_ratio": _ratio(config, config.mlp * (2 if packed else 1)),
        "init_values": config.layer_scale or None,
        "global_pool": _word(POOLS, "token" if distilled else config.pool),
        "class_token": config.has_token,
        # the second token of a distilled model is no register in timm
        "reg_tokens": 0 if distilled else config.registers,
        "act_layer": "silu" if gated else _word(ACTS, config.gelu),
        "norm_layer": _word(NORMS, config.norm),
        "fc_norm": pooled,
        "final_norm": config.norm_at != "none",
        "no_embed_class": False,
        "pos_embed": "learn" if learned else "none",
        "use_abs_pos_emb": learned,
        "use_fc_norm": pooled,
        "swiglu_mlp": gated,
        "use_rel_pos_bias": biased and not shared,
        "use_shared_rel_pos_bias": biased and shared,
        "attn_type": "rope",  # the kind whose keys may have a bias
        "use_rot_pos_emb": turned,
        "rope_type": _word(KINDS, config.rope_kind),
        "rope_rotate_half": True,
        "ref_feat_shape": [config.rope_grid] * 2 if config.rope_grid else None,
        "use_post_norm": config.norm_order == "after",
        "attn_pool_num_heads": config.pool_heads or config.heads,
        "attn_pool_mlp_ratio": _ratio(config, config.pool_mlp or config.mlp),
        "dynamic_img_size": True,
        "swiglu_align_to": int(gated),  # gate and value apart, with all their units
        "use_post_transformer_norm": config.norm_at == "tokens",
    }


def written_arguments(config: ViTConfig) -> Fields:
    """Return the arguments of the constructor that makes a model, each with its value."""
    values = values_of(config)
    return {name: values[name] for name in ARGUMENTS[family_of(config)]}


def stated(arguments: Fields) -> Fields:
    """Return the fields that arguments state and that no tensor shows."""
    given = {name: arguments.get(name) for name in (*NUMBERS, *WORDS)}
    fields = {own: given[name] for name, own in NUMBERS.items() if isinstance(given[name], int)}
    for name, (own, ours) in WORDS.items():
        if (word := str(given[name])) in ours:
            fields[own] = ours[word]
    return fields | ({"norm_eps": 1e-6} if norm_in(arguments.get("norm_layer")) else {})


def check_arguments(
    path: object, arguments: Fields, config: ViTConfig, own_row: bool, chosen: set[str]
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
    values = values_of(config) | {"no_embed_class": not own_row}
    for name, value in arguments.items():
        idle = name.startswith("rope_") and "rope" not in config.positions
        off = (name in OFF and not value) or (name in OPEN and value is None)
        if idle or off or name in WITHOUT_EFFECT:
            continue
        if name not in READ:
            raise WeightsError(f"{path}: unsupported model_args {name}={value!r} of {NAME}")
        field, also = READ[name], ALSO.get(name)
        other = value != values[name] and not (also and also(config, value))
        if other and field not in chosen:
            advice = ", which --pool token settles" if name == "global_pool" else ""
            raise WeightsError(
                f"{path}: unsupported model_args {name}={value!r} of {NAME} for this model, "
                f"{config.name} with {field}={getattr(config, field)!r}{advice}"
            )


def norm_in(value: Any) -> str:
    """Return the kind of norm that a name of timm's stands for; empty for any other."""
    return NORMS.get(str(value).replace("_", "").lower().removesuffix("fp32"), "")


def patch_size(config: ViTConfig) -> int:
    """Return the argument of that name: of the map that a ResNet leaves in a hybrid."""
    return config.patch // (map_stride(config.stages) if config.stem == "resnet" else 1)


def _word(words: dict[str, str], own: str) -> str | None:
    """The first of timm's words for one of ours."""
    return next((word for word, meaning in words.items() if meaning == own), None)


def _ratio(config: ViTConfig, units: int) -> float:
    """Hidden units by the width, which timm multiplies again, and rounds down."""
    return (units + 0.5) / config.width


def _fits(config: ViTConfig, units: int) -> bool:
    """Whether timm makes an MLP of so many units, aligned or not; gate and value both count."""
    packed = config.mlp * (2 if config.ffn == "swiglu" else 1)
    return any(-(-units // to) * to in (config.mlp, packed) for to in (1, 8, 64))


# The defaults of eva.py for rotary positions, which leave no tensor.
DEFAULTS: Fields = record("""
    use_rot_pos_emb false, rope_type cat, rope_temperature 10000.0, rope_grid_offset 0.0,
    rope_grid_indexing ij, rope_rotate_half false, ref_feat_shape null, rope_mrope_section null
""")


def rotary_fields(path: object, arguments: Fields) -> Fields:
    """Return the fields of our configuration for arguments of eva.py, over its defaults.

    Args:
        path: for messages
        arguments: with use_rot_pos_emb

    Raises:
        WeightsError: a kind of rotary positions that our model cannot represent.
    """
    given = {**DEFAULTS, **arguments}
    kind, shape = KINDS.get(str(given["rope_type"])), given["ref_feat_shape"] or 0
    side, *others = shape if isinstance(shape, list | tuple) else (shape,)
    pairs, offset = given["rope_grid_indexing"], given["rope_grid_offset"]
    wrong = {
        "rope_type": kind is None,
        "ref_feat_shape": others not in ([], [side]),
        "rope_mrope_section": given["rope_mrope_section"] is not None,
        "rope_grid_offset": kind != "grid" and offset,
        "rope_grid_indexing": pairs != "ij" and (pairs != "xy" or given["rope_rotate_half"]),
    }
    for name in filter(wrong.get, wrong):
        raise WeightsError(f"{path}: unsupported model_args {name}={given[name]!r} of {NAME}")
    grid = {"rope_grid": int(side), "rope_offset": float(offset)} if kind == "grid" else {}
    return {"rope_kind": kind, "rope_base": float(given["rope_temperature"]), **grid}


def pairs_of(arguments: Fields) -> Pairs:
    """Return how channels that turn together lie, for arguments of eva.py."""
    given = {**DEFAULTS, **arguments}
    if given["rope_rotate_half"]:
        return ""
    return "xy" if given["rope_grid_indexing"] == "xy" else "ij"


def is_rounded(path: object, periods: Tensor, base: float) -> bool:
    """Return whether the periods of DINOv3's own files are rounded to bfloat16.

    Args:
        path: for messages
        periods: (d / 4), of half of the pairs of a head's d channels
        base: longest period, as a power base

    Raises:
        WeightsError: they are others.
    """
    exact = base ** (torch.arange(len(periods)) / len(periods))
    for rounded, values in ((False, exact), (True, exact.bfloat16().float())):
        if torch.allclose(periods, values, rtol=1e-5):
            return rounded
    raise WeightsError(f"{path}: unsupported periods of rotary positions, not those of {base:g}")
