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


def checked(name: str, sha256: str, file: str, advice: str = "") -> Entry:
    """Map one tensor as it is, if every bit of it is as it was written.

    Args:
        name: of the tensor
        sha256: as it was written
        file: with which the message of a mismatch begins
        advice: with which it ends
    """

    def read(tensors: list[Tensor]) -> list[Tensor]:
        if tensor_sha256(tensors[0]) != sha256:
            raise WeightsError(f"{file}: tensor {name!r} does not match its checksum{advice}")
        return tensors

    return Entry((name,), (name,), read, list)
