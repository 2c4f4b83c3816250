"""The image encoder of Segment Anything, as Meta, EfficientSAM, timm and transformers store it.

Source: facebookresearch/segment-anything (image_encoder.py), yformer/EfficientSAM
(efficient_sam_encoder.py), timm's vision_transformer_sam.py, transformers' modeling_sam.py.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.dialects import TIMM, respelled
from vitlab.weights.formats.entries import table
from vitlab.weights.formats.format_api import Hints, Reading
from vitlab.weights.formats.names import FoundParts, fields_shown, found
from vitlab.weights.formats.origins import Facts
from vitlab.weights.formats.records import record, rules, words
from vitlab.weights.formats.timm.arguments import check_arguments, stated
from vitlab.weights.formats.timm.config_json import arguments_in, recorded
from vitlab.weights.formats.transformers.config_json import check_keys, our_value
from vitlab.weights.sharded import Fields
from vitlab.weights.source import Source

NAME, EFFICIENT = "Segment Anything", "EfficientSAM"
SCALED = (
    "Segment Anything scales the longer side of an image and pads the other; here images of "
    "another aspect ratio are squashed"
)
AXES = ("rows", "columns")  # of relative positions
RELEASED_AT = 1024  # pixels at which EfficientSAM's encoders are used
PATCH = re.compile(r"(.*?)patch_embed\.proj(ection)?\.weight")
MARKS = re.compile(r"(blocks|layers)\.0\.attn\.rel_pos_h|neck\.(0|conv1)\.weight|neck\.weight")
# Words of Meta's code and of transformers, in place of timm's.
WORDS = rules(r"""
    ^neck\.conv1\.              neck.0.
    ^neck\.layer_norm1\.        neck.1.
    ^neck\.conv2\.              neck.2.
    ^neck\.layer_norm2\.        neck.3.
    ^layers\.                   blocks.
    \.layer_norm([12])\.        .norm\1.
    ^patch_embed\.projection\.  patch_embed.proj.
    \.mlp\.lin([12])\.          .mlp.fc\1.
""")
NAMES = TIMM | table("""
    positions           gridded(pos_embed)
    rows                .attn.rel_pos_h
    columns             .attn.rel_pos_w
    norm                neck
    head                head.fc
    neck_reduce.weight  pointwise(neck.0.weight)
    neck_norm1          neck.1
    neck_mix.weight     neck.2.weight
    neck_norm2          neck.3
""")
PLACES = "positions with_unused_row(pos_embed)"  # of EfficientSAM
# timm's architectures, and their blocks without windows.
SAMVIT = record("""
    samvit_base_patch16 [2,5,8,11], samvit_base_patch16_224 [2,5,8,11],
    samvit_large_patch16 [5,11,17,23], samvit_huge_patch16 [7,15,23,31]
""")
MODEL_TYPES = ("sam", "sam_vision_model", "sam_hq", "sam_hq_vision_model")
# Fields of ours by the keys of transformers' SamVisionConfig and of timm's arguments.
KEYS = record("""
    num_attention_heads heads, layer_norm_eps norm_eps, window_size window,
    global_attn_indexes global_blocks, image_mean mean, image_std std
""")
DEFAULTS = record("heads 12, window 14, norm_eps 1e-6") | {"global_blocks": (2, 5, 8, 11)}
# Keys that the tensors show, against which the model is checked, and those of the mask decoder.
KNOWN = words("""
    hidden_size output_channels num_hidden_layers num_channels image_size patch_size qkv_bias
    mlp_ratio mlp_dim use_abs_pos use_rel_pos hidden_act num_pos_feats scale intermediate_size
    projection_dim
