"""Tables of tensor names: what a family calls each part of a model, read and written alike.

A table maps the word for a part (`qkv`, `norm1`, `head`) to a template of its name in the family's
files: of a layer without `.weight` and `.bias`, of a part of a block with a dot in front; or to
several templates, of which a file has one and the first is written. Our own names are one such
table, so that `entries` needs no list of the parts that a configuration has, and `found` says what
a file has in the same words.
"""

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.configs.model_config import ModelConfig, map_stride
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.entries import Names, Pairs, StoredAs, paired, table
from vitlab.weights.formats.entry import Entry
from vitlab.weights.formats.format_api import cannot
from vitlab.weights.formats.records import record, words
from vitlab.weights.sharded import Fields
from vitlab.weights.source import Shape

# Words of single tensors; all others are of layers.
TENSORS = words("""
    token registers positions shared_table queries bias_table
    scale1 scale2
""")
TURNED = ("qkv", "q_norm", "k_norm")  # the layers whose rows rotary positions turn
# Fields that say whether a part is there, and how many rows one has.
THERE = record("""
    bias project.bias, qkv_bias qkv.bias, qk_norm q_norm.weight, pre_norm pre_norm.weight,
    norm_inner_attention attn_norm.weight, norm_inner_mlp mlp_norm.weight, class_token token
""")
LONG = record("classes head.weight, pre_logits pre_logits.weight")
PARTS = "weight", "bias", "running_mean", "running_var", "num_batches_tracked"  # of layers
DIGITS = re.compile(r"\d+")
SLOT = re.compile(r"\{\w+(?::02)?\}|\d+")  # in a template: `{n}`, or a number that all names have
Numbers = tuple[tuple[str, int], ...]
OURS = table("""
    block           blocks.{n}.
    token           token
    registers       registers
    pre_norm        pre_norm
    norm1           .attention.{b}.norm
    scale1          .attention.{b}.scale
    qkv             .attention.{b}.body.qkv
    q_norm          .attention.{b}.body.norms.q
    k_norm          .attention.{b}.body.norms.k
    attn_norm       .attention.{b}.body.norm
    project         .attention.{b}.body.project
    norm2           .mlp.{b}.norm
    scale2          .mlp.{b}.scale
    expand          .mlp.{b}.body.expand
    mlp_norm        .mlp.{b}.body.norm
    contract        .mlp.{b}.body.contract
    norm            norm
    pooled_norm     head.norm
    pre_logits      head.pre_logits
    queries         head.attend.queries
    pool_q          head.attend.q
    pool_kv         head.attend.kv
    pool_project    head.attend.project
    pool_norm       head.attend.norm
    pool_expand     head.attend.mlp.expand
    pool_contract   head.attend.mlp.contract
    head            head.classify
""")
STEMS: dict[str, Names] = {
    "linear": table("""
        patch       stem.layers.0
        patch_norm  stem.layers.1
    """),
    "hmlp": table("stem stem.layers.{k}"),
    "resnet": table("""
        patch          stem.project
        root_conv      stem.body.root.reduce.conv
        root_norm      stem.body.root.reduce.norm
        reduce_conv    stem.body.stages.{s}.{u}.reduce.conv
        reduce_norm    stem.body.stages.{s}.{u}.reduce.norm
        middle_conv    stem.body.stages.{s}.{u}.middle.conv
        middle_norm    stem.body.stages.{s}.{u}.middle.norm
        expand_conv    stem.body.stages.{s}.{u}.expand.conv
        expand_norm    stem.body.stages.{s}.{u}.expand.norm
        shortcut_conv  stem.body.stages.{s}.{u}.shortcut.conv
        shortcut_norm  stem.body.stages.{s}.{u}.shortcut.norm
    """),
}
RESNET = table("""
    root_conv  body.root
    conv1      body.stages.{s}.{u}.conv1
    conv2      body.stages.{s}.{u}.conv2
    conv3      body.stages.{s}.{u}.conv3
    norm1      body.stages.{s}.{u}.norm1
    norm2      body.stages.{s}.{u}.norm2
    norm3      body.stages.{s}.{u}.norm3
    shortcut   body.stages.{s}.{u}.shortcut
    norm       body.norm
    head       classify
""")
TOKENIZER = table("""
    enter     encoder.enter
    narrow    encoder.groups.{s}.{u}.shortcut
    down      encoder.groups.{s}.{u}.convolutions.{k}
    score     score
    codebook  codebook
    widen     decoder.groups.{s}.{u}.shortcut
    up        decoder.groups.{s}.{u}.convolutions.{k}
    leave     decoder.leave
""")


