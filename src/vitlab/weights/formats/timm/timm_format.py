"""timm's names, which DeiT, MAE, DINO and BEiT's own files share but for a few words.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, beit.py, eva.py; the
checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3) and microsoft/unilm (beit).
"""

import math
import re
from dataclasses import dataclass, field

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, OPENAI, Size
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.dialects import Layout, layout_of, names_for, notes_beside, pairs_for
from vitlab.weights.formats.entries import Pairs, frequencies
from vitlab.weights.formats.format_api import Hints, Reading, Writing
from vitlab.weights.formats.names import (
    FoundParts,
    entries,
    fields_shown,
    first_name,
    fitting,
    patches_of,
    placed,
)
from vitlab.weights.formats.origins import Facts, with_means
from vitlab.weights.formats.records import rules
from vitlab.weights.formats.timm import architectures, config_json
from vitlab.weights.formats.timm.architectures import (
    check_content,
    facts_by_content,
    registers_in,
    rotary_by_content,
    stem_of,
)
from vitlab.weights.formats.timm.arguments import (
    DEFAULTS,
    NAME,
    check_arguments,
    floored,
    is_rounded,
    pairs_of,
    rotary_fields,
)
from vitlab.weights.formats.timm.config_json import (
    check_written,
    record_of,
    stored_as,
    vision_of,
    written,
)
from vitlab.weights.sharded import CONFIG, Fields
from vitlab.weights.source import Source

LEFT_OUT = rules(r"""
    mask_token|masked_embed|decoder.*|projectors\..*      for pre-training alone
    local_cls_norm\..*                                    for small crops in pre-training alone
    .*relative_position_index|rope_embed\..*|(.*\.)?rope\.freqs_(cos|sin)  computed here
    .*\.rope\..*|freqs_t_[xy]                             computed here
    .*num_batches_tracked                                 computed here
    lm_head\..*|head\.(mlp|last_layer|prototypes).*       for pre-training alone
""")
# The MLPs of MoCo-v3 and MSN, which batch norms tell from a classifier.
PROJECTOR = re.compile(r"((head\.\d+|fc\.bn\d)\.)running_mean")
SAPIENS = (1024, 1280, 1536, 1920)  # the widths of facebookresearch/sapiens


