"""ViTLab's own folder, which timm and transformers open too if they have the same model."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.assembly import empty
from vitlab.weights.formats.catalog import format_named
from vitlab.weights.formats.checksums import checked, checksum, of_tensors
from vitlab.weights.formats.entries import Entry, same
from vitlab.weights.formats.origins import Origin
from vitlab.weights.formats.room import Hints, Reading, Writing
from vitlab.weights.identity import described, description
from vitlab.weights.sharded import CONFIG, beside
from vitlab.weights.source import Source

VERSION = "vitlab-1"
NAMED = "vitlab-2"  # the same with the names and keys of another library, which `names` says
REWRITTEN = "transformers_version"  # a key of what transformers saved: our checksums are no more
FIRST = "blocks.0.attention.0.body.qkv.weight"  # which only our Vision Transformers have
# Stems and positions that a state dict does not explain, as others are by the names of `dialects`.
ODD = re.compile(r"(.*\.)?(positions\.(?!0\.table$)|stem\.(?!layers\.)).*")


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a folder that `vitlab.save` wrote, or transformers' `Trainer` with our adapter.

    What transformers wrote of another library's form of such a folder is theirs alone.

    Raises:
        WeightsError: it is damaged or of another version.
    """
    first = next((n for n in sorted(source.shapes, key=len) if n.endswith(FIRST)), None)
    folder = source.path if source.path.is_dir() else source.path.parent
    content = source.config or (beside(folder)["config"] if first else {})
    theirs = REWRITTEN in content and content["model_type"] != "vitlab"
    if theirs or not str(content.get("format", "")).startswith("vitlab-"):
        if first and (odd := next(filter(ODD.fullmatch, source.shapes), "")):
            raise WeightsError(
                f"{source.path} is of ViTLab, but tensors alone do not explain {odd}: save the "
                "model with vitlab.save(model, FOLDER)"
            )
        return None
    file, prefix = folder / CONFIG, first.removesuffix(FIRST) if first else ""
    if content["format"] not in (VERSION, NAMED):
        raise WeightsError(
            f"{file} has format {content['format']!r}, but this version reads {NAMED!r}: "
            "load it with the version of ViTLab that wrote it"
        )
    try:
        config = described(content, hints.choices)
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{file} is damaged: {type(error).__name__} {error}") from error
    except ValueError as error:
        raise WeightsError(f"{file}: {error}") from error
    _check(content, file)
    if isinstance(content["model"].get("labels"), str):
        raise WeightsError(f"{file}: labels must be a list of words")
    provenance = content.get("provenance")
    alone = source.config != content or prefix  # a state dict, by itself or in a training module
    return Reading(
        "ViTLab",
        config,
        _entries(config, prefix) if alone else _checked(config, content, source),
        {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {},
        origins=dict.fromkeys(config.as_dict(), Origin.FILE),
        exact=True,
        provenance=dict(provenance) if isinstance(provenance, dict) else None,
    )


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent any model: by the names of timm or transformers if it opens there as the same."""
    content = description(config) | {"provenance": dict(provenance)}
    for name in ("timm", "transformers"):
        with suppress(WeightsError):
            theirs = format_named(name).writes(config, {})
            if _is_same(config, theirs):
                both = {"format": NAMED, "names": name} | content | theirs.files[CONFIG]
                return Writing(theirs.entries, theirs.files | {CONFIG: both})
    return Writing(
        _entries(config), {CONFIG: {"format": VERSION, "model_type": "vitlab"} | content}
    )


def _is_same(config: ModelConfig, theirs: Writing) -> bool:
    """Whether another library's form has the model's outputs at every size, and all its bits."""
    if not isinstance(config, ViTConfig) or theirs.stored != config.at_positions:
        return False
    keyless = config.qkv_bias and "bias" in config.positions  # BEiT's, but for the bias of keys
    resized = config.positions_size is None or config.resampling == theirs.resampling
    stored = {name for entry in theirs.entries if entry.theirs for name in entry.ours}
    return resized and not keyless and stored == empty(config).keys()


def sealed(
    content: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None
) -> dict[str, Any]:
    """Return the content of config.json with checksums, by which damage is recognized.

    Args:
        content: without checksums, or with older ones
        tensors: of the model; None if those are the same as before
    """
    rest = {key: value for key, value in content.items() if key != "sha256"}
    if tensors is not None:
        rest["tensors"] = of_tensors(tensors)
    return rest | {"sha256": checksum(rest)}


def _check(content: Mapping[str, Any], file: Path) -> None:
    """Refuse a config.json that is not as it was written; older ones have no checksum."""
    kept = "sha256" in content and REWRITTEN not in content
    if kept and sealed(content)["sha256"] != content["sha256"]:
        raise WeightsError(
            f"{file} does not match its checksum: copy it again, or remove sha256 from it if it "
            "was edited on purpose"
        )


def _checked(config: ModelConfig, content: dict[str, Any], source: Source) -> Sequence[Entry]:
    """Our tensors as they are, each compared with its checksum if the folder has them."""
    table: Sequence[Entry] = _entries(config, "model." if REWRITTEN in content else "")
    if content["format"] == NAMED and not empty(config).keys() <= source.shapes.keys():
        table = format_named(content["names"]).writes(described(content, {}), {}).entries
    sums = content.get("tensors")
    if not isinstance(sums, dict) or REWRITTEN in content:
        return table
    advice = (
        ": copy the file again, or remove tensors and sha256 from its config.json if it was "
        "changed on purpose"
    )
    return [checked(entry, sums, str(source.path), advice) for entry in table]


def _entries(config: ModelConfig, prefix: str = "") -> list[Entry]:
    return [same(name, prefix + name) for name in empty(config)]