def ours(config: ModelConfig) -> Names:
    """Return our own names of the parts of a model."""
    if not isinstance(config, ViTConfig):
        return RESNET if isinstance(config, ResNetConfig) else TOKENIZER
    kinds, shared = config.positions.split("+"), config.positions_at == "shared"
    at = "positions.{n}.inner." if len(kinds) > 1 else "positions.{n}."
    names = OURS | STEMS.get(config.stem, {})
    own = {
        "1d": f"positions positions.0.{'added.' * (len(kinds) > 1)}table",
        "bias": f"{'shared_table' if shared else 'bias_table'} {at}table",
    }
    for kind in kinds:
        names |= table(own.get(kind, ""))
    if config.pool == "prefix":
        names["heads"] = names.pop("head")
    return names


@dataclass(frozen=True)
class FoundParts:
    """The parts of a model in a file.

    Attributes:
        names: the family's table, with the way in which each part of this file is stored
        shapes: by word, of the first of its kind, as ours has it: `{"qkv.weight": (3 D, D)}`
        theirs: likewise, of the tensors as they are stored
        places: of every one of its kind: the numbers of its block (n), its branch (b), …
        tensors: shapes of all tensors by the family's names; `/name` is outside of the model
        stored: the file's names by the family's
        prefix: in front of the names of the model
    """

    names: Names
    shapes: dict[str, Shape] = field(default_factory=dict)
    theirs: dict[str, tuple[Shape, ...]] = field(default_factory=dict)
    places: dict[str, list[dict[str, int]]] = field(default_factory=dict)
    tensors: Mapping[str, Shape] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""

    def __contains__(self, key: object) -> bool:
        return key in self.shapes

    @property
    def width(self) -> int:
        """Channels of a token."""
        return self.shape("contract.weight")[0]

    def shape(self, key: str) -> Shape:
        """Return the shape of a part; (0,) if it is not there."""
        return self.shapes.get(key, (0,))

    def rows(self, key: str) -> int:
        """Return the rows of a table (1, N, D); 0 if it is not there."""
        return (*self.shape(key), 0)[1]

    def counted(self, letter: str, keys: Collection[str] = ()) -> set[int]:
        """Return the numbers of blocks, branches, … that are there, of some parts or of all."""
        wanted = keys or self.places.keys()
        every = [numbers for key in wanted for numbers in self.places.get(key, ())]
        return {numbers[letter] for numbers in every if letter in numbers}

    @property
    def gated(self) -> bool:
        """Whether an MLP's first layers are gate and value."""
        units, inputs = (*self.shape("expand.weight"), 0)[:2]
        width, hidden = (*self.shape("contract.weight"), 0)[:2]
        return 0 < width == inputs and units == 2 * hidden

    @property
    def offsets(self) -> Shape:
        """The shape of BEiT's tables, (offsets, heads), in each block or for all; () without."""
        return self.shapes.get("shared_table", self.shapes.get("bias_table", ()))

    @property
    def stages(self) -> tuple[int, ...]:
        """Units of each stage of a ResNet."""
        first = next((k for k in ("reduce_conv.weight", "conv1.weight") if k in self), "")
        stages = [numbers["s"] for numbers in self.places.get(first, ())]
        return tuple(stages.count(stage) for stage in sorted(set(stages)))

    def in_file(self, name: str) -> str:
        """Return the name that a tensor has in the file, or would have."""
        return self.stored.get(name, self.prefix + name.removeprefix("/"))

    def entries(
        self, config: ModelConfig, tensors: Iterable[str], format: str, pairs: Pairs = ""
    ) -> list[Entry]:
        """Return `entries` of a model by the file's own names."""
        table = entries(config, tensors, self.names, format, pairs)
        return [entry.renamed(self.in_file) for entry in table]

    def outside(self, why: str) -> dict[str, str]:
        """Return what is left out for having another prefix, with the reason."""
        return {f"(?!{re.escape(self.prefix)}).*": why} if self.prefix else {}


