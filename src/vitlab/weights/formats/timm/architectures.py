"""What an architecture of timm implies that its tensors do not show: heads, GELU, epsilon, images.

Every rule is compared with all of timm's own Vision Transformers in tests/weights. Rotary
positions, which leave no tensor either, are implied as arguments of timm's eva.py.
"""

import re
from collections.abc import Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.models.config import config_of
from vitlab.weights.formats.timm.arguments import Arguments

# A name consists of these words, and of sizes; others are not timm's, or newer than this table.
SIZES = (
    "tiny|xsmall|small|medium|mediumd|wee|pwee|dwee|dpwee|little|dlittle|betwixt|base|so150m|so150m2"
    "|large|so400m|huge|giant|giantopt|gigantic|enormous|intern300m|1b|3b|5b|7b"
)
WORDS = re.compile(
    rf"vit[234]?|deit|deit3|beit|beitv2|beit3|eva|eva02|aimv2|flexivit|samvit|test|{SIZES}"
    r"|patch\d+|reg\d|p8|r|r26|r50|s16|s32|resnet(26d|50d?)|18x2|36x1|\d{3}"
    r"|clip|quickgelu|siglip|dinov?[23]?|lingbot|tipsv2|miil|distilled|gap|map|plus|qkvb|rope|ape"
    r"|mixed|pe|core|lang|spatial|relpos|srelpos|cls|clsgap|rpn|xp|mci|radio|sapiens2|v[34]"
    r"|laion2b|in21k|in21ft1k|sam"
)
# At least one more word, since `vit_small` is what the papers' own code calls its models.
WHOLE_NAME = re.compile(
    rf"(vit|deit3?|beit(v2|3)?|eva(02)?|aimv2)_(s?relpos_|pe_[a-z]+_)?({SIZES})_[a-z0-9_]+(?<!patch16)(?<!patch14)"
    r"|flexivit_(small|base|large)|samvit_(base|large|huge)_patch16(_224)?|test_vit([234]|_relpos)?"
)
UNSUPPORTED = {  # families that our model cannot represent, and why
    r".*_(sapiens2|radio_v\d).*": "other norms or positions",
    r".*_xp_.*|vit_d(little|wee|pwee).*|vit_pwee.*": "another order of norms and branches",
    r".*_s?relpos(_.*)?": "positions from an MLP",
    r"samvit_.*": "windows of attention",
    r"vit_base_mci_.*|vit_.*resnet\d+d_.*": "another stem",
}
# In each table, by a pattern that a name contains; later rows take precedence.
HEADS = {  # by the size in a name; timm keeps them where the width is another than the size's
    r"^test_vit": 3, r"^test_vit2?$": 2, r"_tiny_": 3, r"_xsmall_|_d?p?wee_": 4, r"_d?little_": 5,
    r"_small(_|$)": 6, r"_mediumd?_": 8, r"_betwixt_": 10, r"_base(_|$)": 12, r"_so150m2_": 13,
    r"_so150m_|_base_.*_plus_": 14, r"vit_base_patch16_gap_224": 16,
    r"_large(_|$)|_so400m_|_huge_|_giant_|_giantopt_|_gigantic_|_enormous_|intern300m|_1b_": 16,
    r"_giant_.*(dinov2|tipsv2|lingbot|radio|sapiens2)|_3b_": 24, r"vit_small_resnet|aimv2_large": 8,
    r"aimv2_huge": 12, r"vit_huge_plus_": 20, r"_[57]b_": 32,
}  # fmt: skip
OF_IMAGENET = (
    r"^deit|^beitv2|^beit3|dino|lingbot|intern300m|vit_(huge|giant)_patch\d+_gap"
    r"|vit_small_patch8_224|eva_giant_patch14_560|_rope_((mixed|ape)_)*\d{3}$"
)
WHOLE = (
    r"dino|intern300m|_(378|384|448|512|560)$|(huge|giant|gigantic|large).*_clip_|_clip_(2[45]\d|3)"
    r"|eva_large|eva_giant_patch14_3|_base_.*_clip_quickgelu|^eva02_.*_336|^aimv2|^beit3|^vit_pe"
)
FIELDS: dict[str, dict[str, Any]] = {
    r"^(?!.*_(clip|cls)_)((beit|eva|aimv2|samvit)|.*(_gap|_rpn|relpos|vit_pe_|test_vit[24]))": {
        "pool": "mean"
    },
    r"^(?!.*_gap).*(_siglip_|_map_|vit_pe_core|test_vit3)": {"pool": "attention"},
    r"_clip_|^eva_|^eva02|^aimv2|vit_betwixt_.*_rope": OPENAI,
    OF_IMAGENET: IMAGENET,
    r"_reg\d_gap_256|medium_patch16_gap|flexivit|^test": {"crop": 0.95},
    r"^(?!.*(siglip|eva_giant_.*_clip|patch32_clip_quickgelu|medium_patch|eva02.*_224)).*"
    rf"({WHOLE})": {"crop": 1.0},
    r"so400m_patch14_siglip_gap_(384|448|896)|so150m2_.*_reg1": {"crop": 1.0},
    r"base_patch16_clip_224|beitv2_large|^vit_medium_.*_384": {"crop": 0.95},
    r"^vit.*_clip_|^aimv2|^beit3|^vit_pe": {"norm_eps": 1e-5},
    r"quickgelu": {"gelu": "quick"},
    r"^eva02_.*_448": {"fit": "squash"},
    r"^vit_pe_core": {"pool_heads": 8},
    r"_rpn_|eva02_enormous": {"norm_order": "after"},
    r"^test_vit3": {"pool_prefix": True},
    r"(base_patch32|giantopt_patch16|so400m_patch16)_siglip|large_patch16_siglip_(gap_)?512": {
        "gelu": "tanh"
    },
    r"dinov3": {"norm_eps": 1e-5, "pool": "mean"},
    r"lingbot": {"norm_eps": 1e-5, "pool": "token", "interpolation": "bilinear", "crop": 1.0},
    r"tipsv2|miil": {"mean": (0.0,) * 3, "std": (1.0,) * 3, "crop": 1.0},
    r"miil": {"crop": 0.875, "interpolation": "bilinear"},
}
# Weights of one name differ in how images are normalized: OpenAI's, LAION's, or fine-tuned ones.
VARY = {"vit_large_patch14_clip_224", "vit_large_patch14_clip_336"}
TURNED: Arguments = {"use_rot_pos_emb": True}
EVA02 = TURNED | {"ref_feat_shape": 16}
ROPE_VIT = TURNED | {"rope_grid_indexing": "xy", "rope_temperature": 100.0}
MIXED = ROPE_VIT | {"rope_type": "mixed", "rope_temperature": 10.0}
PE = TURNED | {"rope_grid_indexing": "xy", "rope_grid_offset": 1.0, "ref_feat_shape": 32}
DINOV3 = TURNED | {"rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True}
NAMED: dict[str, Arguments] = {
    r"^eva02_(?!enormous)|_rope_reg\d": EVA02,
    r"_rope_(ape_)?\d{3}$": ROPE_VIT,
    r"_rope_mixed_": MIXED,
    r"^vit_pe_": PE,
    r"^vit_pe_core_(tiny|small|large)_": {"ref_feat_shape": 24},
    r"^vit_pe_core_base_": {"ref_feat_shape": 14},
    r"^vit_pe_[a-z]+_gigantic_": {"rope_grid_offset": 0.0},
    r"dinov3|lingbot": DINOV3,
}


def known(architecture: str) -> bool:
    """Return whether a name is one of timm's architectures, as far as this table knows them."""
    words = all(WORDS.fullmatch(word) for word in architecture.split("_"))
    return words and bool(WHOLE_NAME.fullmatch(architecture))


def stem_of(name: Any) -> str:
    """Return the architecture that a name with or without a tag is of; empty for any other."""
    stem = name.partition(".")[0] if isinstance(name, str) else ""
    return stem if known(stem) else ""


def check_supported(architecture: str) -> None:
    """Refuse a family that our model cannot represent.

    Raises:
        WeightsError: it is one.
    """
    for pattern, why in UNSUPPORTED.items():
        if re.fullmatch(pattern, architecture):
            raise WeightsError(f"unsupported model {architecture}: it has {why}")


def implied(architecture: str) -> dict[str, Any]:
    """Return the fields that a known architecture's name stands for."""
    heads = [count for pattern, count in HEADS.items() if re.search(pattern, architecture)]
    usual = {
        "heads": heads[-1], "norm_eps": 1e-6, "gelu": "exact", "pool": "token",
        "interpolation": "bicubic", "crop": 0.9, **INCEPTION,
    }  # fmt: skip
    return usual | _found(FIELDS, architecture)


def named_rotary(architecture: str) -> Arguments:
    """Return the arguments that an architecture stands for; empty if it has no rotary positions."""
    return _found(NAMED, architecture)


def _found(table: Mapping[str, dict[str, Any]], architecture: str) -> dict[str, Any]:
    """What all rows whose pattern a name contains say together."""
    rows = [row for pattern, row in table.items() if re.search(pattern, architecture)]
    return {key: value for row in rows for key, value in row.items()}


def settled(name: str) -> dict[str, Any]:
    """Return the fields that a name given by the user settles: timm's, or the papers' notation.

    Raises:
        OptionError: neither knows it.
    """
    if not name:
        return {}
    if stem := stem_of(name):
        return {"fit": "crop", **implied(stem)}
    return {"heads": getattr(config_of(name), "heads", 1)}


def registers_in(architecture: str) -> int | None:
    """Return the number of registers that a name states."""
    found = re.search(r"_reg(\d+)_", architecture)
    return int(found[1]) if found else None


def size_in(architecture: str) -> int | None:
    """Return the image size that a name states or stands for."""
    if re.search("dinov3|lingbot", architecture):
        return 256 if "dinov3" in architecture else 512
    found = re.search(r"_(\d{3})(_|$)", architecture)
    return int(found[1]) if found else None
