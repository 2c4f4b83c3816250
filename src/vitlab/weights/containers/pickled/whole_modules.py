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

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import Content
from vitlab.weights.containers.pickled.inert import Made, described
from vitlab.weights.containers.pickled.pickles import check_archive
from vitlab.weights.containers.pickled.torchscript import DEEPEST, TENSOR, stored_in
from vitlab.weights.sharded import HEADER, MOST

# openai/DALL-E: encoder.pkl and decoder.pkl.
PUBLISHED = ("dall_e.encoder.Encoder", "dall_e.decoder.Decoder")
PARAMETERS = (
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch.nn.parameter.Parameter",
)  # fmt: skip
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
        stored = [i for i in archive.infolist() if i.compress_type == zipfile.ZIP_STORED]
        folder = place.removesuffix("data.pkl")
        order = f"{folder}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise WeightsError(f"{path} was written on a machine with another order of bytes")
    check_archive(path)
    sizes = {info.filename: info.file_size for info in stored}
    found: dict[str, Any] = {}
    for name, each in _tensors(path, root):
        if len(found) > MOST:
            raise WeightsError(f"{path} has more than {MOST:,} tensors")
        found[name] = stored_in(path, f"{folder}data/", each, sizes)
    return Content("pickle", found)


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


def _tensors(path: Path, root: Made) -> Iterator[tuple[str, Made]]:
    """The tensors of a module and of the modules in it."""
    waiting, count = [("", root)], 0
    while waiting:
        prefix, module = waiting.pop()
        state = module.state if isinstance(module.state, dict) else {}
        for name, value in (
            *_items(state.get("_parameters")),
            *_items(state.get("_buffers")),
            *_items(state.get("_modules")),
        ):
            count += 1
            if count > 10 * MOST or prefix.count(".") > DEEPEST:
                raise WeightsError(f"{path} has too many modules, or too deep ones")
            if not isinstance(value, Made) or not isinstance(name, str):
                continue
            if (tensor := _tensor(value)) is not None:
                yield prefix + name, tensor
            elif isinstance(value.state, dict):
                waiting.append((f"{prefix}{name}.", value))


def _items(group: object) -> list[tuple[Any, Any]]:
    """The entries of a dictionary, ordered or plain."""
    if isinstance(group, Made) and group.name == ORDERED:
        return list(group.items.items())
    return list(group.items()) if isinstance(group, dict) else []


def _tensor(value: Made) -> Made | None:
    """The tensor in a parameter, or of a buffer; None for a module."""
    if value.name in PARAMETERS and isinstance(value.args, tuple) and value.args:
        value = value.args[0] if isinstance(value.args[0], Made) else value
    return value if value.name == TENSOR else None
