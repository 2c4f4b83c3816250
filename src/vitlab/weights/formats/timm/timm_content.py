"""Families that tensors give away, and what each stands for that no tensor shows.

A file with nothing but tensors is one of these, or a plain Vision Transformer, of which the heads,
the form of GELU, epsilon and how images are normalized are only assumed.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.weights.formats.dialects import PLAIN, Layout
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.timm.architectures import DINOV3 as ROPE_DINOV3
from vitlab.weights.formats.timm.architectures import EVA02, MIXED, PE
from vitlab.weights.formats.timm.arguments import Arguments
from vitlab.weights.source import Source

Shows = Callable[[Layout], bool]
# Heads by width: 64 wide, or as in every model of that width.
USUAL_HEADS = {
    192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 576: 9, 640: 10, 768: 12, 832: 13,
    896: 14, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 16, 1664: 16,
}  # fmt: skip
AIMV2_HEADS = {1024: 8, 1536: 12, 2048: 16, 3072: 24}
# Of EVA-02, BEiT-3 and Perception Encoder.
EVEN_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1408: 16, 1536: 16, 1792: 16}
# Of DINOv3 (dinov3/hub/backbones.py of facebookresearch/dinov3).
DINOV3_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 20, 1536: 24, 4096: 32}
DINO2_DEPTHS = {384: 12, 768: 12, 1024: 24, 1536: 40}  # of DINOv2's releases, by width
DINOV3 = {"pool": "token", "interpolation": "bilinear", "fit": "squash", "crop": 1.0}
SATELLITE = {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)}  # SAT-493M
TIPS = {
    "resampling": "antialiased", "mean": (0.0,) * 3, "std": (1.0,) * 3, "fit": "squash",
    "interpolation": "bilinear", "crop": 1.0,
}  # fmt: skip
FIRST = "blocks.0."


def _has(*names: str) -> Shows:
    """Whether a file has tensors, by the dialect's names or as parts of a model."""
    return lambda file: all(name in file.shapes or name in file.parts for name in names)


def _keyless(file: Layout) -> bool:
    """Whether keys have no bias: there is none, a masked one, or one of queries and values."""
    return len(file.parts.theirs.get("qkv.bias", ())) in (0, 2)


def _dinov3(file: Layout) -> bool:
    """No stored positions, but registers, a class token and LayerScale; keys have no bias."""
    marks = _has("token", "registers", "norm.weight", "scale1")(file)
    return marks and "positions" not in file.parts and _keyless(file)


def _ends(file: Layout) -> bool:
    """Whether there is a last norm."""
    return "norm.weight" in file.parts or "pooled_norm.weight" in file.parts


def _perception(file: Layout) -> bool:
    """A norm before the encoder as in CLIP, but another end."""
    other = "queries" in file.parts or not _ends(file) or "scale1" in file.parts
    return _has("pre_norm.weight", "positions")(file) and other


def _eva02(file: Layout) -> bool:
    if "positions" not in file.parts or _perception(file):
        return False
    apart = [len(file.parts.theirs.get(key, ())) for key in ("qkv.weight", "expand.weight")]
    return apart == [3, 2] or (_has(f"{FIRST}attn.q_bias")(file) and file.parts.gated)


def _aimv2(file: Layout) -> bool:
    return "norm1.bias" not in file.parts and "patch_norm.weight" in file.parts


def _beit3(file: Layout) -> bool:
    inner = _has("attn_norm.weight", "mlp_norm.weight", "qkv.bias")(file)
    return inner and not _keyless(file) and not file.parts.gated


def _dino2(file: Layout) -> bool:
    """DINOv2's own files, whose mask token is (1, D), and those of its followers."""
    return _has("scale1", "positions")(file) and len(file.shapes.get("mask_token", ())) == 2


def _eva02_enormous(file: Layout) -> bool:
    return _has(f"{FIRST}attn.q_bias", "positions")(file) and file.parts.width == 1792


