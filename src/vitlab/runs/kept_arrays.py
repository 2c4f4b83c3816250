"""Arrays in a safetensors file with a checksum: the predictions of a run, cached features."""

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.values import fits

FORMAT = "1"
Arrays = dict[str, NDArray[Any]]


def write_arrays(file: Path, arrays: Mapping[str, NDArray[Any]], about: Any) -> None:
    """Write arrays, and what JSON can hold about them, with a checksum."""
    from safetensors.numpy import save_file

    text = json.dumps(about)
    whole = {name: np.ascontiguousarray(each) for name, each in arrays.items()}
    save_file(whole, file, {"format": FORMAT, "about": text, "sha256": _checksum(whole, text)})


def read_arrays(file: Path, kind: Any, names: Collection[str] = ()) -> tuple[Arrays, Any] | None:
    """Return memory-mapped arrays and what is said about them; None if missing or damaged.

    Args:
        file: that `write_arrays` wrote
        kind: the type of what is said about them
        names: of arrays that must be there
    """
    from safetensors import SafetensorError, safe_open

    try:
        if not file.is_file():
            return None
        with safe_open(file, framework="pt") as stored:  # its tensors are maps of the file
            header = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name).numpy() for name in stored.keys()}  # noqa: SIM118
        if header["format"] != FORMAT or header["sha256"] != _checksum(arrays, header["about"]):
            return None
        about = json.loads(header["about"])
        return (arrays, about) if fits(about, kind) and arrays.keys() >= {*names} else None
    except (RecursionError, OSError, SafetensorError, KeyError, ValueError, TypeError):
        return None


def _checksum(arrays: Mapping[str, NDArray[Any]], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(arrays[name].data)
    return digest.hexdigest()
