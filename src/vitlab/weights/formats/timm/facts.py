"""What timm's names say that its files do not: heads, GELU, epsilon, normalization, crop."""

import re
from dataclasses import dataclass
from typing import Any

from vitlab.errors import UserError
from vitlab.images import Size
from vitlab.models.config import config_of
from vitlab.weights.source import Shape, Source

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
INCEPTION = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
OPENAI = {
    "mean": (0.48145466, 0.4578275, 0.40821073),
    "std": (0.26862954, 0.26130258, 0.27577711),
}
ARCHITECTURE = re.compile(r"(vit_|deit|beit|eva)[a-z0-9_]+")
BEYOND = {  # families that this model does not reach, and why
    r"eva02_.*": "rotary positions beside learned ones, and norms within attention and MLP",
    r"beit3_.*": "norms within attention and MLP",
    r".*_rope_.*": "another kind of rotary positions",
    r".*(sapiens2|radio).*": "other norms or positions",
    r".*_(rpn|xp)_.*|vit_d(little|wee|pwee).*|vit_pwee.*": "another order of norms and branches",
    r"vit_s?relpos_.*": "positions from an MLP",
    r"vit_pe_.*": "rotary positions beside learned ones",
    r"vit_base_mci_.*|vit_.*resnet\d+d_.*": "another stem",
}


@dataclass(frozen=True)
class Facts:
    """What is known beside the tensors.

    Attributes:
        architecture: timm's name; empty where nobody says
        fields: of the configuration
        image_size: that the positions are for
        positions: of a file that stores none
        notes: what was assumed
    """

    architecture: str
    fields: dict[str, Any]
    image_size: Size | None = None
    positions: str | None = None
    notes: tuple[str, ...] = ()


def facts_of(source: Source, name: str, shapes: dict[str, Shape]) -> Facts:
    """From the name that the user gives, config.json, the file's name, or else the tensors.

    Raises:
        ValueError: a name that is none, or a family that this model does not reach.
    """
    if name and not ARCHITECTURE.match(name):
        config = config_of(name)  # the papers' notation
        return Facts("", _unnamed(source, shapes) | {"heads": getattr(config, "heads", 1)})
    said = source.config.get("architecture", "")
    told = name or (said if isinstance(said, str) else "") or source.path.stem
    architecture = told.partition(".")[0] if ARCHITECTURE.match(told) else ""
    for pattern, why in BEYOND.items():
        if re.fullmatch(pattern, architecture):
            raise UserError(f"{architecture} is beyond this model: {why}")
    rotary = _rotary(shapes)
    if architecture:
        rotary = "rope" if re.search("dinov3|lingbot", architecture) else None
    if not architecture:
        fields = _unnamed(source, shapes)
        notes = () if "mean" in fields else (_assumed(source),)
        return Facts("", INCEPTION | fields, None, rotary, notes)
    fields = _named(architecture) | _recorded(source.config)
    size = _size(source.config) or _size_in(architecture)
    return Facts(architecture, fields, size, rotary)


def _rotary(shapes: dict[str, Shape]) -> str | None:
    """DINOv3 has no stored positions, but registers, a class token and LayerScale.

    Its keys have no bias, or one that is masked: other families without positions are damaged.
    """
    marks = ("cls_token", "reg_token", "norm.weight", "blocks.0.ls1.gamma")
    bias = "blocks.0.attn.qkv.bias"
    keyless = bias not in shapes or f"{bias}_mask" in shapes
    return "rope" if keyless and all(mark in shapes for mark in marks) else None


