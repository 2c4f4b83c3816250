"""What is known of a file with timm's names beside its tensors' names and shapes.

In this order: config.json, a checkpoint's record of the model that it was made of, the name that
the user gives, what the tensors give away, and the usual values, which are only assumed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.images import IMAGENET, OPENAI, Size
from vitlab.weights.formats.dialects import open_clip
from vitlab.weights.formats.dialects.dialects import Layout
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints
from vitlab.weights.formats.rotary_rows import Pairs
from vitlab.weights.formats.timm import architectures, config_json
from vitlab.weights.formats.timm.arguments import DEFAULTS, is_rounded, pairs_of, rotary_fields
from vitlab.weights.formats.timm.config_json import record_of
from vitlab.weights.formats.timm.timm_content import (
    check_content,
    facts_by_content,
    rotary_by_content,
)
from vitlab.weights.source import Source

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
    arguments: Mapping[str, Any] = field(default_factory=dict)
    pairs: Pairs | None = None


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
    name, given = hints.name, architectures.stem_of(hints.name)
    stored, record = config_json.architecture_in(source.config), record_of(source)
    stored = stored or open_clip.architecture_in(source.open_clip)
    architecture = given or stored or record.architecture
    certain = bool(architecture)
    if certain:
        architectures.check_supported(architecture)
    own = file.dialect.name == "ViTLab's names"  # whose models may have any fields
    check_content(source.path, file, certain or own or bool(name))
    facts = facts_by_content(source, file, certain or own)
    _put_dialect(facts, file)
    if file.dialect.name == "open_clip's names" and "input_resolution" in source.shapes:
        facts.put(Origin.FAMILY, {"gelu": "quick", **OPENAI})  # OpenAI's own
    if certain:
        facts.put(Origin.NAME, {**architectures.implied(architecture), **record.instead})
        facts.put(Origin.FAMILY, {"resampling": "antialiased"})
        if architecture in architectures.VARY:
            facts.put(Origin.ASSUMED, {k: facts.values[k] for k in ("mean", "std")})
    elif name:
        facts.put(Origin.OPTION, architectures.settled(name))
    size = architectures.size_in(architecture) if certain else None
    if given and given != stored:  # the user knows better than the file
        return Known(facts, architecture, size, pairs=_rotary(facts, source, architecture, file))
    arguments = record.arguments | config_json.arguments_in(source.config)
    facts.put(Origin.FILE, record.fields).put(Origin.FILE, _stated(source, hints, file))
    if file.dialect.facts.get("fit") == "native":  # which no config.json of timm can say
        facts.put(Origin.FAMILY, {"fit": "native"})
    if arguments.get("global_pool") == "":
        facts.put(Origin.ASSUMED, {"pool": facts.values.get("pool", "token")})
    pairs = _rotary(facts, source, architecture, file, arguments)
    sizes: tuple[Size | None, ...] = (
        config_json.recorded_size(source.config),
        open_clip.open_clip_size(source.open_clip),
        record.image_size,
        size,
    )
    return Known(
        facts, architecture, next((each for each in sizes if each), None), arguments, pairs
    )


def _stated(source: Source, hints: Hints, file: Layout) -> dict[str, Any]:
    """What the configuration beside the tensors says, open_clip's or timm's."""
    path, chosen = source.path, hints.choices
    fields = open_clip.stated_by_open_clip(path, source.open_clip, file.parts.width, chosen)
    return fields | config_json.recorded(path, source.config, chosen)


def _rotary(
    facts: Facts,
    source: Source,
    architecture: str,
    file: Layout,
    arguments: Mapping[str, Any] | None = None,
) -> Pairs | None:
    """Put rotary positions as name, tensors or arguments imply; return how their pairs lie."""
    told = {key: value for key, value in (arguments or {}).items() if key in DEFAULTS}
    origin = Origin.NAME if architecture else Origin.FAMILY
    implied = architectures.named_rotary(architecture) if architecture else rotary_by_content(file)
    whole = implied | told
    if not whole.get("use_rot_pos_emb"):
        return None
    fields = rotary_fields(source.path, whole)
    stored = [name for name in source.shapes if name.endswith("rope_embed.periods")]
    if stored and fields["rope_kind"] == "image":
        periods = source.read(stored[0])
        rounded = is_rounded(source.path, periods, fields["rope_base"])
        facts.put(Origin.TENSORS, {"rope_rounded": rounded})
    facts.put(Origin.FILE if told else origin, {"positions": "rope", **fields})
    scaled = implied.get("rope_grid_indexing") == "xy" and fields.get("rope_grid")
    if origin is Origin.FAMILY and scaled:
        facts.put(Origin.ASSUMED, {"rope_grid": fields["rope_grid"]})  # its positions' own grid
    return pairs_of(whole)


def _put_dialect(facts: Facts, file: Layout) -> None:
    """Put what holds for all, or most, models with somebody's names."""
    dialect, width = file.dialect, file.parts.width
    facts.put(Origin.ASSUMED, dialect.usual).put(Origin.FAMILY, dialect.facts)
    if dialect.sizes and "heads" in facts.values:
        facts.put(Origin.FAMILY, {"heads": facts.values["heads"]})
    elif dialect.facts and width % 64 == 0:
        facts.fill(Origin.ASSUMED, {"heads": width // 64})
    if dialect.name == "open_clip's names" and "pre_norm.weight" not in file.parts:
        facts.put(Origin.ASSUMED, {"pool": "mean", "norm_at": "pooled"})  # CLIPA, OpenVision
    if dialect.name == "mmpretrain's names":
        _put_padding(facts, file)


def _put_padding(facts: Facts, file: Layout) -> None:
    """Put the padding of Sapiens' stem, which is known by positions for 1024 pixels.

    Where they are for another size, a width that Sapiens has leaves it open.
    """
    side, places = file.parts.shape("patch.weight")[-1], (*file.parts.shape("positions"), 0)[1]
    if places and math.isqrt(places) * side == 1024:
        facts.put(Origin.FAMILY, {"stem_padding": 2, **IMAGENET})
    elif file.parts.width in SAPIENS:
        facts.put(Origin.ASSUMED, {"stem_padding": 0})
