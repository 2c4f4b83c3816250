"""What timm's names imply that its files do not say: heads, GELU, epsilon, normalization, crop."""

import re
from dataclasses import dataclass
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, INCEPTION, OPENAI, Size
from vitlab.models.config import config_of
from vitlab.weights.formats.timm.timm_config import recorded, recorded_size
from vitlab.weights.source import Shape, Source

ARCHITECTURE = re.compile(r"(vit_|deit|beit|eva)[a-z0-9_]+")
UNSUPPORTED = {  # families that our model cannot represent, and why
    r"eva02_.*": "rotary positions beside learned ones, and norms within attention and MLP",
    r"beit3_.*": "norms within attention and MLP",
    r".*_rope_.*": "another kind of rotary positions",
    r".*(sapiens2|radio).*": "other norms or positions",
    r".*_(rpn|xp)_.*|vit_d(little|wee|pwee).*|vit_pwee.*": "another order of norms and branches",
    r"vit_s?relpos_.*": "positions from an MLP",
    r"vit_pe_.*": "rotary positions beside learned ones",
    r"vit_base_mci_.*|vit_.*resnet\d+d_.*": "another stem",
}
OF_IMAGENET = (
    r"^deit|^beitv2|dino|lingbot|intern300m|vit_(huge|giant)_patch\d+_gap|vit_small_patch8_224"
    r"|eva_giant_patch14_560"
)
WHOLE = (
    r"dino|intern300m|_(378|384|448|512|560)$|(huge|giant|gigantic|large).*_clip_|_clip_(2[45]\d|3)"
    r"|eva_large|eva_giant_patch14_3|_base_.*_clip_quickgelu"
)
TANH = r"(base_patch32|giantopt_patch16|so400m_patch16)_siglip|large_patch16_siglip_(gap_)?512"
# What a name implies: a pattern that it contains, one that it does not, and fields. Later rules
# take precedence.
RULES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (OF_IMAGENET, "", IMAGENET),
    (r"_clip_|^eva_", OF_IMAGENET, OPENAI),
    (r"_reg\d_gap_256|medium_patch16_gap", "", {"crop": 0.95}),
    (WHOLE, "siglip", {"crop": 1.0}),
    (r"^vit.*_clip_", "", {"norm_eps": 1e-5}),
    (r"quickgelu", "", {"gelu": "quick"}),
    (TANH, "", {"gelu": "tanh"}),
    (r"dinov3", "", {"norm_eps": 1e-5, "pool": "mean"}),
    (r"lingbot", "", {"norm_eps": 1e-5, "pool": "token", "interpolation": "bilinear", "crop": 1.0}),
    (r"tipsv2|miil", "", {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop": 1.0}),
    (r"miil", "", {"crop": 0.875, "interpolation": "bilinear"}),
    # heads that do not follow from the width
    (r"vit_base_patch16_gap_224", "", {"heads": 16}),
    (r"vit_giantopt_patch16_siglip", "", {"heads": 16}),
    (r"vit_huge_plus_patch16_dinov3", "", {"heads": 20}),
    (r"vit_7b_patch16_dinov3", "", {"heads": 32}),
)


@dataclass(frozen=True)
class Facts:
    """What is known beside the tensors.

    Attributes:
        architecture: timm's name; empty if unknown
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
    """Return what the user's name, config.json, the file's name or else the tensors imply.

    Raises:
        OptionError: the user's name is unknown.
        WeightsError: a family that our model cannot represent.
    """
    if name and not ARCHITECTURE.match(name):
        config = config_of(name)  # the papers' notation
        return Facts("", _unnamed(source, shapes) | {"heads": getattr(config, "heads", 1)})
    stored = source.config.get("architecture", "")
    candidate = name or (stored if isinstance(stored, str) else "") or source.path.stem
    if not ARCHITECTURE.match(candidate):
        fields = _unnamed(source, shapes)
        notes = () if "mean" in fields else (_assumed(source),)
        return Facts("", INCEPTION | fields, None, _rotary(shapes), notes)
    architecture = candidate.partition(".")[0]
    for pattern, why in UNSUPPORTED.items():
        if re.fullmatch(pattern, architecture):
            raise WeightsError(f"unsupported model {architecture}: it has {why}")
    rotary = "rope" if re.search("dinov3|lingbot", architecture) else None
    fields = _named(architecture) | recorded(source.config)
    size = recorded_size(source.config) or _size_in(architecture)
    return Facts(architecture, fields, size, rotary)


def _rotary(shapes: dict[str, Shape]) -> str | None:
    """Recognize DINOv3: no stored positions, but registers, a class token and LayerScale.

    Its keys have no bias, or a masked one; other families without positions are damaged.
    """
    marks = ("cls_token", "reg_token", "norm.weight", "blocks.0.ls1.gamma")
    bias = "blocks.0.attn.qkv.bias"
    keyless = bias not in shapes or f"{bias}_mask" in shapes
    return "rope" if keyless and all(mark in shapes for mark in marks) else None


def _named(architecture: str) -> dict[str, Any]:
    """Fields by timm's naming; the rules were checked against all of timm's own models."""
    fields: dict[str, Any] = {"interpolation": "bicubic", "crop": 0.9, **INCEPTION}
    for pattern, excluded, chosen in RULES:
        if re.search(pattern, architecture) and not (
            excluded and re.search(excluded, architecture)
        ):
            fields |= chosen
    return fields


def _unnamed(source: Source, shapes: dict[str, Shape]) -> dict[str, Any]:
    """Fields by the tensors of each family; the papers' own files wrap them in a dictionary."""
    names = set(shapes) | set(source.shapes)
    bicubic = {"interpolation": "bicubic"}
    if any(name.endswith("relative_position_bias_table") for name in names):
        return {**bicubic, "crop": 0.9, **INCEPTION}  # BEiT
    if "norm_pre.weight" in names:
        return {**bicubic, "norm_eps": 1e-5, **OPENAI}  # CLIP
    if "attn_pool.latent" in names:
        return {**bicubic, **INCEPTION}  # SigLIP
    if _rotary(shapes) and "pos_embed" not in names:  # DINOv3; its own files use the class token
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
        f"{source.path} does not say how images are normalized: assuming mean 0.5 and std 0.5, as "
        "for AugReg; if that is wrong, give name=… as in timm, or mean=… and std=…"
    )


def _size_in(architecture: str) -> int | None:
    found = re.search(r"_(\d{3})(_|$)", architecture)
    if "dinov3" in architecture or "lingbot" in architecture:
        return 256 if "dinov3" in architecture else 512
    return int(found[1]) if found else None
