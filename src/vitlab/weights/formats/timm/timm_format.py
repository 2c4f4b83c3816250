"""timm's names, which DeiT, MAE, DINO and BEiT's own files share but for a few words.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, beit.py, eva.py; the
checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3) and microsoft/unilm (beit).
"""

import math
import re
from dataclasses import dataclass, field

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.dialects import Layout, layout_of, names_for, notes_beside
from vitlab.weights.formats.entries import Pairs
from vitlab.weights.formats.format_api import Hints, Reading, TensorsOf, Writing
from vitlab.weights.formats.names import entries, fields_shown, fitting, floored, patches_of, placed
from vitlab.weights.formats.records import Facts, rules, with_means
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
    is_rounded,
    pairs_of,
    rotary_fields,
)
from vitlab.weights.formats.timm.config_json import (
    check_written,
    record_of,
    vision_of,
    written,
)
from vitlab.weights.sharded import CONFIG, Fields
from vitlab.weights.source import StoredTensors

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


@dataclass(kw_only=True)
class Known(Facts):
    """The facts of a file, and what is known beside them.

    Attributes:
        source: the file or folder
        file: its tensors in their dialect
        hints: of the user, which take precedence
        architecture: timm's name; empty if unknown
        image_size: that the positions are for
        arguments: of timm's constructor, to be compared with the model
        pairs: how channels that rotary positions turn together lie; None if it is not known
    """

    source: StoredTensors
    file: Layout
    hints: Hints
    architecture: str
    image_size: Size | None = None
    arguments: Fields = field(default_factory=dict)
    pairs: Pairs | None = None


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
    """Recognize a file with timm's names.

    Raises:
        WeightsError: an unsupported family, or tensors of unsupported shapes.
    """
    file = layout_of(source)
    if file is None:
        return None
    known = known_of(source, hints, file)
    own_row, register_rows = _put_shown(known)
    config = ViTConfig(**with_means(known).values)
    rows = register_rows or (own_row and config.has_token)
    check_arguments(source.path, known.arguments, config, rows, {*hints.choices})
    if "head_dist.weight" in file.tensors and "heads.weight" not in file:
        raise WeightsError(f"{source.path}: a distilled model without its first classifier")
    names = file.names
    if "positions" in file:
        has_rows = own_row or not config.has_token
        names.update(placed(names, has_rows, register_rows))
    if "pooled_norm.weight" not in file:
        names["pooled_norm"] = names.get("norm", [])
    table = file.entries(config, tensors_of(config), file.dialect.name, known.pairs or "")
    prefix = re.escape(file.prefix)
    left_out = {f"{prefix}({pattern})": why for pattern, why in LEFT_OUT.items()}
    if any(PROJECTOR.fullmatch(name) for name in file.tensors):
        left_out[prefix + r"(head|fc)\..*"] = "for pre-training alone"
    left_out |= file.outside("outside the model")
    label = f"{NAME}, {known.architecture}" if known.architecture else file.dialect.name
    taken = {name for entry in table for name in entry.theirs}
    beside = notes_beside(source, file.prefix, taken)
    return Reading(label, config, table, left_out, known.origins, beside)


def writes(config: ModelConfig, provenance: Fields, tensors_of: TensorsOf) -> Writing:
    """Represent a model as a folder that timm loads.

    Raises:
        WeightsError: timm has no such model.
    """
    vit = check_written(config)
    own = vit.resampling == "antialiased"  # as timm resamples positions in the forward pass
    stored = vit.at_positions if own else vit.settled
    table = entries(stored, tensors_of(stored), names_for(stored), NAME)
    return Writing(table, {CONFIG: written(vit, stored)}, stored=stored)


def known_of(source: StoredTensors, hints: Hints, file: Layout) -> Known:
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
    usual = facts_by_content(source, file, certain or own)
    known = Known(**vars(usual), source=source, file=file, hints=hints, architecture=architecture)
    _put_dialect(known)
    if file.dialect.name == "open_clip's names" and "input_resolution" in source.shapes:
        known.put("family", "gelu quick, @OPENAI")  # OpenAI's own
    if certain:
        known.put("name", {**architectures.implied(architecture), **checkpoint.instead})
        known.put("family", "resampling antialiased")
        known.image_size = architectures.size_in(architecture)
        if architecture in architectures.VARY:
            known.put("assumed", {k: known.values[k] for k in ("mean", "std")})
    elif name:
        known.put("option", architectures.settled(name))
    if not given or given == stored:  # else the user knows better than the file
        known.arguments = checkpoint.arguments | config_json.arguments_in(source.config)
        path, chosen = source.path, hints.choices
        told = config_json.stated_by_open_clip(path, source.open_clip, file.width, chosen)
        said = config_json.recorded(path, source.config, chosen)
        known.put("file", {**checkpoint.fields, **told, **said})
        if "fit native" in file.dialect.facts:  # which no config.json of timm can say
            known.put("family", "fit native")
        if known.arguments.get("global_pool") == "":
            known.put("assumed", {"pool": known.values.get("pool", "token")})
        size = config_json.size_beside(source) or checkpoint.image_size
        known.image_size = size or known.image_size
    known.pairs = _rotary(known)
    return known


