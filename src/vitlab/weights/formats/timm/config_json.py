"""timm's config.json, read and written, and open_clip_config.json: model, preprocessing, classes.

A training checkpoint may record the same of its model. What timm cannot represent is refused by the
name of the field, whatever our own reader could read.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, OPENAI, ImageSpec, Size
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.dialects import names_for
from vitlab.weights.formats.format_api import cannot, check_fields
from vitlab.weights.formats.names import first_name
from vitlab.weights.formats.records import WITHOUT_EFFECT, Limits, limits, record, words
from vitlab.weights.formats.timm.architectures import stem_of
from vitlab.weights.formats.timm.arguments import (
    ARGUMENTS,
    KINDS,
    NAME,
    family_of,
    stated,
    written_arguments,
)
from vitlab.weights.sharded import Fields
from vitlab.weights.source import StoredTensors

# Keys of pretrained_cfg and fields of ours with the same meaning.
PREPROCESSING = record("mean mean, std std, crop_pct crop, interpolation interpolation")
# Keys whose other values our model cannot represent, and the fields that keys are about.
LIMITED = limits("""
    interpolation bilinear|bicubic, crop_mode center|squash, global_pool token|avg|map|,
    label_offset 0
""")
ABOUT = record("""
    crop_mode fit, resize_mode fit, global_pool pool, timm_pool pool, pool_type pool,
    label_offset labels
""")
# Reviewed: where weights are from, other sizes, names of layers, texts.
IRRELEVANT = words("""
    url file state_dict hf_hub_id hf_hub_filename source architecture tag input_size
    test_input_size min_input_size fixed_input_size test_crop_pct num_classes label_names
    label_descriptions labels pool_size test_pool_size first_conv classifier license
    description origin_url paper_name paper_ids notes num_features custom_load
""")
KEYS = {*LIMITED, *PREPROCESSING, *IRRELEVANT}
RESAMPLING = "vitlab_resampling"  # a key of ours: timm resizes positions in its own way


def arguments_in(config: Fields) -> Fields:
    """Return the arguments of timm's constructor, and the number of classes, in config.json."""
    if "architecture" not in config:
        return {}
    pretrained = _pretrained(config)
    classes = config.get("num_classes", pretrained.get("num_classes"))
    counted: Fields = {"num_classes": classes} if isinstance(classes, int) else {}
    if pretrained.get("global_pool") == "":
        counted["global_pool"] = ""
    return counted | table_in(config, "model_args")


def recorded(path: object, config: Fields, chosen: Collection[str]) -> Fields:
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
    pretrained = _pretrained(config)
    check_limited(path, NAME, "pretrained_cfg", pretrained, LIMITED, chosen)
    for key in sorted(pretrained.keys() - KEYS):
        raise WeightsError(
            f"{path}: unsupported pretrained_cfg {key}={pretrained[key]!r} of {NAME}"
        )
    pool = {"global_pool": pretrained.get("global_pool", config.get("global_pool"))}
    names = config.get("label_names", pretrained.get("label_names"))
    if isinstance(names, dict):  # by number
        names = [names.get(str(number)) for number in range(len(names))]
    labels = tuple(names) if isinstance(names, list) else ()
    named = labels and all(isinstance(label, str) for label in labels)
    return {
        "interpolation": "bicubic",
        "crop": 0.875,
        **IMAGENET,
        **prepared(pretrained),
        "fit": "squash" if pretrained.get("crop_mode") == "squash" else "crop",
        **stated(pool | table_in(config, "model_args")),
        **({"resampling": config[RESAMPLING]} if RESAMPLING in config else {}),
        **({"labels": labels} if named else {}),
    }


def size_beside(source: StoredTensors) -> Size | None:
    """Return the image size that config.json or open_clip's file states, in pixels."""
    size = table_in(source.config, "model_args").get("img_size")
    shape = _pretrained(source.config).get("input_size")
    if size is None and isinstance(shape, list) and len(shape) == 3:
        size = shape[1:]
    return size_of(size) or size_of(vision_of(source.open_clip).get("image_size"))


def size_of(value: Any) -> Size | None:
    """Return a size in pixels as JSON has it: a number, or rows and columns."""
    if isinstance(value, list) and len(value) == 2:
        return int(value[0]), int(value[1])
    return value if isinstance(value, int) else None


def prepared(content: Fields) -> Fields:
    """Return the fields of how images are prepared that a table with timm's keys states."""
    given = {own: content.get(key) for key, own in PREPROCESSING.items()}
    plain = {own: tuple(v) if isinstance(v, list) else v for own, v in given.items()}
    return {own: value for own, value in plain.items() if value not in (None, "")}


def table_in(content: Fields, key: str) -> Fields:
    """Return a JSON object in another one; empty if there is none."""
    value = content.get(key)
    return value if isinstance(value, dict) else {}