""")


@dataclass(frozen=True)
class Said:
    """What a configuration beside the tensors says.

    Attributes:
        label: the format, in words
        fields: of the configuration, with their origin, the most certain last
        fitted: whether it says how images are prepared
        arguments: of timm's constructor, to be compared with the model
    """

    label: str
    fields: Sequence[tuple[str, Fields]] = ()
    fitted: bool = False
    arguments: Fields = field(default_factory=dict)


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize Segment Anything's encoder: decomposed positions, or its neck.

    Raises:
        WeightsError: an unsupported variant, or a damaged file.
    """
    root = _root(source)
    if root is None:
        return None
    own = [name.removeprefix(root) for name in source.shapes if name.startswith(root)]
    stored = {new: root + old for new, old in respelled(own, WORDS).items()}
    wrapped = isinstance(source.config.get("model_type"), str)
    if wrapped and "architecture" not in source.config:
        said = _of_transformers(source)
    else:
        said = _of_timm(source, hints, stored)
    if said is None:
        return None
    places = source.shapes.get(stored.get("pos_embed", ""), ())
    efficient = len(places) == 3  # with a row for a class token
    names = NAMES | table(PLACES) if efficient else NAMES
    parts = found(source.shapes, names, stored, root)
    facts = _facts(source, parts, efficient, said, hints)
    config = ViTConfig(**facts.values)
    check_arguments(source.path, said.arguments, config, True, {*hints.choices})
    entries = parts.entries(config, NAME)
    left_out = {"(prompt_encoder|mask_decoder|shared_image_embedding)\\..*": "of the mask decoder"}
    left_out |= {"pixel_(mean|std)": "stated in the configuration"}
    left_out |= parts.outside("not of the image encoder")
    if efficient:  # its images are squashed, and bigger than its positions were made for
        free = hints.image_size is None and RELEASED_AT % config.patch == 0
        size = RELEASED_AT if free else None
        return Reading(EFFICIENT, config, entries, left_out, facts.origins, image_size=size)
    notes = () if said.fitted else (SCALED,)
    return Reading(said.label, config, entries, left_out, facts.origins, notes)


def _root(source: Source) -> str | None:
    """The prefix of the encoder's names; None for another model."""
    for name in sorted(source.shapes, key=len):
        if match := PATCH.fullmatch(name):
            root = match[1]
            own = [n.removeprefix(root) for n in source.shapes if n.startswith(root)]
            blocks = any(re.match(r"(blocks|layers)\.0\.(layer_)?norm1\.", n) for n in own)
            marked = blocks and any(MARKS.fullmatch(n) for n in own)
            return root if marked and "cls_token" not in own else None
    return None


