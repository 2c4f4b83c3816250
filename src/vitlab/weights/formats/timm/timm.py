"""timm's names, which DeiT, MAE, DINO and BEiT's own files share but for a few words.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, beit.py, eva.py; the
checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3) and microsoft/unilm (beit).
"""

import math
import re
from typing import Any

from vitlab.errors import UserError
from vitlab.images import Size
from vitlab.models.config import ViTConfig, map_stride
from vitlab.weights.formats.timm.facts import Facts, facts_of
from vitlab.weights.formats.timm.table import NAME, Dialect, entries
from vitlab.weights.reading import Hints, Reading
from vitlab.weights.source import Shape, Source, units_of

ROOTS = ("patch_embed.proj.weight", "patch_embed.proj.0.weight")
LEFT_OUT = {
    r"mask_token|decoder.*": "for pre-training alone",
    r".*relative_position_index|rope_embed\..*|.*\.rope\..*": "computed here",
    r".*num_batches_tracked": "computed here",
    r"lm_head\..*|head\.(mlp|last_layer|prototypes).*": "for pre-training alone",
}
# What the papers' own files call otherwise than timm does.
ALIASES = (
    (r"^blocks\.\d+\.(\d+)\.(?=norm|attn|mlp|ls)", r"blocks.\1."),  # DINOv2's chunks
    (r"^(register_tokens|storage_tokens)$", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.gamma_1$", ".ls1.gamma"),
    (r"\.gamma_2$", ".ls2.gamma"),
)
# Two parallel branches in DeiT's own code (norm11, attn1, gamma_1_1, …).
PARALLEL = (
    (r"\.norm11\.", ".attns.1.norm."), (r"\.norm1\.", ".attns.0.norm."),
    (r"\.norm21\.", ".ffns.1.norm."), (r"\.norm2\.", ".ffns.0.norm."),
    (r"\.attn1\.", ".attns.1.attn."), (r"\.attn\.", ".attns.0.attn."),
    (r"\.mlp1\.", ".ffns.1.mlp."), (r"\.mlp\.", ".ffns.0.mlp."),
    (r"\.gamma_1_1$", ".attns.1.ls.gamma"), (r"\.gamma_1$", ".attns.0.ls.gamma"),
    (r"\.gamma_2_1$", ".ffns.1.ls.gamma"), (r"\.gamma_2$", ".ffns.0.ls.gamma"),
)  # fmt: skip


def reading(source: Source, hints: Hints) -> Reading | None:
    """What such a file says, or None for another format."""
    roots = [name for name in source.shapes if name.endswith(ROOTS)]
    if source.kind == "npz" or not roots:
        return None
    root = min(roots, key=len)
    prefix = root[: root.index("patch_embed.")]
    own = [name for name in source.shapes if name.startswith(prefix)]
    stored = canonical([name.removeprefix(prefix) for name in own])
    shapes = {name: source.shapes[prefix + old] for name, old in stored.items()}
    facts = facts_of(source, hints.name, shapes)
    config, dialect = _config(source, shapes, facts, hints)
    back = {name: prefix + old for name, old in stored.items()}
    table = [entry.renamed(lambda n: back.get(n, prefix + n)) for entry in entries(config, dialect)]
    if "head.weight" not in shapes and "head_dist.weight" in shapes:
        raise UserError(f"{source.path}: a distilled model without its first classifier")
    left_out = {re.escape(prefix) + f"({pattern})": why for pattern, why in LEFT_OUT.items()}
    left_out |= {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {}
    what = f"{NAME}, {facts.architecture}" if facts.architecture else f"{NAME}'s names"
    return Reading(what, config, table, left_out, facts.notes)


def canonical(names: list[str]) -> dict[str, str]:
    """The names in timm for each of these, and what they were."""
    rules = PARALLEL if any(".norm11." in name for name in names) else ALIASES
    renamed: dict[str, str] = {}
    for old in names:
        new = old
        for pattern, word in rules:
            new, count = re.subn(pattern, word, new)
            if count and rules is PARALLEL:
                break  # one word a name
        if new in renamed:
            raise UserError(f"tensors {renamed[new]} and {old} mean the same")
        renamed[new] = old
    return renamed


def _config(
    source: Source, shapes: dict[str, Shape], facts: Facts, hints: Hints
) -> tuple[ViTConfig, Dialect]:
    """The model of a file's shapes, and how the file writes it."""
    first = "blocks.0.attns.0." if "blocks.0.attns.0.norm.weight" in shapes else "blocks.0."
    blocks = {int(m[1]) for n in shapes if (m := re.match(r"blocks\.(\d+)\.", n))}
    branches = {int(m[1]) for n in shapes if (m := re.match(r"blocks\.0\.attns\.(\d+)\.", n))}
    contract = next((n for n in shapes if re.match(r"blocks\.0\..*fc2\.weight$", n)), "")
    if sorted(blocks) != list(range(len(blocks))) or not contract or len(shapes[contract]) != 2:
        raise UserError(f"{source.path}: {NAME}: no encoder blocks as known")
    width, mlp = shapes[contract]
    fc1 = shapes.get(contract.replace("fc2", "fc1"))
    split_gate = contract.replace("fc2", "fc1_g") in shapes
    fields: dict[str, Any] = {
        "width": width, "depth": len(blocks), "mlp": mlp, "branches": max(1, len(branches)),
        "ffn": "swiglu" if split_gate or fc1 == (2 * mlp, width) else "mlp",
        "bias": f"{first}attn.proj.bias" in shapes,
        "qk_norm": f"{first}attn.q_norm.weight" in shapes,
        "layer_scale": 1e-5 if f"{first}ls1.gamma" in shapes or f"{first}ls.gamma" in shapes else 0,
        "pre_norm": "norm_pre.weight" in shapes,
        "norm_at": "pooled" if "fc_norm.weight" in shapes
        else "tokens" if "norm.weight" in shapes else "none",
        "classes": shapes["head.bias"][0] if "head.bias" in shapes else 0,
        "resampling": "antialiased",
    }  # fmt: skip
    fields |= _stem(source, shapes) | _prefix(shapes, facts.fields)
    named = re.search(r"_reg(\d+)_", facts.architecture)
    if named and fields["registers"] != int(named[1]):
        raise UserError(
            f"{source.path}: tensor reg_token of {named[1]} registers is missing "
            f"({facts.architecture})"
        )
    split_bias = f"{first}attn.q_bias" in shapes
    if "qkv_bias" not in facts.fields:
        fields["qkv_bias"] = split_bias or f"{first}attn.qkv.bias" in shapes
    told = [size for size in (hints.choices.get("image_size"), facts.image_size) if size]
    wanted = [hints.image_size] if hints.image_size else []
    own_row, register_rows = _positions(source, shapes, fields, facts, (told, wanted))
    if fields["positions"] is None and "positions" not in hints.choices:
        raise UserError(
            f"{source.path}: {NAME}: no positions are stored, and only DINOv3's rotary ones are "
            "known to be computed: give positions='none' or name=… if this is right"
        )
    fields |= hints.choices
    fields["heads"] = _heads(source, shapes, fields)
    dialect = Dialect(
        own_row,
        register_rows,
        "dist_token" if "dist_token" in shapes else "reg_token",
        split_bias,
        f"{first}attn.qkv.bias_mask" in shapes,
        split_gate,
        distilled="head_dist.weight" in shapes,
    )
    return ViTConfig(**fields), dialect


def _stem(source: Source, shapes: dict[str, Shape]) -> dict[str, Any]:
    """Patch, channels and kind of stem."""
    if "patch_embed.proj.0.weight" in shapes:
        convolutions = [n for n in shapes if re.fullmatch(r"patch_embed\.proj\.\d+\.weight", n)]
        kernels = [shapes[n] for n in sorted(convolutions) if len(shapes[n]) == 4]
        if not kernels or kernels[0][2:] != (4, 4):
            raise UserError(f"{source.path}: {NAME}: patch_embed is no stem as known")
        batch = any(name.endswith("running_mean") for name in shapes)
        plain = len(convolutions) == len(kernels)
        return {
            "stem": "hmlp", "patch": 4 * 2 ** (len(kernels) - 1), "channels": kernels[0][1],
            "stem_norm": "none" if plain else "batch" if batch else "layer",
        }  # fmt: skip
    kernel = shapes["patch_embed.proj.weight"]
    if len(kernel) != 4:
        raise UserError(f"{source.path}: {NAME}: patch_embed.proj.weight has shape {kernel}")
    side, channels = kernel[2], kernel[1]
    if not any(name.startswith("patch_embed.backbone.") for name in shapes):
        # none only before a norm, as CLIP has it; else a file without it is damaged
        bias = "patch_embed.proj.bias" in shapes or "norm_pre.weight" not in shapes
        return {"patch": side, "channels": channels, "stem_bias": bias}
    stages = units_of(shapes, r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")
    root = "patch_embed.backbone.conv" if not stages else "patch_embed.backbone.stem.conv"
    if f"{root}.weight" not in shapes:
        raise UserError(f"{source.path}: {NAME}: the hybrid's ResNet is not one as known")
    return {
        "stem": "resnet", "stages": stages, "patch": side * map_stride(stages), "resnet": "timm",
        "channels": shapes[f"{root}.weight"][1],
    }  # fmt: skip


def _prefix(shapes: dict[str, Shape], facts: dict[str, Any]) -> dict[str, Any]:
    """What is known otherwise, and class token, registers, and what is pooled."""
    token, distilled = "cls_token" in shapes, "head_dist.weight" in shapes
    registers = shapes.get("reg_token", shapes.get("dist_token", (1, 0)))[1]
    pool = facts.get("pool", "token" if token else "mean")
    if "attn_pool.latent" in shapes:
        pool = "attention"
    elif "fc_norm.weight" in shapes:
        pool = "mean"
    elif distilled:
        pool = "prefix"
    own = {"class_token": True} if token and pool != "token" else {}
    return {**facts, "registers": registers, "pool": pool, **own}


def _positions(
    source: Source,
    shapes: dict[str, Shape],
    fields: dict[str, Any],
    facts: Facts,
    said: tuple[list[Size], list[Size]],
) -> tuple[bool, bool]:
    """Kind of positions and image size, into the fields; which tokens of the prefix have rows."""
    patch, token = int(fields["patch"]), "cls_token" in shapes
    shared = "rel_pos_bias.relative_position_bias_table"
    bias = next((n for n in shapes if n.endswith("relative_position_bias_table")), "")
    if bias:
        fields |= {"positions": "bias", "positions_at": "shared" if bias == shared else "stem"}
        offsets = shapes[bias][0] - 3 * token
        side = (math.isqrt(max(offsets, 0)) + 1) // 2
        fields["image_size"] = side * patch
        for size in (*said[0], *said[1]):
            rows, columns = (size, size) if isinstance(size, int) else tuple(size)
            if (2 * (rows // patch) - 1) * (2 * (columns // patch) - 1) == offsets:
                fields["image_size"] = (rows // patch * patch, columns // patch * patch)
                break
        return True, False
    if "pos_embed" not in shapes:
        fields["positions"] = facts.positions
        fields["image_size"] = next(iter((*said[0], *said[1])), 224)
        return True, False
    fields["positions"] = "1d"
    length = shapes["pos_embed"][1] if len(shapes["pos_embed"]) == 3 else 0
    registers = int(fields["registers"])
    layouts = [(token, False), (False, False), *([(token, True)] if registers else [])]
    if "dist_token" in shapes:
        layouts = [(token, True)]
    for sizes in (said[0], None, said[1]):  # the size it had, a square, the size it shall have
        for own_row, register_rows in layouts:
            count = length - own_row - registers * register_rows
            if found := _fitting(sizes, patch, count):
                fields["image_size"] = found
                return own_row, register_rows
    raise UserError(
        f"{source.path}: {length} positions are no square of patches: give "
        "image_size=(rows, columns), the size in pixels that they are for"
    )


def _fitting(said: list[Size] | None, patch: int, count: int) -> Size | None:
    """The first of the sizes said that has so many patches; None said: a square that has."""
    side = math.isqrt(max(count, 0))
    if said is None:
        return side * patch if side and side**2 == count else None
    for size in said:
        rows, columns = (size, size) if isinstance(size, int) else tuple(size)
        rows, columns = rows // patch, columns // patch  # what is left over is never seen
        if rows * columns == count:
            return rows * patch, columns * patch
    return None


def _heads(source: Source, shapes: dict[str, Shape], fields: dict[str, Any]) -> int:
    """From the tables or norms of heads, from the name, or from the width where it is usual."""
    if "heads" in fields:
        return int(fields["heads"])
    for name, shape in shapes.items():
        if name.endswith("relative_position_bias_table"):
            return shape[1]
        if name.endswith("q_norm.weight"):
            return int(fields["width"]) // max(1, shape[0])
    if heads := USUAL_HEADS.get(int(fields["width"])):
        return heads
    raise UserError(
        f"{source.path} does not say how many heads a width of {fields['width']} has: "
        "give heads=…, or name=… as in timm"
    )


USUAL_HEADS = {
    192: 3, 256: 4, 320: 5, 384: 6, 512: 8, 576: 9, 640: 10, 768: 12, 832: 13,
    896: 14, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16,
}  # fmt: skip
