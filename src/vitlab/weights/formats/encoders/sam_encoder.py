"""The image encoder of Segment Anything, as Meta, EfficientSAM, timm and transformers store it.

Source: facebookresearch/segment-anything (image_encoder.py), yformer/EfficientSAM
(efficient_sam_encoder.py), timm's vision_transformer_sam.py, transformers' modeling_sam.py.
"""

import math
import re
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.encoders.sam_names import canonical, entries, root_of
from vitlab.weights.formats.encoders.sam_stated import Stated, of_timm, of_transformers
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints, Reading
from vitlab.weights.source import Shape, Source

NAME, EFFICIENT = "Segment Anything", "EfficientSAM"
SCALED = (
    "Segment Anything scales the longer side of an image and pads the other; here images of "
    "another aspect ratio are squashed"
)
RELEASED_AT = 1024  # pixels at which EfficientSAM's encoders are used


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize Segment Anything's encoder: decomposed positions, or its neck.

    Raises:
        WeightsError: an unsupported variant, or a damaged file.
    """
    root = root_of(source)
    if root is None:
        return None
    stored = canonical(root, source)
    shapes = {name: source.shapes[old] for name, old in stored.items()}
    stated = _stated(source, hints, stored)
    if stated is None:
        return None
    facts = _facts(source, shapes, stated, hints)
    config = ViTConfig(**facts.values)
    efficient = _class_row(shapes)
    table = [
        entry.renamed(lambda name: stored.get(name, root + name))
        for entry in entries(config, efficient)
    ]
    if stated.check is not None:
        stated.check(config, {*hints.choices})
    left_out = {"(prompt_encoder|mask_decoder|shared_image_embedding)\\..*": "of the mask decoder"}
    left_out |= {"pixel_(mean|std)": "stated in the configuration"}
    left_out |= {f"(?!{re.escape(root)}).*": "not of the image encoder"} if root else {}
    if efficient:  # its images are squashed, and bigger than its positions were made for
        free = hints.image_size is None and RELEASED_AT % config.patch == 0
        size = RELEASED_AT if free else None
        return Reading(EFFICIENT, config, table, left_out, facts.origins, image_size=size)
    notes = () if stated.fitted else (SCALED,)
    return Reading(stated.label, config, table, left_out, facts.origins, notes)


def _stated(source: Source, hints: Hints, stored: dict[str, str]) -> Stated | None:
    """What stands beside the tensors; None if the configuration is that of another family."""
    if isinstance(source.config.get("model_type"), str) and "architecture" not in source.config:
        return of_transformers(source)
    return of_timm(source, hints, stored)


def _facts(source: Source, shapes: dict[str, Shape], stated: Stated, hints: Hints) -> Facts:
    """Every field: by the tensors, then by what stands beside them, then as the user says."""
    fields, grid = _encoder(source, shapes)
    facts = Facts().put(Origin.FAMILY, {"pool": "mean", "gelu": "exact", "norm_eps": 1e-6})
    facts.put(Origin.FAMILY, {"interpolation": "bilinear", "crop": 1.0, "fit": "squash"})
    facts.put(Origin.FAMILY, IMAGENET | {"resampling": "bicubic"})
    facts.put(Origin.TENSORS, fields)
    lengths = _lengths(source, shapes, fields["depth"])
    if found := _windows(source, lengths, grid):
        facts.put(Origin.TENSORS, found)
    elif lengths:  # one size of tables: all blocks are global, or the window is the grid
        facts.put(Origin.ASSUMED, {"window": 0, "global_blocks": ()})
    elif _class_row(shapes):  # EfficientSAM's blocks are all global
        facts.put(Origin.FAMILY, {"window": 0, "heads": fields["width"] // 64})
    for origin, values in stated.fields:
        facts.put(origin, values)
    facts.put(Origin.OPTION, hints.choices)
    _check_settled(source, facts)
    if facts.values["window"] == 0:
        facts.values["global_blocks"] = ()
    depth = fields["depth"]
    kept = tuple(n for n in facts.values.get("global_blocks", ()) if n < depth)
    facts.values["global_blocks"] = kept
    return facts


def _check_settled(source: Source, facts: Facts) -> None:
    for name in ("heads", "window"):
        if name not in facts.values:
            raise WeightsError(
                f"{source.path}: {NAME}: without relative positions, the tensors do not show "
                f"{name}: give --{name} (in Python: {name}=…)"
            )


def _encoder(source: Source, shapes: dict[str, Shape]) -> tuple[dict[str, Any], tuple[int, int]]:
    """The fields that the tensors show, and rows and columns of patches."""
    blocks = {int(m[1]) for name in shapes if (m := re.match(r"blocks\.(\d+)\.", name))}
    kernel, contract = shapes["patch_embed.proj.weight"], shapes.get("blocks.0.mlp.fc2.weight", ())
    if sorted(blocks) != list(range(len(blocks))) or len(contract) != 2 or len(kernel) != 4:
        raise WeightsError(f"{source.path}: {NAME}: unsupported encoder blocks")
    (width, mlp), tables = contract, shapes.get("blocks.0.attn.rel_pos_h")
    absolute, rows, columns = shapes.get("pos_embed"), 0, 0
    if absolute is not None and len(absolute) == 4:
        rows, columns = absolute[1:3]
    elif absolute is not None:
        rows = columns = math.isqrt(max(absolute[1] - 1, 0))
    elif tables is not None:
        rows = max((shapes[n][0] + 1) // 2 for n in shapes if n.endswith("rel_pos_h"))
        columns = max((shapes[n][0] + 1) // 2 for n in shapes if n.endswith("rel_pos_w"))
    kinds = [kind for kind, there in (("1d", absolute), ("decomposed", tables)) if there]
    neck = shapes["neck.0.weight"][0] if "neck.0.weight" in shapes else 0
    fields: dict[str, Any] = {
        "width": width, "depth": len(blocks), "mlp": mlp, "patch": kernel[2],
        "channels": kernel[1], "stem_bias": "patch_embed.proj.bias" in shapes,
        "pre_norm": "norm_pre.weight" in shapes,
        "image_size": (rows * kernel[2], columns * kernel[2]),
        "positions": "+".join(kinds) or "none", "neck": neck,
        "norm_at": "none" if neck else "tokens",
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in shapes else 0,
        "classes": shapes.get("head.fc.bias", (0,))[0],
    }  # fmt: skip
    if tables is not None and tables[1]:
        fields["heads"] = width // tables[1]
    return fields, (rows, columns)


def _class_row(shapes: dict[str, Shape]) -> bool:
    """Whether positions are EfficientSAM's, with a row for a class token that is not there."""
    return len(shapes.get("pos_embed", ())) == 3


