"""The configuration of a file with timm's names, by the shapes of its tensors."""

import math
import re
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.config import map_stride
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.resnet_units import units_of
from vitlab.weights.formats.room import Hints
from vitlab.weights.formats.timm.architectures import registers_in
from vitlab.weights.formats.timm.arguments import NAME, floored
from vitlab.weights.formats.timm.timm_facts import Known
from vitlab.weights.formats.timm.timm_names import first_branch
from vitlab.weights.source import Shape, Source


def fields_of(
    source: Source, shapes: dict[str, Shape], known: Known, hints: Hints
) -> tuple[Facts, bool, bool]:
    """Return the fields of the configuration, and which tokens have positions of their own.

    Args:
        source: for messages
        shapes: by timm's names
        known: beside the tensors
        hints: of the user, which take precedence

    Returns:
        The fields; whether the class token has a position; whether the registers have.

    Raises:
        WeightsError: an unsupported layout, or something that neither file nor hints say.
    """
    facts = Facts().put(Origin.TENSORS, _encoder(source, shapes) | _ends(shapes))
    facts.put(Origin.TENSORS, _stem(source, shapes))
    facts.values |= known.facts.values
    facts.origins |= known.facts.origins
    facts.put(Origin.TENSORS, _tokens(shapes))
    _pool(facts, shapes, known)
    named = registers_in(known.architecture)
    if named and facts.values["registers"] != named:
        raise WeightsError(
            f"{source.path}: tensor reg_token of {named} registers is missing "
            f"({known.architecture})"
        )
    rows = _positions(source, shapes, facts, known, hints)
    facts.put(Origin.OPTION, hints.choices)
    _heads(source, shapes, facts)
    return facts, *rows


def _encoder(source: Source, shapes: dict[str, Shape]) -> dict[str, Any]:
    """The blocks: their number and size, and the parts that they have."""
    first = first_branch(shapes)
    blocks = {int(m[1]) for n in shapes if (m := re.match(r"blocks\.(\d+)\.", n))}
    branches = {int(m[1]) for n in shapes if (m := re.match(r"blocks\.0\.attns\.(\d+)\.", n))}
    contract = next((n for n in shapes if re.match(r"blocks\.0\..*fc2\.weight$", n)), "")
    if sorted(blocks) != list(range(len(blocks))) or not contract or len(shapes[contract]) != 2:
        raise WeightsError(f"{source.path}: {NAME}: unsupported encoder blocks")
    width, mlp = shapes[contract]
    if shapes.get(f"{first}attn.qkv.weight", (3 * width,))[0] != 3 * width:
        raise WeightsError(
            f"{source.path}: unsupported attention, whose heads together are not as wide as a token"
        )
    split = contract.replace("fc2", "fc1_g") in shapes
    gated = split or shapes.get(contract.replace("fc2", "fc1")) == (2 * mlp, width)
    scaled = f"{first}ls1.gamma" in shapes or f"{first}ls.gamma" in shapes
    return {
        "width": width,
        "depth": len(blocks),
        "mlp": mlp,
        "branches": max(1, len(branches)),
        "ffn": "swiglu" if gated else "mlp",
        "bias": f"{first}attn.proj.bias" in shapes,
        "qkv_bias": any(
            f"{first}attn.{n}" in shapes for n in ("q_bias", "qkv.bias", "q_proj.bias")
        ),
        "qk_norm": f"{first}attn.q_norm.weight" in shapes,
        "norm": _norm(shapes, first),
        "norm_inner_attention": f"{first}attn.norm.weight" in shapes,
        "norm_inner_mlp": contract.replace("fc2", "norm") in shapes,
        "layer_scale": 1e-5 if scaled else 0,
    }


def _norm(shapes: dict[str, Shape], first: str) -> str:
    """The kind of norm: RMSNorm has no bias."""
    norms = [name for name in (f"{first}norm", f"{first}norm1") if f"{name}.weight" in shapes]
    return "rms" if norms and f"{norms[0]}.bias" not in shapes else "layer"


def _ends(shapes: dict[str, Shape]) -> dict[str, Any]:
    """What stands before and after the blocks."""
    after = "tokens" if "norm.weight" in shapes else "none"
    return {
        "pre_norm": "norm_pre.weight" in shapes,
        "norm_at": "pooled" if "fc_norm.weight" in shapes else after,
        "classes": shapes.get("head.weight", (0,))[0],
        "pre_logits": shapes.get("pre_logits.fc.weight", (0,))[0],
    }