def found(
    shapes: Mapping[str, Shape],
    names: Names,
    stored: Mapping[str, str] | None = None,
    prefix: str = "",
) -> FoundParts:
    """Return which parts of a model some tensors are.

    Args:
        shapes: by their names; by the file's names if there is `stored`
        names: what the family calls them
        stored: the file's names by the family's
        prefix: in front of the names of the model
    """
    if stored is not None:
        shapes = {name: shapes[old] for name, old in stored.items()}
    places: dict[str, dict[Numbers, dict[StoredAs, dict[int, str]]]] = {}
    templates = _templates(names)
    for name in shapes:
        for each, numbers in _meanings(templates, name):
            rows = places.setdefault(each.key, {}).setdefault(numbers, {})
            rows.setdefault(each.row, {})[each.number] = name
    result = FoundParts({**names}, tensors=shapes, stored=stored or {}, prefix=prefix)
    for key, by_numbers in places.items():
        first = by_numbers[min(by_numbers)]
        # A file with queries, keys and values has queries and values, too: the longest counts.
        complete = [row for row, parts in first.items() if len(parts) == len(row.names)]
        if not complete:
            continue
        row = max(complete, key=lambda each: len(each.names))
        own = tuple(shapes[first[row][number]] for number in range(len(row.names)))
        with suppress(RuntimeError, IndexError, ValueError):  # misshapen ones are named later
            made = row.read(None, [torch.empty(shape, device="meta") for shape in own])
            result.shapes[key] = tuple(made[0].shape)
            result.theirs[key] = own
            result.names[key] = [row]
            result.places[key] = [dict(numbers) for numbers in by_numbers]
    return result


def fields_shown(path: object, parts: FoundParts, label: str) -> Fields:
    """Return the fields of `ViTConfig` that tensors show, but for positions, pool and heads.

    Args:
        path: for messages
        parts: of the model, as they were found
        label: the format, for messages

    Raises:
        WeightsError: blocks or a stem of unsupported shapes.
    """
    blocks, contract = parts.counted("n", ("contract.weight",)), parts.shape("contract.weight")
    if blocks != set(range(len(blocks))) or len(contract) != 2:
        raise WeightsError(f"{path}: {label}: unsupported encoder blocks")
    width, mlp = contract
    if parts.shape("qkv.weight")[0] not in (0, 3 * width):
        raise WeightsError(
            f"{path}: unsupported attention, whose heads together are not as wide as a token"
        )
    after = "tokens" if "norm.weight" in parts else "none"
    return {
        "width": width,
        "depth": len(blocks),
        "mlp": mlp,
        "branches": max(1, len(parts.counted("b"))),
        "ffn": "swiglu" if parts.gated else "mlp",
        "norm": "rms" if "norm1.weight" in parts and "norm1.bias" not in parts else "layer",
        "layer_scale": 1e-5 if "scale1" in parts else 0,
        "norm_at": "pooled" if "pooled_norm.weight" in parts else after,
        "registers": parts.rows("registers"),
        **{field: key in parts for field, key in THERE.items()},
        **{field: parts.shape(key)[0] for field, key in LONG.items()},
        **_stem(path, parts, label),
    }


def _stem(path: object, parts: FoundParts, label: str) -> Fields:
    """Patch, channels and kind of stem."""
    if "stem.weight" in parts:
        layers = parts.counted("k", ("stem.weight",))
        if parts.shape("stem.weight")[2:] != (4, 4):
            raise WeightsError(f"{path}: {label}: unsupported layers in the stem")
        # Behind each convolution are a norm and GELU, or GELU alone.
        norms = ("batch" if "stem.running_mean" in parts else "layer") if 1 in layers else "none"
        steps = sum(number % (2 if norms == "none" else 3) == 0 for number in layers)
        return {
            "stem": "hmlp", "patch": 4 * 2 ** (steps - 1), "stem_norm": norms,
            "channels": parts.shape("stem.weight")[1],
        }  # fmt: skip
    kernel = parts.shape("patch.weight")
    if len(kernel) != 4:
        raise WeightsError(f"{path}: {label}: the patches' kernel has shape {kernel}")
    side, channels = kernel[2], kernel[1]
    if "root_conv.weight" not in parts:
        # none only before a norm, as CLIP has it; else a file without it is damaged
        bias = "patch.bias" in parts or "pre_norm.weight" not in parts
        normed = "layer" if "patch_norm.weight" in parts else "none"
        return {"patch": side, "channels": channels, "stem_bias": bias, "stem_norm": normed}
    return {
        "stem": "resnet", "stages": parts.stages, "patch": side * map_stride(parts.stages),
        "channels": parts.shape("root_conv.weight")[1],
    }  # fmt: skip


