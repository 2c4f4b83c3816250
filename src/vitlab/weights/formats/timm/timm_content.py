"""Families with timm's names that their tensors give away, and what each stands for.

A file with nothing but tensors is one of these, or a plain Vision Transformer, of which the heads,
the form of GELU, epsilon and how images are normalized are only assumed.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.timm.architectures import EVA02, encoder_of_perception, shown_rotary
from vitlab.weights.source import Shape, Source

Shapes = Mapping[str, Shape]
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


def _has(*names: str) -> Callable[[Shapes], bool]:
    return lambda shapes: all(name in shapes for name in names)


def rotary(shapes: Shapes) -> bool:
    """Recognize DINOv3: no stored positions, but registers, a class token and LayerScale.

    Its keys have no bias, or a masked one; other families without positions are damaged.
    """
    marks = ("cls_token", "reg_token", "norm.weight", f"{FIRST}ls1.gamma")
    bias = f"{FIRST}attn.qkv.bias"
    keyless = bias not in shapes or f"{bias}_mask" in shapes
    return "pos_embed" not in shapes and keyless and all(mark in shapes for mark in marks)


def gated(shapes: Shapes) -> bool:
    """Return whether the first MLP's gate and value are one layer, or two."""
    first, last = (shapes.get(f"{FIRST}mlp.{n}.weight", (0, 0)) for n in ("fc1", "fc2"))
    return f"{FIRST}mlp.fc1_g.weight" in shapes or first[0] == 2 * last[-1]


def width(shapes: Shapes) -> int:
    """Return the channels of a token."""
    return (shapes.get("patch_embed.proj.weight") or shapes.get("norm.weight") or (0,))[0]


# What our model cannot represent, by a tensor's name or by several, and the reason.
BEYOND: tuple[tuple[Callable[[Shapes], bool], str], ...] = (
    (_has(f"{FIRST}attn.rel_pos.mlp.fc1.weight"), "positions from an MLP"),
    (_has("shared_rel_pos.mlp.fc1.weight"), "positions from an MLP"),
    (_has(f"{FIRST}attn.lambda_q1"), "differential attention"),
    (_has(f"{FIRST}in_proj.weight"), "attention and MLP in one layer"),
    (_has(f"{FIRST}attn.rel_pos_h"), "windows of attention, as in SAM"),
    (_has(f"{FIRST}attn.gate.weight"), "gated attention"),
    (
        lambda s: f"{FIRST}ls1.gamma" in s and f"{FIRST}ls2.gamma" not in s,
        "LayerScale on attention alone, as in Sapiens 2",
    ),
)
# Layouts of families that our model cannot represent, unless the architecture is another.
LAYOUTS: tuple[tuple[Callable[[Shapes], bool], str], ...] = (
    (
        lambda s: (
            {"reg_token", "cls_token"} <= s.keys()
            and not {"norm.weight", "fc_norm.weight"} & s.keys()
        ),
        "registers without a last norm, as in C-RADIO",
    ),
)
PLAINER = ("cls_token", f"{FIRST}ls1.gamma", f"{FIRST}attn.qkv.bias")


def check_content(path: object, shapes: Shapes, certain: bool) -> None:
    """Refuse families that only their tensors tell from those that our model represents.

    Args:
        path: for messages
        shapes: by timm's names
        certain: a supported architecture is known, so that doubtful layouts are its own

    Raises:
        WeightsError: the first reason.
    """
    for found, why in BEYOND if certain else (*BEYOND, *LAYOUTS):
        if found(shapes):
            raise WeightsError(f"{path}: unsupported model: it has {why}")
    if not certain and "fc_norm.weight" in shapes and not any(name in shapes for name in PLAINER):
        raise WeightsError(
            f"{path} may be another model, as in vit_base_patch16_rpn_224, whose norms follow "
            "attention and MLP: give --name with the model's name in timm"
        )


def facts_by_content(source: Source, shapes: Shapes, certain: bool) -> Facts:
    """Return what the tensors say of the fields that they do not show.

    Args:
        source: whose tensors may be read
        shapes: by timm's names, and by the file's own
        certain: the architecture is known, and says the rest
    """
    usual = USUAL_HEADS.get(width(shapes))
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
    for found, every, most in FAMILIES:
        if found(shapes):
            return facts.put(Origin.FAMILY, _of_width(every, shapes)).put(Origin.ASSUMED, most)
    if _dino2(shapes):
        _put_dino2(facts, shapes, source.kind == "npz")
    elif rotary(shapes):
        facts.put(Origin.FAMILY, {"norm_eps": 1e-5, "gelu": "exact", "positions": "rope"})
        facts.put(Origin.ASSUMED, {"crop": 1.0})
        if heads := DINOV3_HEADS.get(width(shapes)):
            facts.put(Origin.FAMILY, {"heads": heads})
        if "storage_tokens" in shapes:  # its own files
            facts.put(Origin.FAMILY, DINOV3)
            if width(shapes) == 1024 and "local_cls_norm.weight" in shapes:
                facts.put(Origin.FAMILY, SATELLITE)
        else:
            facts.put(Origin.ASSUMED, {"pool": "mean"})
    elif width(shapes) == 1536 and gated(shapes):  # DINOv2's giant; SigLIP's has 16
        facts.put(Origin.FAMILY, {"heads": 24})
    elif width(shapes) == 384 and _is_moco(source, shapes):
        facts.put(Origin.FAMILY, {"heads": 12, "interpolation": "bilinear", **PLAIN, **IMAGENET})
    return facts