@dataclass(frozen=True)
class Known:
    """What is known beside the tensors.

    Attributes:
        facts: fields of the configuration, with their origins
        architecture: timm's name; empty if unknown
        image_size: that the positions are for
        arguments: of timm's constructor, to be compared with the model
        pairs: how channels that rotary positions turn together lie; None if it is not known
    """

    facts: Facts
    architecture: str = ""
    image_size: Size | None = None
    arguments: Fields = field(default_factory=dict)
    pairs: Pairs | None = None


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a file with timm's names.

    Raises:
        WeightsError: an unsupported family, or tensors of unsupported shapes.
    """
    file = layout_of(source)
    if file is None:
        return None
    prefix, dialect, parts = file.prefix, file.dialect, file
    known = known_of(source, hints, file)
    facts, own_row, register_rows = fields_of(source, file, known, hints)
    config = ViTConfig(**with_means(facts).values)
    rows = register_rows or (own_row and config.has_token)
    check_arguments(source.path, known.arguments, config, rows, {*hints.choices})
    if "head_dist.weight" in file.tensors and "heads.weight" not in parts:
        raise WeightsError(f"{source.path}: a distilled model without its first classifier")
    names = parts.names
    if "positions" in parts:
        has_rows = own_row or not config.has_token or bool(config.class_blocks)
        names.update(placed(names, has_rows, register_rows))
    if "freqs" in parts:
        names["freqs"] = [frequencies(first_name(names, "freqs"), known.pairs == "xy")]
    if "pooled_norm.weight" not in parts:
        names["pooled_norm"] = names.get("norm", [])
    table = parts.entries(config, dialect.name, known.pairs or "")
    left_out = {re.escape(prefix) + f"({pattern})": why for pattern, why in LEFT_OUT.items()}
    if any(PROJECTOR.fullmatch(name) for name in file.tensors):
        left_out[re.escape(prefix) + r"(head|fc)\..*"] = "for pre-training alone"
    left_out |= parts.outside("outside the model")
    label = f"{NAME}, {known.architecture}" if known.architecture else dialect.name
    taken = {name for entry in table for name in entry.theirs}
    beside = notes_beside(source, prefix, taken)
    return Reading(label, config, table, left_out, facts.origins, beside)


def writes(config: ModelConfig, provenance: Fields) -> Writing:
    """Represent a model as a folder that timm loads.

    Raises:
        WeightsError: timm has no such model.
    """
    vit = check_written(config)
    stored = stored_as(vit)
    table = entries(stored, names_for(stored), NAME, pairs_for(stored))
    return Writing(table, {CONFIG: written(vit, stored)}, stored=stored, resampling="antialiased")


def known_of(source: Source, hints: Hints, file: Layout) -> Known:
    """Collect what is known of a file.

    Args:
        source: the file or folder
        hints: of the user
        file: its tensors in their dialect

    Raises:
        OptionError: the user's name is unknown.
        WeightsError: a family that our model cannot represent, or a damaged config.json.
    """
    name, given = hints.name, stem_of(hints.name)
    checkpoint = record_of(source)
    stored = stem_of(source.config.get("architecture")) or stem_of(
        vision_of(source.open_clip).get("timm_model_name")
    )
    architecture = given or stored or checkpoint.architecture
    certain = bool(architecture)
    if certain:
        architectures.check_supported(architecture)
    own = file.dialect.name == "ViTLab's names"  # whose models may have any fields
    check_content(source.path, file, certain or own or bool(name))
    facts = facts_by_content(source, file, certain or own)
    _put_dialect(facts, file)
    if file.dialect.name == "open_clip's names" and "input_resolution" in source.shapes:
        facts.put("family", {"gelu": "quick", **OPENAI})  # OpenAI's own
    if certain:
        facts.put("name", {**architectures.implied(architecture), **checkpoint.instead})
        facts.put("family", "resampling antialiased")
        if architecture in architectures.VARY:
            facts.put("assumed", {k: facts.values[k] for k in ("mean", "std")})
    elif name:
        facts.put("option", architectures.settled(name))
    size: Size | None = architectures.size_in(architecture) if certain else None
    if given and given != stored:  # the user knows better than the file
        return Known(facts, architecture, size, pairs=_rotary(facts, source, architecture, file))
    arguments = checkpoint.arguments | config_json.arguments_in(source.config)
    path, chosen = source.path, hints.choices
    told = config_json.stated_by_open_clip(path, source.open_clip, file.width, chosen)
    said = config_json.recorded(path, source.config, chosen)
    facts.put("file", {**checkpoint.fields, **told, **said})
    if "fit native" in file.dialect.facts:  # which no config.json of timm can say
        facts.put("family", "fit native")
    if arguments.get("global_pool") == "":
        facts.put("assumed", {"pool": facts.values.get("pool", "token")})
    pairs = _rotary(facts, source, architecture, file, arguments)
    size = config_json.size_beside(source) or checkpoint.image_size or size
    return Known(facts, architecture, size, arguments, pairs)


def _rotary(
    facts: Facts,
    source: Source,
    architecture: str,
    file: Layout,
    arguments: Fields | None = None,
) -> Pairs | None:
    """Put rotary positions as name, tensors or arguments imply; return how their pairs lie."""
    told = {key: value for key, value in (arguments or {}).items() if key in DEFAULTS}
    origin = "name" if architecture else "family"
    implied = architectures.named_rotary(architecture) if architecture else rotary_by_content(file)
    whole = implied | told
    if not whole.get("use_rot_pos_emb"):
        return None
    fields = rotary_fields(source.path, whole)
    stored = [name for name in source.shapes if name.endswith("rope_embed.periods")]
    if stored and fields["rope_kind"] == "image":
        periods = source.read(stored[0])
        rounded = is_rounded(source.path, periods, fields["rope_base"])
        facts.put("tensors", {"rope_rounded": rounded})
    facts.put("file" if told else origin, {"positions": "rope", **fields})
    scaled = implied.get("rope_grid_indexing") == "xy" and fields.get("rope_grid")
    if origin == "family" and scaled:
        facts.put("assumed", {"rope_grid": fields["rope_grid"]})  # its positions' own grid
    return pairs_of(whole)


def _put_dialect(facts: Facts, file: Layout) -> None:
    """Set the facts of all, or most, models with such names."""
    dialect, width = file.dialect, file.width
    facts.put("assumed", dialect.usual).put("family", dialect.facts)
    if dialect.sizes and "heads" in facts.values:
        facts.put("family", {"heads": facts.values["heads"]})
    elif dialect.facts and width % 64 == 0:
        facts.fill("assumed", {"heads": width // 64})
    if dialect.name == "open_clip's names" and "pre_norm.weight" not in file:
        facts.put("assumed", "pool mean, norm_at pooled")  # CLIPA, OpenVision
    if dialect.name == "mmpretrain's names":
        _put_padding(facts, file)


def _put_padding(facts: Facts, file: Layout) -> None:
    """Put the padding of Sapiens' stem: certain with positions for 1024 pixels, else by width."""
    side, places = file.shape("patch.weight")[-1], (*file.shape("positions"), 0)[1]
    if places and math.isqrt(places) * side == 1024:
        facts.put("family", {"stem_padding": 2, **IMAGENET})
    elif file.width in SAPIENS:
        facts.put("assumed", "stem_padding 0")


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
    shown = fields_shown(source.path, file, NAME)
    tokens = {name: shown.pop(name) for name in ("registers", "class_token")}
    facts = Facts().put("tensors", shown)
    facts.values |= known.facts.values
    facts.origins |= known.facts.origins
    facts.put("tensors", tokens)
    if shown.get("stem") == "resnet":
        facts.put("tensors", "resnet timm")
    _pool(facts, file, known)
    named = registers_in(known.architecture)
    if named and facts.values["registers"] != named:
        raise WeightsError(
            f"{source.path}: tensor reg_token of {named} registers is missing "
            f"({known.architecture})"
        )
    rows = _positions(source, file, facts, known, hints)
    facts.put("option", hints.choices)
    _heads(source, file, facts)
    return facts, *rows


