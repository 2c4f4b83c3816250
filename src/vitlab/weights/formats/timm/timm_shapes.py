"""The configuration of a file with timm's names: what its tensors show, and what is known."""

import math
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.weights.formats.dialects.dialects import Layout
from vitlab.weights.formats.names import FoundParts
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints
from vitlab.weights.formats.shapes import fields_shown, fitting, overlap, patches_of
from vitlab.weights.formats.timm.architectures import registers_in
from vitlab.weights.formats.timm.arguments import NAME, floored
from vitlab.weights.formats.timm.timm_facts import Known
from vitlab.weights.source import Source


def fields_of(source: Source, file: Layout, known: Known, hints: Hints) -> tuple[Facts, bool, bool]:
    """Return the fields of the configuration, and which tokens have positions of their own.

    Args:
        source: for messages
        file: its tensors in their dialect
        known: beside the tensors
        hints: of the user, which take precedence

    Returns:
        The fields; whether the class token has a position; whether the registers have.

    Raises:
        WeightsError: an unsupported layout, or something that neither file nor hints say.
    """
    shown = fields_shown(source.path, file.parts, NAME)
    tokens = {name: shown.pop(name) for name in ("registers", "class_token")}
    facts = Facts().put(Origin.TENSORS, shown)
    facts.values |= known.facts.values
    facts.origins |= known.facts.origins
    facts.put(Origin.TENSORS, tokens)
    if shown.get("stem") == "resnet":
        facts.put(Origin.TENSORS, {"resnet": "timm"})
    _pool(facts, file.parts, known)
    named = registers_in(known.architecture)
    if named and facts.values["registers"] != named:
        raise WeightsError(
            f"{source.path}: tensor reg_token of {named} registers is missing "
            f"({known.architecture})"
        )
    rows = _positions(source, file, facts, known, hints)
    facts.put(Origin.OPTION, hints.choices)
    _heads(source, file.parts, facts)
    return facts, *rows


def _pool(facts: Facts, parts: FoundParts, known: Known) -> None:
    """Put what the classifier sees, and forget a class token that this implies."""
    token, told = "token" in parts, facts.origins.get("pool")
    named = facts.values.get("pool", "token") if told in (None, Origin.NAME) else ""
    mean = not token and (named == "attention" or facts.values.get("pool", "token") == "token")
    asked = any(known.arguments.get(name) for name in ("fc_norm", "use_fc_norm"))
    normed = "pooled_norm.weight" in parts and named == "token" and not asked
    both = parts.shape("head.weight")[-1] == 2 * parts.width
    if "queries" in parts:
        facts.put(Origin.TENSORS, {"pool": "attention"})
        wide = parts.shape("pool_expand.weight")[0]
        facts.put(Origin.TENSORS, {"pool_mlp": 0 if wide == facts.values["mlp"] else wide})
        if known.pairs is not None and (token or facts.values["registers"]):
            facts.put(Origin.FAMILY, {"pool_prefix": True})  # in eva.py
    elif both and token:  # or the class token beside one register, in our own names
        one = facts.values["registers"] == 1
        facts.put(Origin.ASSUMED if one else Origin.TENSORS, {"pool": "both"})
    elif "heads.weight" in parts:
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
    source: Source, file: Layout, facts: Facts, known: Known, hints: Hints
) -> tuple[bool, bool]:
    """Put kind of positions and image size into the fields.

    Args:
        source: for messages
        file: its tensors
        facts: patch and registers, and the positions of a file that stores none
        known: the size that the file had
        hints: that, or the size that the model will have

    Returns:
        Whether the class token and the registers have positions.
    """
    parts = file.parts
    patch, registers = int(facts.values["patch"]), int(facts.values["registers"])
    stated = [s for s in (hints.choices.get("image_size"), known.image_size) if s]
    wanted = [hints.image_size] if hints.image_size else []
    if {"bias_table", "shared_table"} & parts.shapes.keys():
        facts.put(Origin.TENSORS, _bias_positions(parts, patch, [*stated, *wanted]))
        return True, False
    if "rope" in hints.choices.get("positions", "") and known.pairs is None:
        raise WeightsError(
            f"{source.path} does not say which channels rotary positions turn together: give "
            "--name with the model's name in timm"
        )
    if "positions" not in parts:
        _unplaced(source, facts, known, hints, [*stated, *wanted])
        return True, False
    certain = bool(known.architecture) or "class_q.weight" in parts
    doubtful = not certain and _like_rope_vit(file)
    if facts.values.get("positions") == "rope":
        facts.put(facts.origins["positions"], {"positions": "1d+rope"})
    else:
        facts.put(Origin.ASSUMED if doubtful else Origin.TENSORS, {"positions": "1d"})
    length = (*parts.shape("positions"), 0)[1]
    for candidates in (stated, None, wanted):
        for own_row, register_rows in _layouts(file, registers):
            count = length - own_row - registers * register_rows
            if found := fitting(candidates, patch, count):
                said = fitting(wanted, patch, count)  # what is said wins over a guess
                guess = candidates is None and not (said or certain)
                origin = Origin.ASSUMED if guess else Origin.TENSORS
                facts.put(origin, {"image_size": said or found})
                return own_row, register_rows
    for size in [*stated, *wanted]:
        if step := overlap(size, patch, length - _layouts(file, registers)[0][0]):
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