def _of_width(facts: dict[str, Any], shapes: Shapes) -> dict[str, Any]:
    """A family's facts; heads are by width, and left out for a width that no release has."""
    heads = facts.get("heads", {}).get(width(shapes))
    return {k: v for k, v in facts.items() if k != "heads"} | ({"heads": heads} if heads else {})


def _aimv2(shapes: Shapes) -> bool:
    return f"{FIRST}norm1.bias" not in shapes and "patch_embed.norm.weight" in shapes


def _beit3(shapes: Shapes) -> bool:
    inner = f"{FIRST}attn.norm.weight" in shapes and f"{FIRST}mlp.norm.weight" in shapes
    return inner and f"{FIRST}attn.qkv.bias" in shapes and not gated(shapes)


def _eva02_enormous(shapes: Shapes) -> bool:
    return f"{FIRST}attn.q_bias" in shapes and "pos_embed" in shapes and width(shapes) == 1792


def _eva02(shapes: Shapes) -> bool:
    return shown_rotary(shapes) == EVA02


def _put_dino2(facts: Facts, shapes: Shapes, tips: bool) -> None:
    """Heads are 64 wide; TIPS publishes arrays, for images from 0 to 1.

    Others train with this code, so that only the released sizes are certain.
    """
    side, depth = shapes["patch_embed.proj.weight"][2], DINO2_DEPTHS.get(width(shapes), 0)
    ends = (f"blocks.{depth - 1}.ls1.gamma" in shapes, f"blocks.{depth}.ls1.gamma" in shapes)
    released = side == 14 and ends == (True, False)
    origin = Origin.FAMILY if released else Origin.ASSUMED
    resampling = "antialiased" if "register_tokens" in shapes else "scaled"
    usual = {"crop": 0.875, "interpolation": "bicubic", "fit": "crop", "resampling": resampling}
    facts.put(origin, {**IMAGENET, "heads": width(shapes) // 64, **usual, **(TIPS if tips else {})})
    facts.put(Origin.FAMILY, {**PLAIN, "pool": "token"})


def _table(shapes: Shapes) -> bool:
    return any(name.endswith("relative_position_bias_table") for name in shapes)


def _dino2(shapes: Shapes) -> bool:
    """DINOv2's own files, whose mask token is (1, D), and those of its followers."""
    scaled = f"{FIRST}ls1.gamma" in shapes and "pos_embed" in shapes
    return scaled and len(shapes.get("mask_token", ())) == 2


PLAIN = {"gelu": "exact", "norm_eps": 1e-6}
# What tells a family, its facts, and what differs between its releases.
FAMILIES: tuple[tuple[Callable[[Shapes], bool], dict[str, Any], dict[str, Any]], ...] = (
    (
        encoder_of_perception,
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
    (_table, PLAIN, INCEPTION),  # BEiT, BEiT v2
    (_has("norm_pre.weight"), {"norm_eps": 1e-5}, {"crop": 1.0, **OPENAI}),  # CLIP
    (_has(f"{FIRST}attn.q_bias", "pos_embed"), PLAIN, {"crop": 0.9, **OPENAI}),  # EVA
    (_has("attn_pool.latent"), {"norm_eps": 1e-6}, {"crop": 1.0, **INCEPTION}),  # SigLIP
    (_has("dist_token"), {**PLAIN, **IMAGENET}, {}),  # DeiT, distilled
    (_has("pre_logits.fc.weight"), {**PLAIN, **INCEPTION, "crop": 0.9}, {}),  # timm's first files
    (_has("decoder_pos_embed"), PLAIN, IMAGENET),  # MAE, which others train with on other images
    (_has("masked_embed"), {**PLAIN, **IMAGENET, "resampling": "scaled"}, {}),  # iBOT
)


def _is_moco(source: Source, shapes: Shapes) -> bool:
    """Recognize MoCo-v3's ViT-S, whose 12 heads are 32 wide, by its two models or fixed positions.

    Sines and cosines of rows, then of columns, with a zero row for the class token (vits.py of
    facebookresearch/moco-v3).
    """
    stored = next((name for name in source.shapes if name.endswith("pos_embed")), "")
    if re.search(r"\b(base|momentum)_encoder\.", source.in_file(stored)):
        return True
    shape = shapes.get("pos_embed", (0, 0, 0))
    side = int(max(shape[1] - 1, 0) ** 0.5) if len(shape) == 3 else 0
    if "cls_token" not in shapes or side < 1 or side**2 != shape[1] - 1:
        return False
    omega = 10_000 ** -(torch.arange(96, dtype=torch.float64) / 96)
    places = torch.arange(side, dtype=torch.float64)[:, None] * omega
    y, x = places.repeat_interleave(side, 0), places.repeat(side, 1)
    table = torch.cat([y.sin(), y.cos(), x.sin(), x.cos()], 1).float()
    return bool(torch.allclose(source.read(stored)[0, 1:], table, atol=1e-4))