def _pool(facts: Facts, parts: FoundParts, known: Known) -> None:
    """Put what the classifier sees, and forget a class token that this implies."""
    token, told = "token" in parts, facts.origins.get("pool")
    named = facts.values.get("pool", "token") if told in (None, "name") else ""
    mean = not token and (named == "attention" or facts.values.get("pool", "token") == "token")
    asked = any(known.arguments.get(name) for name in ("fc_norm", "use_fc_norm"))
    normed = "pooled_norm.weight" in parts and named == "token" and not asked
    both = parts.shape("head.weight")[-1] == 2 * parts.width
    if "queries" in parts:
        facts.put("tensors", "pool attention")
        wide = parts.shape("pool_expand.weight")[0]
        facts.put("tensors", {"pool_mlp": 0 if wide == facts.values["mlp"] else wide})
        if known.pairs is not None and (token or facts.values["registers"]):
            facts.put("family", "pool_prefix true")  # in eva.py
    elif both and token:  # or the class token beside one register, in our own names
        one = facts.values["registers"] == 1
        facts.put("assumed" if one else "tensors", {"pool": "both"})
    elif "heads.weight" in parts:
        facts.put("tensors", "pool prefix")
    elif mean or normed:
        facts.put("tensors", "pool mean")
    else:
        facts.fill("name" if known.architecture else "assumed", {"pool": "token"})
    if token == (facts.values["pool"] in ("token", "both")):
        facts.values["class_token"] = None
    of_pool = {"pool_heads": ("attention",), "pool_prefix": ("attention", "mean")}
    for name, pools in of_pool.items():
        if facts.values["pool"] not in pools:
            facts.values.pop(name, None)


