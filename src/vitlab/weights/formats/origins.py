"""Origins: where each field of a configuration comes from; nothing is guessed in silence.

Shapes and names of tensors say most of a configuration, and they are checked against the model
tensor by tensor. What no tensor shows (`SILENT`: heads, the form of GELU, epsilon, pooling, how
images are normalized, …) changes the outputs without an error, so a reader says where it has it
from, and what is only assumed becomes a warning that names the option that settles it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.records import record, words
from vitlab.weights.sharded import Fields

# Where a field comes from, the most certain first: the user gave it; the file says so, or a
# configuration beside it; names and shapes of the tensors; the architecture's name, which a
# configuration states or the user gave; every released model of the family that the tensors are
# recognized as; nothing says so, it is the usual value.
ORIGINS = "option", "file", "tensors", "name", "family", "assumed"
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
        f"--name with the model's name in timm (in Python: {first}=…, name=…)"
    )


def _shown(value: object) -> str:
    several: Iterable[object] = value if isinstance(value, tuple) else (value,)
    return " ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in several)