def _lengths(source: Source, shapes: dict[str, Shape], depth: int) -> list[tuple[int, int]]:
    """The offsets in rows and columns that each block has tables for; empty without tables."""
    names = [f"blocks.{number}.attn.rel_pos_" for number in range(depth)]
    lengths = [(shapes.get(f"{n}h", (0,))[0], shapes.get(f"{n}w", (0,))[0]) for n in names]
    there = [length for length in lengths if all(length)]
    if there and len(there) < depth:
        number = next(n for n, length in enumerate(lengths) if not all(length))
        raise WeightsError(f"{source.path}: tensor {names[number]}h is missing ({NAME})")
    return there


def _windows(
    source: Source, lengths: list[tuple[int, int]], grid: tuple[int, int]
) -> dict[str, Any]:
    """The window and the global blocks; empty if all tables are as long as the grid asks for."""
    whole = (2 * grid[0] - 1, 2 * grid[1] - 1)
    others = {length for length in lengths if length != whole}
    if not others:
        return {}
    rows, columns = others.pop()
    if others or rows != columns or rows % 2 == 0:
        raise WeightsError(
            f"{source.path}: {NAME}: relative positions (rel_pos_h, rel_pos_w) of {rows} and "
            f"{columns} offsets are neither those of a square window nor of the grid of patches"
        )
    globals_ = tuple(number for number, length in enumerate(lengths) if length == whole)
    return {"window": (rows + 1) // 2, "global_blocks": globals_}