def _facts(source: Source, parts: FoundParts, efficient: bool, said: Said, hints: Hints) -> Facts:
    """Every field: by the tensors, then by what stands beside them, then as the user says."""
    fields = fields_shown(source.path, parts, NAME)
    grid = _grid(parts, efficient)
    kinds = [kind for kind, key in (("1d", "positions"), ("decomposed", "rows")) if key in parts]
    fields |= {
        "image_size": tuple(side * fields["patch"] for side in grid),
        "positions": "+".join(kinds) or "none", "norm_at": "none" if fields["neck"] else "tokens",
        "stem_bias": "patch.bias" in parts, "class_token": None,
    }  # fmt: skip
    if (channels := parts.rows("rows")) > 0:
        fields["heads"] = fields["width"] // channels
    usual = "pool mean, @PLAIN, interpolation bilinear, crop 1.0, fit squash, @IMAGENET"
    facts = Facts().put("family", usual + ", resampling bicubic").put("tensors", fields)
    lengths = _lengths(source, parts, fields["depth"])
    if lengths:
        facts.put(*_windows(source, lengths, grid))
    elif efficient:  # EfficientSAM's blocks are all global
        facts.put("family", {"window": 0, "heads": fields["width"] // 64})
    for origin, values in said.fields:
        facts.put(origin, values)
    facts.put("option", hints.choices)
    for name in ("heads", "window"):
        if name not in facts.values:
            raise WeightsError(
                f"{source.path}: {NAME}: without relative positions, the tensors do not show "
                f"{name}: give --{name} (in Python: {name}=…)"
            )
    numbers = facts.values.get("global_blocks", ()) if facts.values["window"] else ()
    facts.values["global_blocks"] = tuple(n for n in numbers if n < fields["depth"])
    return facts


def _grid(parts: FoundParts, efficient: bool) -> tuple[int, int]:
    """Rows and columns of patches, by absolute positions or by the longest relative ones."""
    if efficient:
        side = math.isqrt(parts.shape("positions")[1])
        return side, side
    if "positions" in parts:
        rows, columns = parts.theirs["positions"][0][1:3]
        return rows, columns
    longest = [max((shape[0] for _, shape in parts.places.get(key, ())), default=0) for key in AXES]
    return (longest[0] + 1) // 2, (longest[1] + 1) // 2


def _lengths(source: Source, parts: FoundParts, depth: int) -> list[tuple[int, int]]:
    """The offsets in rows and columns that each block has tables for; empty without tables."""
    tables = [{n["n"]: shape[0] for n, shape in parts.places.get(key, ())} for key in AXES]
    there = sorted(tables[0].keys() & tables[1].keys())
    if there and len(there) < depth:
        number = next(n for n in range(depth) if n not in there)
        name = f"blocks.{number}.attn.rel_pos_h"
        raise WeightsError(f"{source.path}: tensor {name} is missing ({NAME})")
    return [(tables[0][number], tables[1][number]) for number in there]


def _windows(
    source: Source, lengths: list[tuple[int, int]], grid: tuple[int, int]
) -> tuple[str, Fields]:
    """The window and the global blocks, by tables that are shorter than the grid asks for."""
    whole = (2 * grid[0] - 1, 2 * grid[1] - 1)
    others = {length for length in lengths if length != whole}
    if not others:  # all blocks are global, or the window is the grid
        return "assumed", {"window": 0, "global_blocks": ()}
    rows, columns = others.pop()
    if others or rows != columns or rows % 2 == 0:
        raise WeightsError(
            f"{source.path}: {NAME}: relative positions (rel_pos_h, rel_pos_w) of {rows} and "
            f"{columns} offsets are neither those of a square window nor of the grid of patches"
        )
    globals_ = tuple(number for number, length in enumerate(lengths) if length == whole)
    return "tensors", {"window": (rows + 1) // 2, "global_blocks": globals_}


def _of_transformers(source: Source) -> Said | None:
    """Read config.json of transformers; None for a model of another type."""
    content, model_type = source.config, source.config["model_type"]
    if model_type not in MODEL_TYPES:
        return None
    content = content.get("vision_config", content)
    check_keys(model_type, content, {*KEYS, *KNOWN})
    act = our_value("hidden_act", content.get("hidden_act", "gelu"))
    given = _ours(content | source.preprocessor) | (
        {"gelu": act} if "hidden_act" in content else {}
    )
    return Said(f"transformers, {model_type}", [("family", DEFAULTS), ("file", given)])


def _ours(content: Fields) -> Fields:
    """The fields that `KEYS` state."""
    given = {own: content[key] for key, own in KEYS.items() if key in content}
    return {own: tuple(v) if isinstance(v, list) else v for own, v in given.items()}


def _of_timm(source: Source, hints: Hints, stored: dict[str, str]) -> Said:
    """Read config.json of timm, or the name that the user gives; else what timm's words imply."""
    architecture = str(source.config.get("architecture", "")).partition(".")[0]
    name = hints.name.partition(".")[0] or architecture
    words = stored.get("blocks.0.mlp.fc1.weight", "").endswith(".fc1.weight")
    own = words and len(source.shape(stored.get("pos_embed", ""))) != 3  # EfficientSAM's
    code = record("norm_eps 1e-5, resampling antialiased, interpolation bicubic, fit crop")
    if "neck.weight" in stored:
        code["last_norm_eps"] = 1e-6
    usual = [("family", code)] if own else []
    if "head.fc.weight" in stored:  # a fine-tuned model
        usual.append(("assumed", record("crop 1.0, @IMAGENET")))
    if name not in SAMVIT:
        return Said("Segment Anything, timm's names" if own else NAME, usual, own)
    blocks = {"window": 14, "global_blocks": tuple(SAMVIT[name])}
    fields = [*usual, ("name", blocks | code)]
    if name != architecture:
        return Said(f"timm, {name}", fields, True)
    arguments = arguments_in(source.config)
    said = recorded(source.path, source.config, hints.choices)
    fields.append(("file", said | stated(arguments) | _ours(arguments)))
    return Said(f"timm, {name}", fields, True, arguments)
