"""Records: what is known of a family of weights, in one notation, and where each field comes from.

`norm_eps 1e-5, gelu exact, @OPENAI` are facts, `stem linear|resnet` are limits, and a line of a
word and another text is a rule. Tables of tensor names (`entries.table`) are of rules as well.

Shapes and names of tensors say most of a configuration, and they are checked against the model
tensor by tensor. What no tensor shows (`SILENT`: heads, the form of GELU, epsilon, pooling, how
images are normalized, …) changes the outputs without an error, so a reader says where it has it
from, and what is only assumed becomes a warning that names the option that settles it.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from textwrap import dedent
from typing import Any

from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.sharded import Fields

Limits = dict[str, tuple[Any, ...]]  # the values that a field may have
NAMED: dict[str, Fields] = {
    "IMAGENET": IMAGENET,
    "INCEPTION": INCEPTION,
    "OPENAI": OPENAI,
    "HALF": {"mean": (0.5,), "std": (0.5,)},
    "SATELLITE": {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)},  # SAT-493M
    "UNCHANGED": {"mean": (0.0,) * 3, "std": (1.0,) * 3},
    "PLAIN": {"gelu": "exact", "norm_eps": 1e-6},
}


def record(text: str, others: Mapping[str, Fields] = NAMED) -> Fields:
    """Return facts as a record has them: `norm_eps 1e-5, gelu exact, @OPENAI`.

    Values are words, or as in JSON; `@` is another record, such as a mean and std of pixels.
    """
    found: Fields = {}
    for item in filter(None, re.split(r",\s+", text.strip())):
        word, *value = item.split(None, 1)
        found |= {word: plain(value[0])} if value else others[word[1:]]
    return found


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


def limits(text: str) -> Limits:
    """Return the values that fields may have: `stem linear|resnet, norm layer`."""
    items = (item.split() for item in text.strip().split(","))
    return {word: tuple(map(plain, values.split("|"))) for word, values in items}


def records(text: str) -> dict[str, Fields]:
    """Return a record by the name or pattern in front of it; indented lines belong to it.

    `@` is one of `NAMED` or a record above; lines that begin with `|` go on with a pattern.
    """
    found: dict[str, Fields] = {}
    for row in re.split(r"\n(?=\S)", dedent(text).strip()):
        name, facts = re.sub(r"\n\s+\|", "|", row).split(None, 1)
        found[name] = record(facts, NAMED | found)
    return found


def found_in(table: Mapping[str, Fields], name: str) -> Fields:
    """Return what all rows whose pattern a name contains say together, the last the most."""
    rows = [row for pattern, row in table.items() if re.search(pattern, name)]
    return {key: value for row in rows for key, value in row.items()}


def plain(text: str) -> Any:
    """Return a value of JSON, or the word itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def rules(text: str) -> dict[str, str]:
    """Return what stands behind the first word of each line: names, a word, or a reason."""
    rows = (row.split(None, 1) for row in text.strip().splitlines())
    return {word: rest.strip() for word, rest in rows}


# Where a field comes from, the most certain first: the user gave it; the file says so, or a
# configuration beside it; names and shapes of the tensors; the architecture's name, which a
# configuration states or the user gave; every released model of the family that the tensors are
# recognized as; nothing says so, it is the usual value: `option`, `file`, `tensors`, `name`,
# `family`, `assumed`.

# Fields that change the outputs but neither the names nor the shapes of the tensors.
SILENT = words("""
    image_size center heads gelu norm_eps norm_order norm_at pool pool_heads pool_prefix pool_tokens
    positions positions_at rope_kind rope_base rope_rounded rope_grid rope_offset resampling resnet
    stem_act queries mean std interpolation crop fit tokens
""")
# Fields that no output depends on: how weights start, and what only training does.
WITHOUT_EFFECT = words("""
    zero_head head_bias layer_scale bias_locality drop_path drop_path_ramp dropout labels
""")


@dataclass
class Facts:
    """Fields as they are found, each with its origin; what is put later takes precedence.

    Attributes:
        values: fields of the configuration
        origins: of each of them
    """

    values: Fields = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def put(self, origin: str, found: Fields | str) -> "Facts":
        """Add fields, or those of a record, over those that were there before; return self."""
        found = record(found) if isinstance(found, str) else found
        self.values |= found
        self.origins |= dict.fromkeys(found, origin)
        return self

    def fill(self, origin: str, usual: Fields) -> "Facts":
        """Add those fields that are not there yet; return self."""
        return self.put(origin, {k: v for k, v in usual.items() if k not in self.values})


def with_means(facts: Facts) -> Facts:
    """Return facts in which images of other channels than those that are known have half a range.

    Whoever trains on 13 channels has means of their own, which no file of weights says.
    """
    for name in ("mean", "std"):
        if name not in facts.values or facts.origins.get(name) == "option":
            continue
        values = facts.values[name]
        if len(set(values)) > 1 and len(values) != facts.values["channels"]:
            facts.put("assumed", {name: (0.5,)})
    return facts


def whole(config: ModelConfig, origins: Mapping[str, str]) -> dict[str, str]:
    """Return the origin of every field of a configuration.

    A field that no reader put is one that the tensors show, or the convention of a family.
    """
    silent = dict.fromkeys(SILENT, "family")
    every = {each.name: silent.get(each.name, "tensors") for each in fields(config)}
    return every | {name: origin for name, origin in origins.items() if name in every}


def assumed(config: ModelConfig, origins: Mapping[str, str]) -> Fields:
    """Return the fields that are only assumed although outputs depend on them, with their values.

    One that has no effect in this configuration, such as the form of a gated MLP's GELU, is left
    out.
    """
    doubtful = [name for name in SILENT if origins.get(name) == "assumed"]
    return {name: getattr(config, name) for name in doubtful if _matters(config, name)}


def _matters(config: ModelConfig, name: str) -> bool:
    if isinstance(config, ViTConfig) and name == "gelu":
        return config.ffn == "mlp" or config.pool == "attention"
    return name != "resampling"  # of another image size, for which the model says it


def warning(path: object, config: ModelConfig, origins: Mapping[str, str]) -> str:
    """Return one line about what was assumed of a file; empty if nothing was."""
    doubts = assumed(config, origins)
    if not doubts:
        return ""
    shown = ", ".join(f"{name} {_shown(value)}" for name, value in doubts.items())
    flags = ", ".join(f"--{name.replace('_', '-')}" for name in doubts)
    first = next(iter(doubts))
    return (
        f"{path} does not say, so these are assumed: {shown}; to settle them, give {flags}, or "
        f"--name with the model's name in timm (in training --weights-name; in Python: {first}=…, "
        "name=…)"
    )


def _shown(value: object) -> str:
    several: Iterable[object] = value if isinstance(value, tuple) else (value,)
    return " ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in several)