# What our model cannot represent, by a tensor's name or by several, and the reason.
BEYOND: tuple[tuple[Shows, str], ...] = (
    (_has(f"{FIRST}attn.rel_pos.mlp.fc1.weight"), "positions from an MLP"),
    (_has("shared_rel_pos.mlp.fc1.weight"), "positions from an MLP"),
    (_has(f"{FIRST}attn.lambda_q1"), "differential attention"),
    (_has(f"{FIRST}in_proj.weight"), "attention and MLP in one layer"),
    (_has(f"{FIRST}attn.rel_pos_h"), "windows of attention, as in SAM"),
    (_has(f"{FIRST}attn.gate.weight"), "gated attention"),
    (
        lambda file: "scale1" in file.parts and "scale2" not in file.parts,
        "LayerScale on attention alone, as in Sapiens 2",
    ),
)
PLAINER = ("token", "scale1", "qkv.bias")


def check_content(path: object, file: Layout, certain: bool) -> None:
    """Refuse families that only their tensors tell from those that our model represents.

    Args:
        path: for messages
        file: its tensors
        certain: a supported architecture is known, so that doubtful layouts are its own

    Raises:
        WeightsError: the first reason.
    """
    for shows, why in BEYOND:
        if shows(file):
            raise WeightsError(f"{path}: unsupported model: it has {why}")
    if not certain and _has("registers", "token")(file) and not _ends(file):
        raise WeightsError(
            f"{path}: unsupported model: it has registers without a last norm, as in C-RADIO"
        )
    plain = any(key in file.parts for key in PLAINER)
    if not certain and "pooled_norm.weight" in file.parts and not plain:
        raise WeightsError(
            f"{path} may be another model, as in vit_base_patch16_rpn_224, whose norms follow "
            "attention and MLP: give --name with the model's name in timm"
        )


def facts_by_content(source: Source, file: Layout, certain: bool) -> Facts:
    """Return what the tensors say of the fields that they do not show.

    Args:
        source: whose tensors may be read
        file: its tensors
        certain: the architecture is known, and says the rest
    """
    width = file.parts.width
    usual = USUAL_HEADS.get(width)
    facts = Facts().put(Origin.ASSUMED, {"heads": usual} if usual else {})
    facts.put(
        Origin.ASSUMED,
        {
            "gelu": "exact", "norm_eps": 1e-6, "interpolation": "bicubic", "crop": 0.875,
            "resampling": "bicubic", **IMAGENET,
        },
    )  # fmt: skip
    if certain:
        return facts
    facts.put(Origin.ASSUMED, {"fit": "crop"})
    for shows, every, most in FAMILIES:
        if shows(file):
            heads = every.get("heads", {}).get(width)
            always = {k: v for k, v in every.items() if k != "heads"}
            facts.put(Origin.FAMILY, always | ({"heads": heads} if heads else {}))
            return facts.put(Origin.ASSUMED, most)
    if _dino2(file):
        _put_dino2(facts, file, source.kind == "npz")
    elif _dinov3(file):
        _put_dinov3(facts, file)
    elif width == 1536 and file.parts.gated:  # DINOv2's giant; SigLIP's has 16
        facts.put(Origin.FAMILY, {"heads": 24})
    elif width == 384 and _is_moco(source, file):
        facts.put(Origin.FAMILY, {"heads": 12, "interpolation": "bilinear", **PLAIN, **IMAGENET})
    return facts


def rotary_by_content(file: Layout) -> Arguments:
    """Return the arguments of timm's eva.py that tensors give away; empty without rotary."""
    if "freqs" in file.parts:
        return MIXED
    if _perception(file):
        token = "token" in file.parts
        side: int | None = math.isqrt(file.parts.shape("positions")[1] - token)  # of the same grid
        if "positional_embedding" in file.shapes:  # its own code does not scale
            side = None
        return PE | {"ref_feat_shape": side, "rope_grid_offset": float(token)}
    return EVA02 if _eva02(file) else ROPE_DINOV3 if _dinov3(file) else {}


