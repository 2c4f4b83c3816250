"""Modules that were saved whole, with `torch.save(module)`: their tensors, without their classes.

PyTorch would import the module's class and run its code. Here the pickle is only described
(`inert.py`): parameters, buffers and inner modules are found where every module of PyTorch keeps
them. Only models that were published in this form are read so; of all others the owner is asked for
a state dict, since their classes may keep tensors elsewhere.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitlab.weights.containers.contents import Content
from vitlab.weights.containers.pickled.inert import Made, described
from vitlab.weights.containers.pickled.pickles import check_archive
from vitlab.weights.containers.pickled.torchscript import tensors_in
from vitlab.weights.sharded import HEADER

# openai/DALL-E: encoder.pkl and decoder.pkl.
PUBLISHED = ("dall_e.encoder.Encoder", "dall_e.decoder.Decoder")
ORDERED = "collections.OrderedDict"


def read_whole_module(path: Path) -> Content | None:
    """Describe the parameters and buffers of a published module by the names of its state dict.

    Returns:
        None for any other file.

    Raises:
        WeightsError: it is damaged.
    """
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        place = next((n for n in archive.namelist() if n.endswith("/data.pkl")), "")
        if not place or archive.getinfo(place).file_size > HEADER:
            return None
        raw = archive.read(place)
    if not any(_spelled(name) in raw[:200] for name in PUBLISHED):
        return None
    root = described(raw)
    if not isinstance(root, Made) or _class_of(root) not in PUBLISHED:
        return None
    check_archive(path)
    folder = place.removesuffix("data.pkl")
    return Content("pickle", tensors_in(path, folder, root, _inside))


def _spelled(name: str) -> bytes:
    """Return how a pickle of protocol 2, PyTorch's, spells the name of a class."""
    module, _, last = name.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def _class_of(made: Made) -> str:
    """Return the class of an object: what makes it, or the first argument of what makes objects."""
    if made.name in ("copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__"):
        first = made.args[0] if isinstance(made.args, tuple) and made.args else None
        return str(getattr(first, "name", ""))
    return made.name


def _inside(state: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """The parameters, buffers and modules of a module."""
    for group in ("_parameters", "_buffers", "_modules"):
        yield from _items(state.get(group))


def _items(group: object) -> list[tuple[Any, Any]]:
    """The entries of a dictionary, ordered or plain."""
    if isinstance(group, Made) and group.name == ORDERED:
        return list(group.items.items())
    return list(group.items()) if isinstance(group, dict) else []
