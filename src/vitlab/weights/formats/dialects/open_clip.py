"""open_clip_config.json: what open_clip says of an image encoder, its own or one of timm's."""

from collections.abc import Collection, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import OPENAI, Size
from vitlab.weights.formats.timm.timm_rules import known

POOLS = {"": "", "tok": "token", "avg": "mean", "map": "attention", "token": "token"}
# Keys of vision_cfg that the tensors show, or that matter in training alone.
SHOWN = {
    "layers", "width", "mlp_ratio", "patch_size", "ls_init_value", "timm_model_pretrained",
    "timm_drop", "timm_drop_path", "timm_proj", "timm_proj_bias", "patch_dropout", "output_tokens",
    "no_ln_pre", "attn_pooler_heads", "attn_pooler_queries", "pos_embed_type",
}  # fmt: skip
READ = {
    "image_size", "head_width", "timm_model_name", "timm_pool", "norm_kwargs", "act_kwargs",
    "pool_type", "final_ln_after_pool",
}  # fmt: skip
ABSENT = ("attentional_pool", "input_patchnorm", "global_average_pool")


def architecture_in(content: Mapping[str, Any]) -> str:
    """Return timm's name of the image encoder, if it is one of timm's that is known."""
    name = _vision(content).get("timm_model_name")
    return name if isinstance(name, str) and known(name) else ""


def open_clip_size(content: Mapping[str, Any]) -> Size | None:
    """Return the image size in pixels."""
    size = _vision(content).get("image_size")
    if isinstance(size, list) and len(size) == 2:
        return int(size[0]), int(size[1])
    return size if isinstance(size, int) else None


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
    vision = _vision(content)
    if not vision:
        return {}
    for key, value in vision.items():
        unknown = key not in SHOWN | READ and not (key in ABSENT and not value)
        if unknown or (key == "act_kwargs" and value):
            raise WeightsError(f"{path}: unsupported vision_cfg {key}={value!r} of open_clip")
    fields = _prepared(path, content.get("preprocess_cfg", {}), chosen)
    pool = POOLS.get(vision.get("timm_pool" if "timm_model_name" in vision else "pool_type", ""))
    if pool is None and "pool" not in chosen:
        raise WeightsError(f"{path}: unsupported pool of open_clip in vision_cfg {vision}")
    if pool:
        fields["pool"] = pool
    if "timm_model_name" in vision:
        return fields
    fields["norm_at"] = "pooled" if vision.get("final_ln_after_pool") else "tokens"
    fields["heads"] = width // int(vision.get("head_width", 64))
    fields["gelu"] = "quick" if content.get("model_cfg", {}).get("quick_gelu") else "exact"
    fields["norm_eps"] = float((vision.get("norm_kwargs") or {}).get("eps", 1e-5))
    return fields


def _prepared(path: object, prepared: Any, chosen: Collection[str]) -> dict[str, Any]:
    """How images are prepared: the shorter side becomes the image size unless they are squashed."""
    prepared = prepared if isinstance(prepared, Mapping) else {}
    mode = prepared.get("resize_mode") or "shortest"
    if mode not in ("shortest", "squash") and "fit" not in chosen:
        raise WeightsError(f"{path}: unsupported resize_mode={mode!r} of open_clip: give --fit")
    fields: dict[str, Any] = {
        "crop": 1.0,
        "interpolation": prepared.get("interpolation") or "bicubic",
        "fit": "squash" if mode == "squash" else "crop",
        **OPENAI,
    }
    if fields["interpolation"] not in ("bicubic", "bilinear") and "interpolation" not in chosen:
        raise WeightsError(
            f"{path}: unsupported interpolation={fields['interpolation']!r} of open_clip: give "
            "--interpolation"
        )
    for key in ("mean", "std"):
        if isinstance(prepared.get(key), list):
            fields[key] = tuple(prepared[key])
    return fields


def _vision(content: Mapping[str, Any]) -> dict[str, Any]:
    model = content.get("model_cfg")
    vision = model.get("vision_cfg") if isinstance(model, dict) else None
    return vision if isinstance(vision, dict) else {}
