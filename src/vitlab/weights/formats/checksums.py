"""Checksums in our own files: of every tensor, and of the description that lists them."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.formats.entries import Entry
from vitlab.weights.identity import tensor_sha256


def checksum(content: Mapping[str, Any]) -> str:
    """Return the sha256 of what JSON can hold, whatever the order of its keys."""
    plain = json.loads(json.dumps(content))  # keys as JSON has them
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def of_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the sha256 of each tensor's type, shape and bytes."""
    return {name: tensor_sha256(tensor) for name, tensor in tensors.items()}


def checked(entry: Entry, sums: Mapping[str, Any], file: str, advice: str = "") -> Entry:
    """Return an entry that gives tensors only if every bit is as it was when they were saved.

    Args:
        entry: of a file
        sums: the sha256 of each of our tensors
        file: with which the message of a mismatch begins
        advice: with which it ends
    """

    def read(tensors: list[Tensor]) -> list[Tensor]:
        made = entry.read(tensors)
        for name, tensor in zip(entry.ours, made, strict=True):
            if tensor_sha256(tensor) != sums.get(name):
                raise WeightsError(f"{file}: tensor {name!r} does not match its checksum{advice}")
        return made

    return entry._replace(read=read)