def check_limited(
    path: object, format: str, part: str, content: Fields, limited: Limits, chosen: Collection[str]
) -> None:
    """Refuse values that our model cannot represent, unless the user gives the field.

    Args:
        path: for messages, as format and part of its configuration are
        format: whose library's
        part: name of the content
        content: by key
        limited: by key, the values that are represented
        chosen: fields that the user gave

    Raises:
        WeightsError: the first such value.
    """
    for key, values in limited.items():
        own = ABOUT.get(key, key)
        if (value := content.get(key)) not in (None, *values) and own not in chosen:
            raise WeightsError(
                f"{path}: unsupported {part} {key}={value!r} of {format}: give --{own}"
            )


def _pretrained(config: Fields) -> Fields:
    """The part about weights; older files have its keys at the top."""
    if "pretrained_cfg" in config:
        return table_in(config, "pretrained_cfg")
    return {key: value for key, value in config.items() if key in KEYS}


@dataclass(frozen=True)
class Record:
    """What a checkpoint records of the model that it was made of, beside its tensors.

    Attributes:
        architecture: timm's name; empty if there is none
        fields: of the configuration
        instead: fields in place of those that the name implies
        image_size: in pixels
        arguments: of timm's constructor
    """

    architecture: str = ""
    fields: Fields = field(default_factory=dict)
    instead: Fields = field(default_factory=dict)
    image_size: Size | None = None
    arguments: Fields = field(default_factory=dict)


def record_of(source: StoredTensors) -> Record:
    """Read `arch` and `args` of a training checkpoint.

    timm's own have both, and a model's images are prepared as its name implies; other code that
    trains timm's models has `args.model` alone, and prepares images as for ImageNet (DeiT, MAE).
    """
    args = table_in(source.record, "args")
    own, other = stem_of(source.record.get("arch")), stem_of(args.get("model"))
    if not own:
        return Record(other, instead={**IMAGENET, "crop": 0.875} if other else {})
    arguments = table_in(args, "model_kwargs")
    found = prepared(args) | stated({"global_pool": args.get("gp")} | arguments)
    size = args.get("img_size") or (args.get("input_size") or (None,))[-1]
    return Record(own, found, {}, size if isinstance(size, int) else None, arguments)


# open_clip_config.json: what open_clip says of an image encoder, its own or one of timm's.
OPEN_CLIP = "open_clip"
OPEN_CLIP_POOLS = {"": ""} | record("tok token, avg mean, map attention, token token")
# Keys of vision_cfg that are read, that the tensors show, or that matter in training alone.
OPEN_CLIP_KNOWN = words("""
    image_size head_width timm_model_name timm_pool norm_kwargs pool_type final_ln_after_pool
    layers width mlp_ratio patch_size ls_init_value timm_model_pretrained timm_drop
    timm_drop_path timm_proj timm_proj_bias patch_dropout output_tokens no_ln_pre
    attn_pooler_heads attn_pooler_queries pos_embed_type
""")
OPEN_CLIP_ABSENT = words("attentional_pool input_patchnorm global_average_pool act_kwargs")
OPEN_CLIP_IMAGES = limits("resize_mode |shortest|squash, interpolation |bicubic|bilinear")


