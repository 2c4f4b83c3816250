"""Our own folders by the names of another library: their versions, and their tensors."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from vitlab.weights.assembly import empty
from vitlab.weights.formats.catalog import format_named
from vitlab.weights.formats.entry import Entry
from vitlab.weights.identity import described
from vitlab.weights.sharded import Fields
from vitlab.weights.source import StoredTensors

VERSION = "vitlab-1"
NAMED = "vitlab-2"  # the same with the names and keys of another library, which `names` says


def in_own_names(source: StoredTensors) -> StoredTensors:
    """Return a folder of `NAMED` by our names, which an adapter around our own model has."""
    entries = {name: entry for entry in entries_of_library(source.config) for name in entry.ours}

    def numbers(name: str) -> Tensor:
        entry = entries[name]
        made = entry.read([source.numbers(each) for each in entry.theirs])
        return made[entry.ours.index(name)]

    shapes = {
        name: tuple(tensor.shape) for name, tensor in empty(described(source.config, {})).items()
    }
    return replace(source, shapes=shapes, stored={}, numbers=numbers)


def entries_of_library(content: Fields) -> Sequence[Entry]:
    """Return our tensors by the names that another library's writer gives them."""
    return format_named(content["names"]).writes(described(content, {}), {}, empty).entries