def _put_dino2(facts: Facts, file: Layout, tips: bool) -> None:
    """Heads are 64 wide; TIPS publishes arrays, for images from 0 to 1.

    Others train with this code, so that only the released sizes are certain.
    """
    width, depth = file.parts.width, len(file.parts.counted("n", ("scale1",)))
    released = file.parts.shape("patch.weight")[2:3] == (14,) and DINO2_DEPTHS.get(width) == depth
    origin = Origin.FAMILY if released else Origin.ASSUMED
    resampling = "antialiased" if "register_tokens" in file.shapes else "scaled"
    usual = {"crop": 0.875, "interpolation": "bicubic", "fit": "crop", "resampling": resampling}
    facts.put(origin, {**IMAGENET, "heads": width // 64, **usual, **(TIPS if tips else {})})
    facts.put(Origin.FAMILY, {**PLAIN, "pool": "token"})


def _put_dinov3(facts: Facts, file: Layout) -> None:
    width = file.parts.width
    facts.put(Origin.FAMILY, {"norm_eps": 1e-5, "gelu": "exact", "positions": "rope"})
    facts.put(Origin.ASSUMED, {"crop": 1.0})
    if heads := DINOV3_HEADS.get(width):
        facts.put(Origin.FAMILY, {"heads": heads})
    if "storage_tokens" not in file.shapes:
        facts.put(Origin.ASSUMED, {"pool": "mean"})
        return
    facts.put(Origin.FAMILY, DINOV3)  # its own files
    if width == 1024 and "local_cls_norm.weight" in file.shapes:
        facts.put(Origin.FAMILY, SATELLITE)


# What tells a family, its facts, and what differs between its releases.
FAMILIES: tuple[tuple[Shows, dict[str, Any], dict[str, Any]], ...] = (
    (
        _perception,
        {"norm_eps": 1e-5, "gelu": "exact", "pool_heads": 8, "heads": EVEN_HEADS},
        {"pool": "mean", "crop": 1.0, "resampling": "antialiased", **INCEPTION},
    ),
    (_aimv2, {"norm_eps": 1e-5, "heads": AIMV2_HEADS}, {"crop": 1.0, **OPENAI}),
    (_beit3, {"norm_eps": 1e-5, "gelu": "exact", "heads": EVEN_HEADS}, {"crop": 1.0}),
    (_eva02, {"norm_eps": 1e-6, "heads": EVEN_HEADS}, {"resampling": "antialiased", **OPENAI}),
    (
        _eva02_enormous,
        {**PLAIN, "norm_order": "after", "heads": EVEN_HEADS},
        {"crop": 0.9, "resampling": "antialiased", **OPENAI},
    ),
    (_has("rope.freqs"), PLAIN, {"resampling": "antialiased", "crop": 0.9}),  # RoPE-ViT
    (lambda file: bool(file.parts.offsets), PLAIN, INCEPTION),  # BEiT, BEiT v2
    (_has("pre_norm.weight"), {"norm_eps": 1e-5}, {"crop": 1.0, **OPENAI}),  # CLIP
    (_has(f"{FIRST}attn.q_bias", "positions"), PLAIN, {"crop": 0.9, **OPENAI}),  # EVA
    (_has("queries"), {"norm_eps": 1e-6}, {"crop": 1.0, **INCEPTION}),  # SigLIP
    (_has("dist_token"), {**PLAIN, **IMAGENET}, {}),  # DeiT, distilled
    (_has("pre_logits.weight"), {**PLAIN, **INCEPTION, "crop": 0.9}, {}),  # timm's first files
    (_has("decoder_pos_embed"), PLAIN, IMAGENET),  # MAE, which others train with on other images
    (_has("masked_embed"), {**PLAIN, **IMAGENET, "resampling": "scaled"}, {}),  # iBOT
)


def _is_moco(source: Source, file: Layout) -> bool:
    """Recognize MoCo-v3's ViT-S, whose 12 heads are 32 wide, by its two models or fixed positions.

    Sines and cosines of rows, then of columns, with a zero row for the class token (vits.py of
    facebookresearch/moco-v3).
    """
    stored = file.stored.get("pos_embed", "")
    if re.search(r"\b(base|momentum)_encoder\.", source.in_file(stored)):
        return True
    places = (*file.parts.shape("positions"), 0, 0)[1] - 1
    side = math.isqrt(max(places, 0))
    if "token" not in file.parts or side < 1 or side**2 != places:
        return False
    omega = 10_000 ** -(torch.arange(96, dtype=torch.float64) / 96)
    steps = torch.arange(side, dtype=torch.float64)[:, None] * omega
    y, x = steps.repeat_interleave(side, 0), steps.repeat(side, 1)
    table = torch.cat([y.sin(), y.cos(), x.sin(), x.cos()], 1).float()
    return bool(torch.allclose(source.read(stored)[0, 1:], table, atol=1e-4))