def _positions(
    source: Source, file: Layout, facts: Facts, known: Known, hints: Hints
) -> tuple[bool, bool]:
    """Put positions and image size; return whether class token and registers have positions."""
    parts = file
    patch, registers = int(facts.values["patch"]), int(facts.values["registers"])
    stated = [s for s in (hints.choices.get("image_size"), known.image_size) if s]
    wanted = [hints.image_size] if hints.image_size else []
    if parts.offsets:
        facts.put("tensors", _bias_positions(parts, patch, [*stated, *wanted]))
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
    # DeiT-III's own names, which RoPE-ViT's files with positions have too
    own = any(name.endswith("blocks.0.gamma_1") for name in file.stored.values())
    alike = own and "blocks.0.attn.qkv.bias" in file.tensors and not parts.counted("b")
    if facts.values.get("positions") == "rope":
        facts.put(facts.origins["positions"], {"positions": "1d+rope"})
    else:
        facts.put("assumed" if alike and not certain else "tensors", {"positions": "1d"})
    length = (*parts.shape("positions"), 0)[1]
    for candidates in (stated, None, wanted):
        for own_row, register_rows in _layouts(file, registers):
            count = length - own_row - registers * register_rows
            if found := fitting(candidates, patch, count):
                said = fitting(wanted, patch, count)  # what is said wins over a guess
                guess = candidates is None and not (said or certain)
                origin = "assumed" if guess else "tensors"
                facts.put(origin, {"image_size": said or found})
                return own_row, register_rows
    raise WeightsError(
        f"{source.path}: {length} positions do not form a square of patches: give their "
        "size in pixels, --image-size ROWS COLUMNS (in Python image_size=(rows, columns))"
    )


def _unplaced(source: Source, facts: Facts, known: Known, hints: Hints, sizes: list[Size]) -> None:
    """Put the positions of a file that stores none."""
    if "positions" not in facts.values and known.arguments.get("pos_embed") in ("none", ""):
        facts.put("file", "positions none")
    if "positions" not in facts.values and "positions" not in hints.choices:
        raise WeightsError(
            f"{source.path}: {NAME}: no positions are stored, and only DINOv3 is known to compute "
            "them: give --positions none, or --name (in Python positions='none', name=…)"
        )
    patch = int(facts.values["patch"])
    if sizes:
        origin = "file" if known.image_size else "option"
        facts.put(origin, {"image_size": floored(sizes[0], patch)})
    else:
        facts.put("assumed", {"image_size": floored(224, patch)})


def _layouts(file: Layout, registers: int) -> list[tuple[bool, bool]]:
    """Which of class token and registers may have positions, the usual layout first."""
    token = "token" in file and "class_q.weight" not in file
    if "dist_token" in file.tensors:
        return [(token, True)]
    return [(token, False), (False, False), *([(token, True)] if registers else [])]


def _bias_positions(parts: FoundParts, patch: int, sizes: list[Size]) -> Fields:
    """The fields of BEiT's tables, which have a row per offset and 3 for the class token."""
    offsets = parts.offsets[0] - 3 * ("token" in parts)
    image_size: Size = (math.isqrt(max(offsets, 0)) + 1) // 2 * patch
    for size in sizes:
        rows, columns = patches_of(size, patch)
        if (2 * rows - 1) * (2 * columns - 1) == offsets:
            image_size = (rows * patch, columns * patch)
            break
    at = "shared" if "shared_table" in parts else "stem"
    kind = "1d+bias" if "positions" in parts else "bias"
    return {"positions": kind, "positions_at": at, "image_size": image_size}


def _heads(source: Source, parts: FoundParts, facts: Facts) -> None:
    """Put the heads that tables or norms with one row per head show, or ask for them."""
    if facts.origins.get("heads") == "option":
        return
    if parts.offsets:
        facts.put("tensors", {"heads": parts.offsets[1]})
    if "q_norm.weight" in parts:
        heads = parts.width // max(1, parts.shape("q_norm.weight")[0])
        facts.put("tensors", {"heads": heads})
    if "before.weight" in parts:
        facts.put("tensors", {"heads": parts.shape("before.weight")[0]})
    if "heads" not in facts.values:
        raise WeightsError(
            f"{source.path} does not say how many heads a width of {parts.width} has: give "
            "--heads, or --name as in timm (in Python heads=…, name=…)"
        )
