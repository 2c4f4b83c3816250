"""Rotary positions of timm's models: they leave no tensor, or learned frequencies alone.

What turns queries and keys, and by what, follows from the arguments of timm's eva.py, which an
architecture's name stands for, or its tensors, or config.json.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.source import Shape

Shapes = Mapping[str, Shape]
Arguments = dict[str, Any]
Pairs = Literal["", "ij", "xy"]
NEIGHBORS: dict[str, Pairs] = {"ij": "ij", "xy": "xy"}
KINDS = {"cat": "grid", "mixed": "mixed", "dinov3": "image"}
# The defaults of eva.py for what is stated here.
DEFAULTS: Arguments = {
    "use_rot_pos_emb": False, "rope_type": "cat", "rope_temperature": 1e4, "rope_grid_offset": 0.0,
    "rope_grid_indexing": "ij", "rope_rotate_half": False, "ref_feat_shape": None,
    "rope_mrope_section": None,
}  # fmt: skip
EVA02: Arguments = {"use_rot_pos_emb": True, "ref_feat_shape": 16}
ROPE_VIT: Arguments = {
    "use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_temperature": 100.0
}  # fmt: skip
MIXED: Arguments = ROPE_VIT | {"rope_type": "mixed", "rope_temperature": 10.0}
PE: Arguments = {
    "use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_grid_offset": 1.0,
    "ref_feat_shape": 32,
}  # fmt: skip
DINOV3: Arguments = {
    "use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0,
    "rope_rotate_half": True,
}  # fmt: skip
# By a pattern that a name contains; later ones take precedence.
NAMED: tuple[tuple[str, Arguments], ...] = (
    (r"^eva02_(?!enormous)|_rope_reg\d", EVA02),
    (r"_rope_(ape_)?\d{3}$", ROPE_VIT),
    (r"_rope_mixed_", MIXED),
    (r"^vit_pe_", PE),
    (r"^vit_pe_core_(tiny|small|large)_", {"ref_feat_shape": 24}),
    (r"^vit_pe_core_base_", {"ref_feat_shape": 14}),
    (r"^vit_pe_[a-z]+_gigantic_", {"rope_grid_offset": 0.0}),
    (r"dinov3|lingbot", DINOV3),
)


def named_rotary(architecture: str) -> Arguments:
    """Return the arguments that an architecture stands for; empty if it has no rotary positions."""
    found = [arguments for pattern, arguments in NAMED if re.search(pattern, architecture)]
    return {key: value for arguments in found for key, value in arguments.items()}


def shown_rotary(shapes: Shapes) -> Arguments:
    """Return the arguments of a family that its tensors give away; empty for any other."""
    first = "blocks.0."
    separate = f"{first}attn.q_proj.weight" in shapes and f"{first}mlp.fc1_g.weight" in shapes
    fused = f"{first}attn.q_bias" in shapes and "pos_embed" in shapes
    narrow, wide = (shapes.get(f"{first}mlp.{n}.weight", (0, 0)) for n in ("fc2", "fc1"))
    if "rope.freqs" in shapes or "freqs" in shapes:
        return MIXED
    if "pos_embed" in shapes and separate:
        return EVA02
    if fused and wide[0] == 2 * narrow[-1]:
        return EVA02
    if encoder_of_perception(shapes):
        token = "cls_token" in shapes
        side: int | None = math.isqrt(shapes["pos_embed"][1] - token)  # positions of the same grid
        side = None if "positional_embedding" in shapes else side  # its own code does not scale
        return PE | {"ref_feat_shape": side, "rope_grid_offset": float(token)}
    return {}


def encoder_of_perception(shapes: Shapes) -> bool:
    """Recognize Perception Encoder: a norm before the encoder as in CLIP, but another end."""
    pooled, after = (
        "attn_pool.latent" in shapes,
        "norm.weight" in shapes or "fc_norm.weight" in shapes,
    )
    named = "norm_pre.weight" in shapes and len(shapes.get("pos_embed", ())) == 3
    return named and (pooled or not after or "blocks.0.ls1.gamma" in shapes)


def rotary_fields(path: object, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of our configuration for arguments of eva.py, over its defaults.

    Args:
        path: for messages
        arguments: with use_rot_pos_emb

    Raises:
        WeightsError: a kind of rotary positions that our model cannot represent.
    """
    given = DEFAULTS | {key: arguments[key] for key in DEFAULTS if key in arguments}
    kind = KINDS.get(given["rope_type"])
    sides = given["ref_feat_shape"] or 0
    sides = sides if isinstance(sides, list | tuple) else (sides,)
    if kind is None or len({*sides}) != 1 or given["rope_mrope_section"] is not None:
        what = "rope_type" if kind is None else "ref_feat_shape"
        raise WeightsError(f"{path}: unsupported model_args {what}={given[what]!r} of timm")
    if kind != "grid" and given["rope_grid_offset"]:
        raise WeightsError(f"{path}: unsupported model_args rope_grid_offset of timm for {kind}")
    if given["rope_rotate_half"] and given["rope_grid_indexing"] == "xy":
        raise WeightsError(f"{path}: unsupported model_args rope_grid_indexing='xy' with halves")
    fields = {"rope_kind": kind, "rope_base": float(given["rope_temperature"])}
    if kind == "grid":
        fields |= {"rope_grid": int(sides[0]), "rope_offset": float(given["rope_grid_offset"])}
    return fields


def pairs_of(arguments: Mapping[str, Any]) -> Pairs:
    """Return how channels that turn together lie, as `Names.pairs`, for arguments of eva.py."""
    given = DEFAULTS | dict(arguments)
    return "" if given["rope_rotate_half"] else NEIGHBORS[given["rope_grid_indexing"]]


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
