"""timm's config.json, read and written: preprocessing, and the arguments of its constructors."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, Size
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.timm.timm_arguments import ACTS, NAME, POOLS, stated
from vitlab.weights.formats.timm.timm_rules import known

# Keys of pretrained_cfg and fields of ours with the same meaning.
PREPROCESSING = {
    "mean": "mean", "std": "std", "crop_pct": "crop", "interpolation": "interpolation",
}  # fmt: skip
# Keys whose other values our model cannot represent, and the field that each is about.
LIMITED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "interpolation": ("interpolation", ("bilinear", "bicubic")),
    "crop_mode": ("fit", ("center", "squash")),
    "global_pool": ("pool", tuple(POOLS)),
    "label_offset": ("labels", (0,)),
    "custom_load": ("labels", (False,)),
}
# Reviewed: where weights are from, other sizes, names of layers, texts.
IRRELEVANT = {
    "url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag",
    "input_size", "test_input_size", "min_input_size", "fixed_input_size", "test_crop_pct",
    "num_classes", "label_names", "label_descriptions", "labels", "pool_size", "test_pool_size",
    "first_conv", "classifier", "license", "description", "origin_url", "paper_name", "paper_ids",
    "notes", "num_features",
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


def architecture_in(config: Mapping[str, Any]) -> str:
    """Return timm's name of the model that config.json states, if it is one that is known."""
    stored = config.get("architecture", "")
    stored = stored.partition(".")[0] if isinstance(stored, str) else ""
    return stored if known(stored) else ""


def arguments_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of timm's constructor, and the number of classes, in config.json."""
    if "architecture" not in config:
        return {}
    classes = config.get("num_classes", _pretrained(config).get("num_classes"))
    counted = {"num_classes": classes} if isinstance(classes, int) else {}
    return counted | _table(config, "model_args")


def recorded(path: object, config: Mapping[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """Return the fields that config.json states, or that timm's own defaults for it give.

    Args:
        path: for messages
        config: the content of config.json
        chosen: fields that the user gave, so that they need not be represented here

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    if "architecture" not in config:
        return {}
    pretrained, arguments = _pretrained(config), _table(config, "model_args")
    _check_pretrained(path, pretrained, chosen)
    fields: dict[str, Any] = {"interpolation": "bicubic", "crop": 0.875, **IMAGENET}
    for key, own in PREPROCESSING.items():
        value = pretrained.get(key)
        if value is not None and own not in chosen:
            fields[own] = tuple(value) if isinstance(value, list) else value
    fields["fit"] = "squash" if pretrained.get("crop_mode") == "squash" else "crop"
    pool = pretrained.get("global_pool", config.get("global_pool"))
    fields |= stated({"global_pool": pool} | arguments)
    labels = _labels(config.get("label_names", pretrained.get("label_names")))
    return fields | ({"labels": labels} if labels else {})


def recorded_size(config: Mapping[str, Any]) -> Size | None:
    """Return the image size that config.json states, in pixels."""
    size = _table(config, "model_args").get("img_size")
    shape = _pretrained(config).get("input_size")
    if size is None and isinstance(shape, list) and len(shape) == 3:
        size = shape[1:]
    if isinstance(size, list) and len(size) == 2:
        return int(size[0]), int(size[1])
    return size if isinstance(size, int) else None


def _check_pretrained(path: object, pretrained: dict[str, Any], chosen: Collection[str]) -> None:
    """Refuse what would change how images are prepared, or which outputs the classifier has."""
    for key, (own, values) in LIMITED.items():
        value = pretrained.get(key)
        if value not in (None, *values) and own not in chosen:
            settle = f": give --{own}" if own in PREPROCESSING.values() else ""
            raise WeightsError(
                f"{path}: unsupported pretrained_cfg {key}={value!r} of {NAME}{settle}"
            )
    for key in pretrained:
        if key not in (*LIMITED, *PREPROCESSING, *IRRELEVANT):
            raise WeightsError(
                f"{path}: unsupported pretrained_cfg {key}={pretrained[key]!r} of {NAME}"
            )


def _labels(stored: Any) -> tuple[str, ...]:
    """Names of the classes: a list, or a table by number without gaps."""
    if isinstance(stored, dict):
        stored = [stored.get(str(number)) for number in range(len(stored))]
    if isinstance(stored, list) and all(isinstance(label, str) for label in stored):
        return tuple(stored)
    return ()


def _pretrained(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part about weights; older files have its keys at the top."""
    if "pretrained_cfg" in config:
        return _table(config, "pretrained_cfg")
    return {key: config[key] for key in (*LIMITED, *PREPROCESSING, *IRRELEVANT) if key in config}


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
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