def patches_of(size: Size | list[int], patch: int) -> tuple[int, int]:
    """Return rows and columns of patches; the pixels that remain are never used."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows // patch, columns // patch


def floored(size: Size | list[int], patch: int) -> tuple[int, int]:
    """Return the pixels of an image that patches cover."""
    rows, columns = patches_of(size, patch)
    return rows * patch, columns * patch


def fitting(sizes: list[Size] | None, patch: int, count: int) -> Size | None:
    """Return the first of some sizes that has `count` patches; for None, the square that has."""
    if sizes is None:
        side = math.isqrt(max(count, 0))
        return side * patch if side and side**2 == count else None
    for size in sizes:
        if math.prod(patches_of(size, patch)) == count:
            return floored(size, patch)
    return None


def entries(
    config: ModelConfig, tensors: Iterable[str], names: Names, format: str, pairs: Pairs = ""
) -> list[Entry]:
    """List which tensors of a family's file make which of a model, or are made of them.

    Args:
        config: of the model
        tensors: names of its tensors, in its order
        names: of the family; the first of several ways to store a part is followed
        format: in words, for messages
        pairs: how channels that rotary positions turn together lie in a head

    Raises:
        WeightsError: the format cannot represent the model.
    """
    templates = _templates(ours(config))
    rows_of = of_tensors(names)
    made: dict[tuple[str, ...], tuple[StoredAs, str, list[str]]] = {}
    for name in tensors:
        meanings = ((each.key, numbers) for each, numbers in _meanings(templates, name))
        key, numbers = next(meanings, ("", ()))
        if not (rows := rows_of.get(key)):
            raise cannot(format, f"{name} of {config.name}")
        filled = tuple(_filled(template, dict(numbers)) for template in rows[0].names)
        # Tensors of ours that are made of the same are made together.
        made.setdefault(filled or (f"computed {name}",), (rows[0], key, []))[2].append(name)
    table = []
    for theirs, (row, key, own) in made.items():
        read, write = (partial(convert, config) for convert in (row.read, row.write))
        entry = Entry(tuple(own), theirs if row.names else (), read, write)
        turned = key.partition(".")[0] in TURNED and "rope" in getattr(config, "positions", "")
        if turned and pairs and isinstance(config, ViTConfig):
            entry = paired(entry, config, pairs == "xy")
        table.append(entry)
    return table


def placed(names: Names, own_row: bool, register_rows: bool) -> Names:
    """Return a table in which positions have rows of the class token and registers, or have not."""
    name = first_name(names, "positions")
    if register_rows:
        way_of = f"with_register_rows({first_name(names, 'registers')} {name})"
        return names | table(f"positions {way_of}\nregisters {way_of}")
    return names | ({} if own_row else table(f"positions without_first_row({name})"))


def parts_of(names: Names, key: str) -> tuple[str, ...]:
    """Return the names under which a tensor is written, as templates; () if the table has none."""
    few = {word: names[word] for word in names if word in f"block {key}"}  # of all: each takes time
    rows = of_tensors(few).get(key)
    return rows[0].names if rows else ()


def first_name(names: Names, key: str) -> str:
    """Return the first of them; empty if there is none."""
    return (*parts_of(names, key), "")[0]


def of_tensors(names: Names) -> Names:
    """Return a table with a word for every tensor, `qkv.bias`, and whole templates of names."""
    block = names["block"][0].names[0] if "block" in names else ""
    tensors: Names = {}
    for word, rows in names.items():
        ends = [""] if word in TENSORS or "." in word else [f".{part}" for part in PARTS]
        for end in ends:
            if not end or word + end not in names:
                tensors[word + end] = [
                    replace(row, names=tuple(re.sub(r"^\.", block, n) + end for n in row.names))
                    for row in rows
                ]
    return tensors


class _Template(NamedTuple):
    """A name of a table: its tensor's word, the way of storing that, and which of its names."""

    key: str
    row: StoredAs
    number: int
    slots: list[str]


def _templates(names: Names) -> dict[tuple[str, ...], list[_Template]]:
    """Every name of a table, by the text around its numbers."""
    found = defaultdict(list)
    for key, rows in of_tensors(names).items():
        for row in rows:
            for number, name in enumerate(row.names):
                each = _Template(key, row, number, SLOT.findall(name))
                found[tuple(SLOT.split(name))].append(each)
    return found


def _meanings(
    templates: dict[tuple[str, ...], list[_Template]], name: str
) -> Iterator[tuple[_Template, Numbers]]:
    """What a name may stand for, and the numbers of its block, branch and so on, from 0."""
    digits = DIGITS.findall(name)
    for each in templates.get(tuple(DIGITS.split(name)), ()):
        pairs = list(zip(each.slots, digits, strict=True))
        if all(slot[0] == "{" or slot == text for slot, text in pairs):
            pairs = [(slot, text) for slot, text in pairs if slot[0] == "{"]
            yield each, tuple((slot[1], int(text) - ("1" in slot)) for slot, text in pairs)


def _filled(template: str, numbers: dict[str, int]) -> str:
    """A name: `{n}` is a number from 0, `{n1}` the same from 1."""
    return template.format(**numbers, **{f"{k}1": number + 1 for k, number in numbers.items()})