def _rotary(known: Known) -> Pairs | None:
    """Put rotary positions as name, tensors or arguments imply; return how their pairs lie."""
    source, name = known.source, known.architecture
    told = {key: value for key, value in known.arguments.items() if key in DEFAULTS}
    implied = architectures.named_rotary(name) if name else rotary_by_content(known.file)
    whole = implied | told
    if not whole.get("use_rot_pos_emb"):
        return None
    fields = rotary_fields(source.path, whole)
    stored = [name for name in source.shapes if name.endswith("rope_embed.periods")]
    if stored and fields["rope_kind"] == "image":
        periods = source.read(stored[0])
        rounded = is_rounded(source.path, periods, fields["rope_base"])
        known.put("tensors", {"rope_rounded": rounded})
    origin = "name" if name else "family"
    known.put("file" if told else origin, {"positions": "rope", **fields})
    scaled = implied.get("rope_grid_indexing") == "xy" and fields.get("rope_grid")
    if not name and scaled:
        known.put("assumed", {"rope_grid": fields["rope_grid"]})  # its positions' own grid
    return pairs_of(whole)


def _put_dialect(known: Known) -> None:
    """Set the facts of all, or most, models with such names."""
    file, dialect, width = known.file, known.file.dialect, known.file.width
    known.put("assumed", dialect.usual).put("family", dialect.facts)
    if dialect.sizes and "heads" in known.values:
        known.put("family", {"heads": known.values["heads"]})
    elif dialect.facts and width % 64 == 0:
        known.fill("assumed", {"heads": width // 64})
    if dialect.name == "open_clip's names" and "pre_norm.weight" not in file:
        known.put("assumed", "pool mean, norm_at pooled")  # CLIPA, OpenVision


def _put_shown(known: Known) -> tuple[bool, bool]:
    """Put what the tensors show; return whether class token and registers have positions."""
    shown = fields_shown(known.source.path, known.file, NAME)
    known.put("tensors", {name: shown.pop(name) for name in ("registers", "class_token")})
    known.fill("tensors", shown)
    if shown.get("stem") == "resnet":
        known.put("tensors", "resnet timm")
    _pool(known)
    named = registers_in(known.architecture)
    if named and known.values["registers"] != named:
        raise WeightsError(
            f"{known.source.path}: tensor reg_token of {named} registers is missing "
            f"({known.architecture})"
        )
    rows = _positions(known)
    known.put("option", known.hints.choices)
    _heads(known)
    return rows


def _pool(known: Known) -> None:
    """Put what the classifier sees, and forget a class token that this implies."""
    file = known.file
    token, told = "token" in file, known.origins.get("pool")
    named = known.values.get("pool", "token") if told in (None, "name") else ""
    mean = not token and (named == "attention" or known.values.get("pool", "token") == "token")
    asked = any(known.arguments.get(name) for name in ("fc_norm", "use_fc_norm"))
    normed = "pooled_norm.weight" in file and named == "token" and not asked
    both = file.shape("head.weight")[-1] == 2 * file.width
    if "queries" in file:
        known.put("tensors", "pool attention")
        wide = file.shape("pool_expand.weight")[0]
        known.put("tensors", {"pool_mlp": 0 if wide == known.values["mlp"] else wide})
        if known.pairs is not None and (token or known.values["registers"]):
            known.put("family", "pool_prefix true")  # in eva.py
    elif both and token:  # or the class token beside one register, in our own names
        one = known.values["registers"] == 1
        known.put("assumed" if one else "tensors", {"pool": "both"})
    elif "heads.weight" in file:
        known.put("tensors", "pool prefix")
    elif mean or normed:
        known.put("tensors", "pool mean")
    else:
        known.fill("name" if known.architecture else "assumed", {"pool": "token"})
    if token == (known.values["pool"] in ("token", "both")):
        known.values["class_token"] = None
    of_pool = {"pool_heads": ("attention",), "pool_prefix": ("attention", "mean")}
    for name, pools in of_pool.items():
        if known.values["pool"] not in pools:
            known.values.pop(name, None)


def _positions(known: Known) -> tuple[bool, bool]:
    """Put positions and image size; return whether class token and registers have positions."""
    file, hints = known.file, known.hints
    patch, registers = int(known.values["patch"]), int(known.values["registers"])
    stated = [s for s in (hints.choices.get("image_size"), known.image_size) if s]
    wanted = [hints.image_size] if hints.image_size else []
    if file.offsets:
        known.put("tensors", _bias_positions(file, patch, [*stated, *wanted]))
        return True, False
    if "rope" in hints.choices.get("positions", "") and known.pairs is None:
        raise WeightsError(
            f"{known.source.path} does not say which channels rotary positions turn together: give "
            "--name with the model's name in timm (in training --weights-name)"
        )
    if "positions" not in file:
        _unplaced(known, [*stated, *wanted])
        return True, False
    certain = bool(known.architecture)
    # DeiT-III's own names, which RoPE-ViT's files with positions have too
    own = any(name.endswith("blocks.0.gamma_1") for name in file.stored.values())
    alike = own and "blocks.0.attn.qkv.bias" in file.tensors and not file.counted("b")
    if known.values.get("positions") == "rope":
        known.put(known.origins["positions"], {"positions": "1d+rope"})
    else:
        known.put("assumed" if alike and not certain else "tensors", {"positions": "1d"})
    length = file.rows("positions")
    for candidates in (stated, None, wanted):
        for own_row, register_rows in _layouts(file, registers):
            count = length - own_row - registers * register_rows
            if found := fitting(candidates, patch, count):
                said = fitting(wanted, patch, count)  # what is said wins over a guess
                guess = candidates is None and not (said or certain)
                origin = "assumed" if guess else "tensors"
                known.put(origin, {"image_size": said or found})
                return own_row, register_rows
    raise WeightsError(
        f"{known.source.path}: {length} positions do not form a square of patches: give their "
        "size in pixels, --image-size ROWS COLUMNS (in Python image_size=(rows, columns))"
    )


def _unplaced(known: Known, sizes: list[Size]) -> None:
    """Put the positions of a file that stores none."""
    if "positions" not in known.values and known.arguments.get("pos_embed") in ("none", ""):
        known.put("file", "positions none")
    if "positions" not in known.values and "positions" not in known.hints.choices:
        raise WeightsError(
            f"{known.source.path}: {NAME}: no positions are stored, and only DINOv3 is known to "
            "compute them: give --positions none, or --name (in training --weights-name; in "
            "Python positions='none', name=…)"
        )
    patch = int(known.values["patch"])
    if sizes:
        origin = "file" if known.image_size else "option"
        known.put(origin, {"image_size": floored(sizes[0], patch)})
    else:
        known.put("assumed", {"image_size": floored(224, patch)})


def _layouts(file: Layout, registers: int) -> list[tuple[bool, bool]]:
    """Which of class token and registers may have positions, the usual layout first."""
    token = "token" in file
    if "dist_token" in file.tensors:
        return [(token, True)]
    return [(token, False), (False, False), *([(token, True)] if registers else [])]


def _bias_positions(file: Layout, patch: int, sizes: list[Size]) -> Fields:
    """The fields of BEiT's tables, which have a row per offset and 3 for the class token."""
    offsets = file.offsets[0] - 3 * ("token" in file)
    image_size: Size = (math.isqrt(max(offsets, 0)) + 1) // 2 * patch
    for size in sizes:
        rows, columns = patches_of(size, patch)
        if (2 * rows - 1) * (2 * columns - 1) == offsets:
            image_size = floored(size, patch)
            break
    at = "shared" if "shared_table" in file else "stem"
    kind = "1d+bias" if "positions" in file else "bias"
    return {"positions": kind, "positions_at": at, "image_size": image_size}


def _heads(known: Known) -> None:
    """Put the heads that tables or norms with one row per head show, or ask for them."""
    file = known.file
    if known.origins.get("heads") == "option":
        return
    if file.offsets:
        known.put("tensors", {"heads": file.offsets[1]})
    if "q_norm.weight" in file:
        heads = file.width // max(1, file.shape("q_norm.weight")[0])
        known.put("tensors", {"heads": heads})
    if "heads" not in known.values:
        raise WeightsError(
            f"{known.source.path} does not say how many heads a width of {file.width} has: give "
            "--heads, or --name as in timm (in training --weights-name; in Python heads=…, name=…)"
        )
