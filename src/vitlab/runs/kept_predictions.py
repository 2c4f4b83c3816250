"""`predictions.safetensors` in a run's folder: what the model answered to each test image."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.files import staged_file

FORMAT = "1"
Arrays = dict[str, NDArray[Any]]


def keep_predictions(file: Path, arrays: Mapping[str, NDArray[Any]], about: dict[str, Any]) -> None:
    """Write arrays, and JSON values about them, with a checksum.

    Raises:
        DiskError: the file cannot be written.
    """
    from safetensors.numpy import save_file

    text = json.dumps(about)
    whole = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
    header = {"format": FORMAT, "about": text, "sha256": _checksum(whole, text)}
    with staged_file(file) as draft:
        save_file(whole, draft, header)


def kept_predictions(file: Path) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the arrays and what is said about them; None if the file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="numpy") as stored:
            header = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if header["format"] != FORMAT or header["sha256"] != _checksum(arrays, header["about"]):
            return None
        return arrays, dict(json.loads(header["about"]))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def _checksum(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
