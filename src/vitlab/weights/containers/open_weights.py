"""A file or folder of weights, opened safely whatever it is: the container by its first bytes.

Nothing here runs code from a file: pickles are read by PyTorch's restricted reader, arrays without
pickles, and whatever else goes wrong inside a reader becomes one line for the user.
"""

import fnmatch
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.files import check_regular
from vitlab.options import nearest
from vitlab.weights.containers.archives import check_sizes
from vitlab.weights.containers.contents import Content, Stored, channels_first
from vitlab.weights.containers.named_arrays import read_npz, read_safetensors
from vitlab.weights.containers.not_weights import reason
from vitlab.weights.containers.parts import STATE, chosen
from vitlab.weights.containers.pickled.pickles import read_pickle
from vitlab.weights.containers.pickled.torchscript import CONSTANTS, read_torchscript
from vitlab.weights.containers.pickled.whole_modules import read_whole_module
from vitlab.weights.containers.prefixes import without_holders
from vitlab.weights.containers.weight_folders import beside, read_folder
from vitlab.weights.sharded import MOST
from vitlab.weights.source import Source, readable

SHOWN = 8  # names in a message


def open_source(path: Path, part: str = "") -> Source:
    """Open a file, or a folder in one of the usual layouts; no tensor is read yet.

    The kind of file is recognized by its first bytes, not by its name.

    Args:
        path: of the file or folder
        part: which of several models in it

    Raises:
        WeightsError: no such file, no weights in it, or it is damaged; names file and place.
    """
    with readable(path):
        content = read_folder(path, read_file) if path.is_dir() else read_file(path)
        return _source(path, content, beside(path), part)


def read_file(path: Path) -> Content:
    """Read one file by its first bytes.

    Raises:
        WeightsError: it is damaged, or holds no weights; says what it is and what to do.
    """
    with readable(path):
        check_regular(path)
        with path.open("rb") as stream:
            start = stream.read(512)
            if start[:2] == b"PK":
                check_sizes(path, stream)
        if why := reason(path, start):
            raise WeightsError(f"{path} {why}")
        if start[:2] == b"PK":
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
            if names and all(name.endswith(".npy") for name in names):
                return read_npz(path)
            if any(name.rpartition("/")[2] == CONSTANTS for name in names):
                return read_torchscript(path)
            return read_whole_module(path) or read_pickle(path)
        if start[8:9] == b"{":
            return read_safetensors(path)
        if start[:1] == b"\x80":
            return read_pickle(path)
    raise WeightsError(
        f"{path} is not a weights file (.safetensors, .npz, .pth, .pt, .ckpt and .bin are "
        "recognized by their content)"
    )


def _source(
    path: Path, content: Content, explained: dict[str, dict[str, Any]], part: str
) -> Source:
    """The tensors of the chosen model, and what stands beside them."""
    config = explained["config"]
    if content.metadata and not content.root:  # a delta that changes nothing
        return Source(path, content.kind, {}, _nothing, metadata=content.metadata)
    told = "model_type" in config or "kind" in config  # transformers' and ours name all tensors
    found, names = chosen(path, content.root, part, told)
    stored = found.stored if config else without_holders(found.stored)
    tensors = {name: channels_first(found.tensors[old]) for name, old in stored.items()}
    if len(tensors) > MOST:
        raise WeightsError(f"{path} has {len(tensors):,} tensors; the limit is {MOST:,}")
    place = ".".join(found.wrapper)
    return Source(
        path,
        content.kind,
        {name: each.shape for name, each in tensors.items()},
        lambda name: tensors[name].read(),
        config=config,
        preprocessor=explained["preprocessor"],
        open_clip=explained["open_clip"],
        adapter=explained["adapter"],
        metadata=content.metadata,
        record=_record(content.root, found.wrapper),
        wrapper=place,
        parts=tuple(names),
        stored={name: old for name, old in stored.items() if name != old},
        counters=tuple(n for n, each in tensors.items() if each.whole and not each.shape),
        notes=(_others(path, names, found.outside),) if len(names) > 1 else (),
    )


def dropped(source: Source, patterns: tuple[str, ...]) -> Source:
    """Return a source without the tensors that the user drops, with a note.

    Raises:
        WeightsError: a pattern fits no tensor.
    """
    gone: list[str] = []
    for pattern in patterns:
        fitting = [
            name
            for name in source.shapes
            if fnmatch.fnmatchcase(name, pattern)
            or fnmatch.fnmatchcase(source.stored.get(name, name), pattern)
        ]
        if not fitting:
            near = nearest(pattern, source.shapes)
            raise WeightsError(f"{source.path} has no tensor {pattern!r} to leave out: {near}")
        gone += fitting
    if not gone:
        return source
    shapes = {name: shape for name, shape in source.shapes.items() if name not in gone}
    note = f"{source.path}: left out as asked: {_some(sorted(set(gone)))}"
    return replace(source, shapes=shapes, notes=(*source.notes, note))


def _others(path: Path, names: list[str], outside: tuple[str, ...]) -> str:
    """The line about a file with several models."""
    beside = f"; left out, outside of them: {_some(outside)}" if outside else ""
    return (
        f"{path} contains several models ({', '.join(names)}): {names[0]} was read; --part "
        f"{names[1]} reads another (in Python part={names[1]!r}){beside}"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _record(root: Mapping[str, Any], wrapper: tuple[str, ...]) -> dict[str, Any]:
    """The plain values beside the tensors: of the whole file, then of the entries around them."""
    record = _without_tensors(root)
    node: Any = root
    for key in wrapper:
        node = node[key]
        record |= {k: v for k, v in _without_tensors(node).items() if not isinstance(v, dict)}
    return record


def _without_tensors(node: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, dict):
            inner = {} if STATE.fullmatch(key) else _without_tensors(value)
            if inner:
                found[key] = inner
        elif not isinstance(value, Stored):
            found[key] = value
    return found


def _nothing(name: str) -> Tensor:
    raise KeyError(name)