def _stem(source: Source, shapes: dict[str, Shape]) -> dict[str, Any]:
    """Patch, channels and kind of stem."""
    if "patch_embed.proj.0.weight" in shapes:
        convolutions = [n for n in shapes if re.fullmatch(r"patch_embed\.proj\.\d+\.weight", n)]
        kernels = [shapes[n] for n in sorted(convolutions) if len(shapes[n]) == 4]
        if not kernels or kernels[0][2:] != (4, 4):
            raise WeightsError(f"{source.path}: {NAME}: unsupported layers in patch_embed.proj")
        batch = any(name.endswith("running_mean") for name in shapes)
        norms = len(convolutions) > len(kernels)
        return {
            "stem": "hmlp", "patch": 4 * 2 ** (len(kernels) - 1), "channels": kernels[0][1],
            "stem_norm": ("batch" if batch else "layer") if norms else "none",
        }  # fmt: skip
    kernel = shapes["patch_embed.proj.weight"]
    if len(kernel) != 4:
        raise WeightsError(f"{source.path}: {NAME}: patch_embed.proj.weight has shape {kernel}")
    side, channels = kernel[2], kernel[1]
    if not any(name.startswith("patch_embed.backbone.") for name in shapes):
        # none only before a norm, as CLIP has it; else a file without it is damaged
        bias = "patch_embed.proj.bias" in shapes or "norm_pre.weight" not in shapes
        normed = "layer" if "patch_embed.norm.weight" in shapes else "none"
        return {"patch": side, "channels": channels, "stem_bias": bias, "stem_norm": normed}
    stages = units_of(shapes, r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
    root = "patch_embed.backbone.conv" if not stages else "patch_embed.backbone.stem.conv"
    if f"{root}.weight" not in shapes:
        raise WeightsError(f"{source.path}: {NAME}: unsupported ResNet in patch_embed.backbone")
    return {
        "stem": "resnet", "stages": stages, "patch": side * map_stride(stages), "resnet": "timm",
        "channels": shapes[f"{root}.weight"][1],
    }  # fmt: skip


def _tokens(shapes: dict[str, Shape]) -> dict[str, Any]:
    """Registers and class token."""
    registers = shapes.get("reg_token", shapes.get("dist_token", (1, 0)))[1]
    return {"registers": registers, "class_token": "cls_token" in shapes}


def _pool(facts: Facts, shapes: dict[str, Shape], known: Known) -> None:
    """Put what the classifier sees, and forget a class token that this implies."""
    token, told = "cls_token" in shapes, facts.origins.get("pool")
    named = facts.values.get("pool", "token") if told in (None, Origin.NAME) else ""
    mean = not token and (named == "attention" or facts.values.get("pool", "token") == "token")
    asked = any(known.arguments.get(name) for name in ("fc_norm", "use_fc_norm"))
    normed = "fc_norm.weight" in shapes and named == "token" and not asked
    both = shapes.get("head.weight", (0, 0))[-1] == 2 * facts.values["width"]
    if "attn_pool.latent" in shapes:
        facts.put(Origin.TENSORS, {"pool": "attention"})
        wide = shapes.get("attn_pool.mlp.fc1.weight", (0,))[0]
        facts.put(Origin.TENSORS, {"pool_mlp": 0 if wide == facts.values["mlp"] else wide})
        if known.pairs is not None and (token or facts.values["registers"]):
            facts.put(Origin.FAMILY, {"pool_prefix": True})  # in eva.py
    elif both and token:  # or the class token beside one register, in our own names
        one = facts.values["registers"] == 1
        facts.put(Origin.ASSUMED if one else Origin.TENSORS, {"pool": "both"})
    elif "head_dist.weight" in shapes:
        facts.put(Origin.TENSORS, {"pool": "prefix"})
    elif mean or normed:
        facts.put(Origin.TENSORS, {"pool": "mean"})
    else:
        facts.fill(Origin.NAME if known.architecture else Origin.ASSUMED, {"pool": "token"})
    if token == (facts.values["pool"] in ("token", "both")):
        facts.values["class_token"] = None
    of_pool = {"pool_heads": ("attention",), "pool_prefix": ("attention", "mean")}
    for name, pools in of_pool.items():
        if facts.values["pool"] not in pools:
            facts.values.pop(name, None)


def _positions(
    source: Source, shapes: dict[str, Shape], facts: Facts, known: Known, hints: Hints
) -> tuple[bool, bool]:
    """Put kind of positions and image size into the fields.

    Args:
        source: for messages
        shapes: by timm's names
        facts: patch and registers, and the positions of a file that stores none
        known: the size that the file had
        hints: that, or the size that the model will have

    Returns:
        Whether the class token and the registers have positions.
    """
    patch, registers = int(facts.values["patch"]), int(facts.values["registers"])
    stated = [s for s in (hints.choices.get("image_size"), known.image_size) if s]
    wanted = [hints.image_size] if hints.image_size else []
    if any(name.endswith("relative_position_bias_table") for name in shapes):
        facts.put(Origin.TENSORS, _bias_positions(shapes, patch, [*stated, *wanted]))
        return True, False
    if "rope" in hints.choices.get("positions", "") and known.pairs is None:
        raise WeightsError(
            f"{source.path} does not say which channels rotary positions turn together: give "
            "--name with the model's name in timm"
        )
    if "pos_embed" not in shapes:
        _unplaced(source, facts, known, hints, [*stated, *wanted])
        return True, False
    doubtful = not known.architecture and _like_rope_vit(source, shapes)
    if facts.values.get("positions") == "rope":
        facts.put(facts.origins["positions"], {"positions": "1d+rope"})
    else:
        facts.put(Origin.ASSUMED if doubtful else Origin.TENSORS, {"positions": "1d"})
    length = shapes["pos_embed"][1] if len(shapes["pos_embed"]) == 3 else 0
    for candidates in (stated, None, wanted):
        for own_row, register_rows in _layouts(shapes, registers):
            count = length - own_row - registers * register_rows
            if found := _fitting(candidates, patch, count):
                said = _fitting(wanted, patch, count)  # what is said wins over a guess
                guess = candidates is None and not (said or known.architecture)
                origin = Origin.ASSUMED if guess else Origin.TENSORS
                facts.put(origin, {"image_size": said or found})
                return own_row, register_rows
    for size in [*stated, *wanted]:
        if step := overlap(size, patch, length - _layouts(shapes, registers)[0][0]):
            raise WeightsError(
                f"{source.path} has overlapping patches, one every {step} pixels, which no model "
                f"here has: train one with patch={step} or patch={patch}"
            )
    raise WeightsError(
        f"{source.path}: {length} positions do not form a square of patches: give "
        "image_size=(rows, columns), the size in pixels that they are for"
    )


def _unplaced(source: Source, facts: Facts, known: Known, hints: Hints, sizes: list[Size]) -> None:
    """Put the positions of a file that stores none."""
    if "positions" not in facts.values and known.arguments.get("pos_embed") in ("none", ""):
        facts.put(Origin.FILE, {"positions": "none"})
    if "positions" not in facts.values and "positions" not in hints.choices:
        raise WeightsError(
            f"{source.path}: {NAME}: no positions are stored, and only DINOv3 is known to compute "
            "them: give positions='none' or name=… if this is right"
        )
    patch = int(facts.values["patch"])
    if sizes:
        origin = Origin.FILE if known.image_size else Origin.OPTION
        facts.put(origin, {"image_size": floored(sizes[0], patch)})
    else:
        facts.put(Origin.ASSUMED, {"image_size": floored(224, patch)})


def _like_rope_vit(source: Source, shapes: dict[str, Shape]) -> bool:
    """Whether a file is named like DeiT-III's own, which RoPE-ViT's with positions are too."""
    own = any(name.endswith("blocks.0.gamma_1") for name in source.shapes)
    return own and "blocks.0.attn.qkv.bias" in shapes and "attns" not in first_branch(shapes)


def _layouts(shapes: dict[str, Shape], registers: int) -> list[tuple[bool, bool]]:
    """Which of class token and registers may have positions, the usual layout first."""
    token = "cls_token" in shapes
    if "dist_token" in shapes:
        return [(token, True)]
    return [(token, False), (False, False), *([(token, True)] if registers else [])]


def _bias_positions(shapes: dict[str, Shape], patch: int, sizes: list[Size]) -> dict[str, Any]:
    """The fields of BEiT's tables, which have a row per offset and 3 for the class token."""
    name = next(n for n in shapes if n.endswith("relative_position_bias_table"))
    shared = name == "rel_pos_bias.relative_position_bias_table"
    offsets = shapes[name][0] - 3 * ("cls_token" in shapes)
    image_size: Size = (math.isqrt(max(offsets, 0)) + 1) // 2 * patch
    for size in sizes:
        rows, columns = _patches(size, patch)
        if (2 * rows - 1) * (2 * columns - 1) == offsets:
            image_size = (rows * patch, columns * patch)
            break
    at = "shared" if shared else "stem"
    kind = "1d+bias" if "pos_embed" in shapes else "bias"
    return {"positions": kind, "positions_at": at, "image_size": image_size}


def _fitting(sizes: list[Size] | None, patch: int, count: int) -> Size | None:
    """The first of some sizes that has `count` patches; for None, the square that has."""
    if sizes is None:
        side = math.isqrt(max(count, 0))
        return side * patch if side and side**2 == count else None
    for size in sizes:
        rows, columns = _patches(size, patch)
        if rows * columns == count:
            return rows * patch, columns * patch
    return None


def overlap(size: Size, patch: int, count: int) -> int:
    """Return the pixels from patch to patch if that many of them overlap in an image, else 0."""
    rows, columns = (size, size) if isinstance(size, int) else size
    steps = range(patch // 2, patch)
    return next(
        (n for n in steps if ((rows - patch) // n + 1) * ((columns - patch) // n + 1) == count), 0
    )


def _patches(size: Size, patch: int) -> tuple[int, int]:
    """Rows and columns of patches; the pixels that remain are never used."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows // patch, columns // patch


def _heads(source: Source, shapes: dict[str, Shape], facts: Facts) -> None:
    """Put the heads that tables or norms with one row per head show, or ask for them."""
    if facts.origins.get("heads") is Origin.OPTION:
        return
    for name, shape in shapes.items():
        if name.endswith("relative_position_bias_table"):
            facts.put(Origin.TENSORS, {"heads": shape[1]})
        elif name.endswith("q_norm.weight"):
            facts.put(Origin.TENSORS, {"heads": int(facts.values["width"]) // max(1, shape[0])})
    if "heads" not in facts.values:
        raise WeightsError(
            f"{source.path} does not say how many heads a width of {facts.values['width']} has: "
            "give heads=…, or name=… as in timm"
        )
