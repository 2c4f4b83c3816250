"""ViTLab's own folder: `config.json`, and every tensor under its own name."""

from collections.abc import Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig
from vitlab.weights.assembly import empty
from vitlab.weights.formats.entries import Entry, same
from vitlab.weights.formats.origins import Origin
from vitlab.weights.formats.room import Hints, Reading, Writing
from vitlab.weights.identity import described, description
from vitlab.weights.sharded import CONFIG
from vitlab.weights.source import Source

VERSION = "vitlab-1"


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a folder that `vitlab.save` wrote, or transformers' `Trainer` with our adapter.

    Raises:
        WeightsError: it is damaged or of another version.
    """
    content = source.config
    if not str(content.get("format", "")).startswith("vitlab-"):
        return None
    file = source.path / CONFIG if source.path.is_dir() else source.path
    if content["format"] != VERSION:
        raise WeightsError(
            f"{file} has format {content['format']!r}, but this version reads {VERSION!r}: "
            "load it with the version of ViTLab that wrote it"
        )
    try:
        config = described(content, hints.choices)
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{file} is damaged: {type(error).__name__} {error}") from error
    except ValueError as error:
        raise WeightsError(f"{file}: {error}") from error
    provenance = content.get("provenance")
    return Reading(
        "ViTLab",
        config,
        _entries(config, "model." if content.get("model_type") == "vitlab" else ""),
        origins=dict.fromkeys(config.as_dict(), Origin.FILE),
        exact=True,
        provenance=dict(provenance) if isinstance(provenance, dict) else None,
    )


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent any model."""
    content = {"format": VERSION} | description(config) | {"provenance": dict(provenance)}
    return Writing(_entries(config), {CONFIG: content})


def _entries(config: ModelConfig, prefix: str = "") -> list[Entry]:
    return [same(name, prefix + name) for name in empty(config)]
