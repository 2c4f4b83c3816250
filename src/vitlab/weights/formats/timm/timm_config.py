"""timm's config.json, read and written: preprocessing, and the arguments of its constructors."""

from collections.abc import Callable
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.room import cannot

NAME = "timm"
ACTS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
# Keys of pretrained_cfg and fields of ours with the same meaning.
PREPROCESSING = {
    "mean": "mean", "std": "std", "crop_pct": "crop", "interpolation": "interpolation",
}  # fmt: skip
# Arguments of every constructor, of those with rotary positions, and of the plain ones.
COMMON = {
    "embed_dim": "width", "depth": "depth", "num_heads": "heads", "qkv_bias": "qkv_bias",
    "in_chans": "channels",
}  # fmt: skip
ROTARY = {
    "num_reg_tokens": "registers", "class_token": "has_token", "rope_temperature": "rope_base",
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
# The constructor whose arguments can make it into a model: the first whose condition holds.
ARCHITECTURES: tuple[tuple[Callable[[ViTConfig], bool], str], ...] = (
    (lambda c: c.positions == "bias", "beit_base_patch16_224"),
    (lambda c: c.positions == "rope", "vit_base_patch16_dinov3"),
    (lambda c: c.pool == "prefix", "deit_base_distilled_patch16_224"),
    (lambda c: c.branches == 2, "vit_base_patch16_18x2_224"),
    (lambda c: c.ffn == "swiglu", "vit_giant_patch14_dinov2"),
    (lambda c: c.norm_eps == 1e-5 and c.gelu == "quick", "vit_base_patch16_clip_quickgelu_224"),
    (lambda c: c.norm_eps == 1e-5, "vit_base_patch16_clip_224"),
    (lambda c: True, "vit_base_patch16_224"),
)


def recorded(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that config.json states."""
    pretrained = _table(config, "pretrained_cfg")
    arguments, stated = _table(config, "model_args"), config | pretrained
    fields: dict[str, Any] = {}
    for key, own in PREPROCESSING.items():
        value = stated.get(key)
        if value is not None and (own != "interpolation" or value in ("bilinear", "bicubic")):
            fields[own] = tuple(value) if isinstance(value, list) else value
    if stated.get("crop_mode") == "squash":
        fields["fit"] = "squash"
    for key in ("num_heads", "qkv_bias"):
        if key in arguments:
            fields[COMMON[key]] = arguments[key]
    if arguments.get("act_layer") in ACTS:
        fields["gelu"] = ACTS[arguments["act_layer"]]
    pool = arguments.get("global_pool", stated.get("global_pool"))
    if pool in POOLS:
        fields["pool"] = POOLS[pool]
    labels = stated.get("label_names")
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        fields["labels"] = tuple(labels)
    return fields


def recorded_size(config: dict[str, Any]) -> Size | None:
    """Return the image size that config.json states, in pixels."""
    size = _table(config, "model_args").get("img_size")
    shape = _table(config, "pretrained_cfg").get("input_size")
    if size is None and isinstance(shape, list) and len(shape) == 3:
        size = shape[1:]
    if isinstance(size, list) and len(size) == 2:
        return int(size[0]), int(size[1])
    return size if isinstance(size, int) else None


def _table(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def written(config: ViTConfig) -> dict[str, Any]:
    """Return the config.json with which timm builds and loads a model.

    Raises:
        WeightsError: timm has no such model.
    """
    architecture = _architecture(config)
    content = {
        "architecture": architecture,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": _pool(config),
        "model_args": _arguments(config),
        "pretrained_cfg": {
            "architecture": architecture,
            "input_size": [config.channels, *config.size],
            "fixed_input_size": True,
            **{key: _plain(getattr(config, own)) for key, own in PREPROCESSING.items()},
            "crop_mode": "squash" if config.fit == "squash" else "center",
            "num_classes": config.classes,
            "pool_size": None,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    return content | ({"label_names": list(config.labels)} if config.labels else {})


def _architecture(config: ViTConfig) -> str:
    if config.stem == "resnet" and config.positions not in ("bias", "rope"):
        if config.stages not in HYBRIDS:
            raise WeightsError(f"{NAME} has no hybrid with stages={config.stages}")
        return HYBRIDS[config.stages]
    return next(name for fits, name in ARCHITECTURES if fits(config))


def _pool(config: ViTConfig) -> str:
    names = {own: name for name, own in POOLS.items()} | {"prefix": "token"}
    if config.pool not in names:
        raise cannot(NAME, f"pool={config.pool}")
    return names[config.pool]


def _arguments(config: ViTConfig) -> dict[str, Any]:
    """The arguments of timm's constructor, whatever its defaults are."""
    hidden = config.mlp * (2 if config.ffn == "swiglu" and config.positions != "rope" else 1)
    arguments = {key: getattr(config, own) for key, own in COMMON.items()} | {
        "img_size": list(config.size),
        "mlp_ratio": (hidden + 0.5) / config.width,  # timm rounds down
    }
    if config.stem == "linear":
        arguments["patch_size"] = config.patch
    if config.layer_scale:
        arguments["init_values"] = config.layer_scale
    if config.pool != "prefix":
        arguments["global_pool"] = _pool(config)
    if config.positions == "bias":
        shared = config.positions_at == "shared"
        return arguments | {"use_rel_pos_bias": not shared, "use_shared_rel_pos_bias": shared}
    if config.positions == "rope":
        rotary = {key: getattr(config, own) for key, own in ROTARY.items()}
        return arguments | rotary | {"swiglu_mlp": config.ffn == "swiglu"}
    if config.ffn == "mlp" and config.gelu != "quick":  # the constructor brings these two
        arguments["act_layer"] = next(name for name, own in ACTS.items() if own == config.gelu)
    if config.pool == "prefix":
        return arguments
    return arguments | {
        **{key: getattr(config, own) for key, own in PLAIN.items()},
        "fc_norm": config.norm_at == "pooled",
        "final_norm": config.norm_at != "none",
        "pos_embed": "none" if config.positions == "none" else "learn",
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