def stated_by_open_clip(
    path: object, content: Fields, width: int, chosen: Collection[str]
) -> Fields:
    """Return the fields that the file states, or that open_clip's defaults for it give.

    Args:
        path: for messages
        content: of open_clip_config.json
        width: of a token, which the heads are counted by
        chosen: fields that the user gave, so that they need not be represented here

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    vision, images = vision_of(content), table_in(content, "preprocess_cfg")
    if not vision:
        return {}
    for key, value in vision.items():
        if key not in OPEN_CLIP_KNOWN and (value or key not in OPEN_CLIP_ABSENT):
            raise WeightsError(f"{path}: unsupported vision_cfg {key}={value!r} of {OPEN_CLIP}")
    of_timm = "timm_model_name" in vision
    key = "timm_pool" if of_timm else "pool_type"
    check_limited(path, OPEN_CLIP, "preprocess_cfg", images, OPEN_CLIP_IMAGES, chosen)
    check_limited(path, OPEN_CLIP, "vision_cfg", vision, {key: tuple(OPEN_CLIP_POOLS)}, chosen)
    fields = {"crop": 1.0, "interpolation": "bicubic", **OPENAI, **prepared(images)}
    # the shorter side becomes the image size unless they are squashed
    fields["fit"] = "squash" if images.get("resize_mode") == "squash" else "crop"
    if pool := OPEN_CLIP_POOLS.get(vision.get(key) or ""):
        fields["pool"] = pool
    if of_timm:
        return fields
    return fields | {
        "norm_at": "pooled" if vision.get("final_ln_after_pool") else "tokens",
        "heads": width // int(vision.get("head_width", 64)),
        "gelu": "quick" if content["model_cfg"].get("quick_gelu") else "exact",
        "norm_eps": float((vision.get("norm_kwargs") or {}).get("eps", 1e-5)),
    }


def vision_of(content: Fields) -> Fields:
    """Return what open_clip_config.json says of the image encoder."""
    return table_in(table_in(content, "model_cfg"), "vision_cfg")


# Fields that an architecture stands for, or that change no output of timm's.
REPRESENTED = {*WITHOUT_EFFECT, "classes", "stem_bias", "positions_size", "resampling"} | {
    each.name for each in fields(ImageSpec)
}
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
# Values that an architecture of vision_transformer.py brings, at most one of them, and what else it
# has then; its norms are the usual ones.
PARTICULAR: dict[str, tuple[Any, str, Limits]] = {
    "stem": ("resnet", "", {"stages": (*HYBRIDS,), "resnet": ("timm",)}),
    "pool": (
        "prefix",
        "deit_base_distilled_patch16_224",
        limits("registers 1, class_token true, positions 1d"),
    ),
    "branches": (2, "vit_base_patch16_18x2_224", {}),
    "ffn": ("swiglu", "vit_giant_patch14_dinov2", {}),
}
USUAL_NORMS = limits("norm_eps 1e-6, norm_inner_attention false, norm_inner_mlp false")


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
    named = {*REPRESENTED, *ARGUMENTS[family_of(config)].values()}
    allowed = {each.name: (each.default,) for each in fields(config) if each.name not in named}
    allowed |= _made_by(config)[1]
    if config.pool == "attention":
        allowed |= limits("ffn mlp, bias true")
    check_fields(NAME, config, allowed)
    return config


def _made_by(config: ViTConfig) -> tuple[str, Limits]:
    """An architecture whose arguments can make a model, and values of fields beside them."""
    fine, pool = config.norm_eps == 1e-6, config.pool  # epsilon is an architecture's
    allowed = limits("pool token|mean|attention, norm_eps 1e-6|1e-5")
    if (family := family_of(config)) == "vit":
        allowed |= {"pool_heads": (0, config.heads), "pool_mlp": (0, config.mlp)}
        allowed |= limits("positions none|1d")
        if pool == "prefix":  # without a classifier, timm has the mean of both tokens
            allowed["classes"] = (config.classes or None,)
        for name, (value, architecture, further) in PARTICULAR.items():
            if getattr(config, name) == value:
                allowed |= USUAL_NORMS | {name: (value,)} | further
                return architecture or HYBRIDS.get(config.stages, ""), allowed
        allowed |= limits("norm layer|rms" if fine else "norm layer")
        return "vit_base_patch16_224" if fine else "vit_base_patch16_clip_224", allowed
    if config.ffn == "swiglu":
        allowed["gelu"] = (config.gelu,)
    if family == "beit":
        allowed |= limits("pool token|mean, norm_at tokens|pooled, norm_eps 1e-6")
        allowed["class_token"] = (True, None if pool == "token" else True)
        return "beit_base_patch16_224", allowed
    allowed["pool_prefix"] = (pool != "mean", pool == "attention" and config.prefix > 0)
    allowed["rope_kind"] = tuple(KINDS.values())
    if config.norm_order == "after":
        allowed |= limits("qk_norm false, layer_scale 0, ffn mlp")
        if config.norm_inner_mlp:
            allowed["ffn"] = ("mlp", "swiglu")
    return "eva_giant_patch14_224" if fine else "vit_base_patch16_dinov3", allowed


def written(config: ViTConfig, stored: ViTConfig) -> Fields:
    """Return the config.json with which timm builds and loads a model.

    Args:
        config: the model's
        stored: that of the tensors
    """
    arguments = written_arguments(stored)
    if config.norm == "rms":  # the name of a norm stands for its epsilon too
        arguments["norm_layer"] = "rmsnorm"
    if config.size != stored.size:
        arguments["dynamic_img_size"] = True
    architecture = _made_by(config)[0]
    first = "root_conv.weight" if config.stem == "resnet" else "patch.weight"
    kernel = first_name(names_for(config), first).removesuffix(".weight")
    content = {
        "architecture": architecture,
        "num_classes": config.classes,
        "num_features": config.width,
        "global_pool": arguments["global_pool"],
        "model_args": arguments,
        RESAMPLING: config.resampling,
        "pretrained_cfg": {
            "architecture": architecture,
            "input_size": [config.channels, *config.size],
            "fixed_input_size": True,
            **{key: getattr(config, own) for key, own in PREPROCESSING.items()},
            "crop_mode": "squash" if config.fit == "squash" else "center",
            "num_classes": config.classes,
            "pool_size": None,
            # where it is named, timm adapts a kernel for RGB to other channels
            "first_conv": kernel if config.channels == 3 else None,
            "classifier": "head",
        },
    }
    return content | ({"label_names": config.labels} if config.labels else {})
