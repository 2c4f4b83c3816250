"""A delta as a file: safetensors with checksums over everything.

The header's only entry, `vitlab-delta-1`, is a JSON object: the base's identity, the model's
configuration and provenance, the sha256 of every tensor, and the sha256 of all that. (One entry,
because safetensors writes several in any order, and the same delta should be the same bytes.)
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.files import staged_file
from vitlab.models.config import ModelConfig
from vitlab.weights.formats.checksums import checked, checksum, of_tensors
from vitlab.weights.formats.entries import same
from vitlab.weights.formats.origins import Origin
from vitlab.weights.formats.room import Hints, Reading
from vitlab.weights.identity import Base, described, description
from vitlab.weights.sharded import HEADER
from vitlab.weights.source import Source

VERSION = "vitlab-delta-1"
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a file that `Delta.save` wrote; tensors that are not in it come from its base.

    Raises:
        WeightsError: it is damaged or of another version.
    """
    if not any(key.startswith(VERSION[:-1]) for key in source.metadata):
        return None
    try:
        content = _content(source.metadata)
        if sorted(source.shapes) != sorted(content["tensors"]):
            raise WeightsError("its tensors are not those in its header")
        damaged = f"{source.path} is a damaged delta"
        sums = content["tensors"]
        entries = [checked(same(name, name), sums, damaged) for name in sums]
        config = described(content, hints.choices)
        base, provenance = _base(content["base"]), dict(content["provenance"])
    except DAMAGE as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise WeightsError(f"{source.path} is a damaged delta: {reason}") from error
    what = f"delta from {base.name}"
    origins = dict.fromkeys(config.as_dict(), Origin.FILE)
    return Reading(
        what, config, entries, origins=origins, exact=True, provenance=provenance, base=base
    )


def write(
    file: Path,
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    base: Base,
    provenance: Mapping[str, Any],
) -> Path:
    """Write a delta, whole or not at all; the same one gives the same bytes.

    Raises:
        DiskError: the file cannot be written.
        WeightsError: the provenance is too long.
    """
    about = description(config)
    content = {
        "base": asdict(replace(base, nearby=_nearby(base.source, file))),
        "kind": about["kind"],
        "model": about["model"],
        "provenance": dict(provenance),
        "tensors": of_tensors(tensors),
    }
    text = json.dumps({"content": content, "sha256": checksum(content)}, ensure_ascii=False)
    if len(text.encode()) > HEADER // 2:
        raise WeightsError(f"the provenance of {about['name']} is too long for a delta: shorten it")
    with staged_file(file) as draft:
        save_file(dict(tensors), draft, metadata={VERSION: text})
    return file


def _content(metadata: Mapping[str, str]) -> dict[str, Any]:
    if set(metadata) != {VERSION}:
        found = ", ".join(map(repr, sorted(metadata)))
        raise WeightsError(f"its header has the entries {found}, not {VERSION}")
    whole = json.loads(metadata[VERSION])
    if set(whole) != {"content", "sha256"} or checksum(whole["content"]) != whole["sha256"]:
        raise WeightsError("its header does not match its checksum")
    return dict(whole["content"])


def _base(values: dict[str, Any]) -> Base:
    """The base that a file names; nothing in it is trusted."""
    size = values["image_size"]
    size = tuple(size) if isinstance(size, list) else size
    texts = [values[key] for key in ("fingerprint", "name")]
    texts += [values[key] for key in ("source", "commit", "nearby") if values[key] is not None]
    numbers = [values["classes"] + 1, *(size if isinstance(size, tuple) else (size,))]
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise WeightsError("the name, source or fingerprint of its base is not text")
    if not all(isinstance(number, int) and number > 0 for number in numbers):
        raise WeightsError("the classes or image_size of its base are not whole numbers")
    return Base(**values | {"image_size": size})


def _nearby(source: str | None, file: Path) -> str | None:
    """A path relative to the folder of a file."""
    if source is None or not Path(source).exists():
        return None
    return os.path.relpath(Path(source).resolve(), file.parent.resolve())