def _named(architecture: str) -> dict[str, Any]:
    """Fields by timm's naming; the rules were checked against all of timm's own models."""

    def says(pattern: str) -> bool:
        return re.search(pattern, architecture) is not None

    fields: dict[str, Any] = {"interpolation": "bicubic", "crop": 0.9, **INCEPTION}
    if says(OF_IMAGENET):
        fields |= IMAGENET
    if says(r"_clip_|^eva_") and not says(OF_IMAGENET):
        fields |= OPENAI
    if says(WHOLE) and not says("siglip"):
        fields["crop"] = 1.0
    elif says(r"_reg\d_gap_256|medium_patch16_gap"):
        fields["crop"] = 0.95
    if says(r"^vit.*_clip_"):
        fields["norm_eps"] = 1e-5
    if says("quickgelu"):
        fields["gelu"] = "quick"
    if says(TANH):
        fields["gelu"] = "tanh"
    if says("dinov3|lingbot"):
        fields |= {"norm_eps": 1e-5, "pool": "token" if says("lingbot") else "mean"}
    if says("lingbot"):
        fields |= {"interpolation": "bilinear", "crop": 1.0}
    if says("tipsv2|miil"):
        fields |= {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop": 1.0}
    if says("miil"):
        fields |= {"crop": 0.875, "interpolation": "bilinear"}
    heads = [count for pattern, count in HEADS.items() if says(pattern)]
    return fields | ({"heads": heads[0]} if heads else {})


OF_IMAGENET = (
    r"^deit|^beitv2|dino|lingbot|intern300m|vit_(huge|giant)_patch\d+_gap|vit_small_patch8_224"
    r"|eva_giant_patch14_560"
)
WHOLE = (
    r"dino|intern300m|_(378|384|448|512|560)$|(huge|giant|gigantic|large).*_clip_|_clip_(2[45]\d|3)"
    r"|eva_large|eva_giant_patch14_3|_base_.*_clip_quickgelu"
)
TANH = r"(base_patch32|giantopt_patch16|so400m_patch16)_siglip|large_patch16_siglip_(gap_)?512"
# Where heads are not 64 wide and the width alone does not say how many there are.
HEADS = {
    r"vit_base_patch16_gap_224": 16,
    r"vit_giantopt_patch16_siglip": 16,
    r"vit_huge_plus_patch16_dinov3": 20,
    r"vit_7b_patch16_dinov3": 32,
}


def _unnamed(source: Source, shapes: dict[str, Shape]) -> dict[str, Any]:
    """What the tensors tell of their origin; the papers' own files come in a dictionary."""
    names = set(shapes) | set(source.shapes)
    bicubic = {"interpolation": "bicubic"}
    if any(name.endswith("relative_position_bias_table") for name in names):
        return {**bicubic, "crop": 0.9, **INCEPTION}  # BEiT
    if "norm_pre.weight" in names:
        return {**bicubic, "norm_eps": 1e-5, **OPENAI}  # CLIP
    if "attn_pool.latent" in names:
        return {**bicubic, **INCEPTION}  # SigLIP
    if _rotary(shapes) and "pos_embed" not in names:  # DINOv3; its own files say the class token
        pool = "token" if "storage_tokens" in names else "mean"
        return {**bicubic, "norm_eps": 1e-5, "pool": pool, **IMAGENET}
    scaled = "blocks.0.ls1.gamma" in names or "blocks.0.attns.0.ls.gamma" in names
    if scaled and "mask_token" not in names:
        return {**bicubic, "resampling": "bicubic", **IMAGENET}  # DeiT-III, Three things
    marks = ("mask_token", "dist_token", "decoder_pos_embed")
    if source.wrapper or scaled or any(mark in names for mark in marks):
        return {**bicubic, "crop": 0.875, "resampling": "bicubic", **IMAGENET}  # DeiT, MAE, DINO
    return {}


def _assumed(source: Source) -> str:
    return (
        f"{source.path} does not say how images are normalized: mean 0.5 and std 0.5 are assumed, "
        "as for AugReg; give name=… as in timm, or mean=… and std=…, if they were others"
    )


def _recorded(config: dict[str, Any]) -> dict[str, Any]:
    """What config.json of timm's hub repositories says of preprocessing and choices."""
    told = config.get("pretrained_cfg")
    told = config | told if isinstance(told, dict) else config
    fields: dict[str, Any] = {}
    for key, own in (("mean", "mean"), ("std", "std"), ("crop_pct", "crop")):
        if key in told and told[key] is not None:
            value = told[key]
            fields[own] = tuple(value) if isinstance(value, list) else value
    if told.get("interpolation") in ("bilinear", "bicubic"):
        fields["interpolation"] = told["interpolation"]
    if told.get("crop_mode") == "squash":
        fields["fit"] = "squash"
    chosen = config.get("model_args")
    chosen = chosen if isinstance(chosen, dict) else {}
    for key, own in (("num_heads", "heads"), ("qkv_bias", "qkv_bias")):
        if key in chosen:
            fields[own] = chosen[key]
    if chosen.get("act_layer") in ACTS:
        fields["gelu"] = ACTS[chosen["act_layer"]]
    pool = told.get("global_pool") if "global_pool" not in chosen else chosen["global_pool"]
    if pool in POOLS:
        fields["pool"] = POOLS[pool]
    labels = told.get("label_names")
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        fields["labels"] = tuple(labels)
    return fields


ACTS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
POOLS = {"token": "token", "avg": "mean", "map": "attention"}


def _size(config: dict[str, Any]) -> Size | None:
    chosen, told = config.get("model_args"), config.get("pretrained_cfg")
    size = chosen.get("img_size") if isinstance(chosen, dict) else None
    if size is None and isinstance(told, dict):
        shape = told.get("input_size")
        size = shape[1:] if isinstance(shape, list) and len(shape) == 3 else None
    if isinstance(size, list) and len(size) == 2:
        return int(size[0]), int(size[1])
    return size if isinstance(size, int) else None


def _size_in(architecture: str) -> int | None:
    found = re.search(r"_(\d{3})(_|$)", architecture)
    if "dinov3" in architecture or "lingbot" in architecture:
        return 256 if "dinov3" in architecture else 512
    return int(found[1]) if found else None
