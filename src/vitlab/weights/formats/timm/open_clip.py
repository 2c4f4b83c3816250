"""open_clip_config.json: what open_clip says of an image encoder, its own or one of timm's."""

from collections.abc import Collection, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import OPENAI, Size
from vitlab.weights.formats.timm.architectures import stem_of
from vitlab.weights.formats.timm.config_json import check_limited, prepared, size_of, table_in

NAME = "open_clip"
POOLS = {"": "", "tok": "token", "avg": "mean", "map": "attention", "token": "token"}
# Keys of vision_cfg that are read, that the tensors show, or that matter in training alone.
KNOWN = {
    "image_size", "head_width", "timm_model_name", "timm_pool", "norm_kwargs", "pool_type",
    "final_ln_after_pool",
    "layers", "width", "mlp_ratio", "patch_size", "ls_init_value", "timm_model_pretrained",
    "timm_drop", "timm_drop_path", "timm_proj", "timm_proj_bias", "patch_dropout", "output_tokens",
    "no_ln_pre", "attn_pooler_heads", "attn_pooler_queries", "pos_embed_type",
}  # fmt: skip
ABSENT = {"attentional_pool", "input_patchnorm", "global_average_pool", "act_kwargs"}
PREPROCESSING = {
    "resize_mode": ("fit", ("", "shortest", "squash")),
    "interpolation": ("interpolation", ("", "bicubic", "bilinear")),
}


def architecture_in(content: Mapping[str, Any]) -> str:
    """Return timm's name of the image encoder, if it is one of timm's that is known."""
    return stem_of(_vision(content).get("timm_model_name"))


def open_clip_size(content: Mapping[str, Any]) -> Size | None:
    """Return the image size in pixels."""
    return size_of(_vision(content).get("image_size"))


def stated_by_open_clip(
    path: object, content: Mapping[str, Any], width: int, chosen: Collection[str]
) -> dict[str, Any]:
    """Return the fields that the file states, or that open_clip's defaults for it give.

    Args:
        path: for messages
        content: of open_clip_config.json
        width: of a token, which the heads are counted by
        chosen: fields that the user gave, so that they need not be represented here

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    vision, images = _vision(content), table_in(content, "preprocess_cfg")
    if not vision:
        return {}
    for key, value in vision.items():
        if key not in KNOWN and (value or key not in ABSENT):
            raise WeightsError(f"{path}: unsupported vision_cfg {key}={value!r} of {NAME}")
    of_timm = "timm_model_name" in vision
    key = "timm_pool" if of_timm else "pool_type"
    check_limited(path, NAME, "preprocess_cfg", images, PREPROCESSING, chosen)
    check_limited(path, NAME, "vision_cfg", vision, {key: ("pool", tuple(POOLS))}, chosen)
    fields = {"crop": 1.0, "interpolation": "bicubic", **OPENAI, **prepared(images)}
    # the shorter side becomes the image size unless they are squashed
    fields["fit"] = "squash" if images.get("resize_mode") == "squash" else "crop"
    if pool := POOLS.get(vision.get(key) or ""):
        fields["pool"] = pool
    if of_timm:
        return fields
    return fields | {
        "norm_at": "pooled" if vision.get("final_ln_after_pool") else "tokens",
        "heads": width // int(vision.get("head_width", 64)),
        "gelu": "quick" if content["model_cfg"].get("quick_gelu") else "exact",
        "norm_eps": float((vision.get("norm_kwargs") or {}).get("eps", 1e-5)),
    }


def _vision(content: Mapping[str, Any]) -> dict[str, Any]:
    return table_in(table_in(content, "model_cfg"), "vision_cfg")