def _like_rope_vit(file: Layout) -> bool:
    """Whether a file is named like DeiT-III's own, which RoPE-ViT's with positions are too."""
    own = any(name.endswith("blocks.0.gamma_1") for name in file.stored.values())
    return own and "blocks.0.attn.qkv.bias" in file.shapes and not file.parts.counted("b")


def _layouts(file: Layout, registers: int) -> list[tuple[bool, bool]]:
    """Which of class token and registers may have positions, the usual layout first."""
    token = "token" in file.parts and "class_q.weight" not in file.parts
    if "dist_token" in file.shapes:
        return [(token, True)]
    return [(token, False), (False, False), *([(token, True)] if registers else [])]


def _bias_positions(parts: FoundParts, patch: int, sizes: list[Size]) -> dict[str, Any]:
    """The fields of BEiT's tables, which have a row per offset and 3 for the class token."""
    shared = "shared_table" in parts
    table = parts.shape("shared_table" if shared else "bias_table")
    offsets = table[0] - 3 * ("token" in parts)
    image_size: Size = (math.isqrt(max(offsets, 0)) + 1) // 2 * patch
    for size in sizes:
        rows, columns = patches_of(size, patch)
        if (2 * rows - 1) * (2 * columns - 1) == offsets:
            image_size = (rows * patch, columns * patch)
            break
    at = "shared" if shared else "stem"
    kind = "1d+bias" if "positions" in parts else "bias"
    return {"positions": kind, "positions_at": at, "image_size": image_size}


def _heads(source: Source, parts: FoundParts, facts: Facts) -> None:
    """Put the heads that tables or norms with one row per head show, or ask for them."""
    if facts.origins.get("heads") is Origin.OPTION:
        return
    for key in {"bias_table", "shared_table"} & parts.shapes.keys():
        facts.put(Origin.TENSORS, {"heads": parts.shape(key)[1]})
    if "q_norm.weight" in parts:
        heads = parts.width // max(1, parts.shape("q_norm.weight")[0])
        facts.put(Origin.TENSORS, {"heads": heads})
    if "before.weight" in parts:
        facts.put(Origin.TENSORS, {"heads": parts.shape("before.weight")[0]})
    if "heads" not in facts.values:
        raise WeightsError(
            f"{source.path} does not say how many heads a width of {parts.width} has: give "
            "--heads, or --name as in timm (in Python heads=…, name=…)"
        )
