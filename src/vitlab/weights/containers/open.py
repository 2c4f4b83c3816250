"""A file or folder of weights, opened safely whatever it is: the container by its first bytes.

Nothing here runs code from a file: pickles are read by PyTorch's restricted reader, arrays without
pickles, and whatever else goes wrong inside a reader becomes one line for the user.
"""

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import getitem
from pathlib import Path
from textwrap import dedent

from vitlab.errors import WeightsError
from vitlab.files import check_regular
from vitlab.options import nearest
from vitlab.weights.containers.arrays import (
    Content,
    names_in_zip,
    read_npz,
    read_safetensors,
)
from vitlab.weights.containers.parts import FileModel, chosen, some, without_holders
from vitlab.weights.containers.pickles import read_pickle
from vitlab.weights.seen_file import read_seen
from vitlab.weights.sharded import (
    CONFIG,
    INDEXED,
    MOST,
    TENSORS,
    Fields,
    beside,
    model_files,
    shard_files,
)
from vitlab.weights.source import StoredTensors, readable

RECORDED = ("arch", "args")  # of a checkpoint: the model's name, and the options of the run
# The first bytes of a file (an expression without blanks, or -); names of files, one of which is
# the file's or in the folder or archive; below, what it is, and what to do. The first that fits is
# said.
KINDS = r"""
    \Z
        empty: download it again
    PK\x05\x06
        an empty zip archive: download it again
    version\x20https://git-lfs
        a Git LFS pointer, not the file itself: run git lfs pull in its repository, or download
        it from the repository's page
    (?i)(\xef\xbb\xbf)?\s*<(!doctype\x20html|html|head|\?xml|!--|error>)
        a web page, not weights: the download was an error or a login page; download it again
    -   constants.pkl
        a TorchScript archive: give the safetensors file of the same model, or, where you trust
        it, save torch.jit.load(FILE).state_dict() with torch.save
    -   serialized_exported_program* archive_format
        a program that torch.export wrote: give the weights that it was exported from, saved
        with torch.save(model.state_dict(), FILE)
    GGUF   *.gguf
        a GGUF file, made for llama.cpp: give the safetensors file of the same model
    \x89HDF\r\n\x1a\n   *.h5
        a model for Keras (HDF5): convert it to safetensors with the library that wrote it
    .{4}TFL3   *.tflite
        a TensorFlow Lite model: give the weights that it was converted from
    -   saved_model.pb
        a TensorFlow SavedModel: convert it to safetensors with the library that wrote it
    -   *.ckpt*.index *.data-00000-of-*
        a TensorFlow checkpoint: convert it to safetensors with the library that wrote it
    -   _CHECKPOINT_METADATA checkpoint_metadata _METADATA manifest.ocdbt
        an Orbax checkpoint of JAX: restore it there and save its arrays by name with np.savez,
        or give the .npz or safetensors file of the same model
    -   .metadata
        a distributed checkpoint of PyTorch: make one file of its folder with python -m
        torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pth
    -   *.msgpack
        a Flax model (MessagePack): give the safetensors file of the same model, or save its
        arrays by name with np.savez
    \x08[\x01-\x20](\x12|\x3a)   *.onnx
        an ONNX model: give the weights that it was exported from, as safetensors or .pth
    -   *.pdparams *.pdopt
        a file of PaddlePaddle: convert it to safetensors with the library that wrote it
    \x93NUMPY
        a single NumPy array: a model needs its arrays by name, as np.savez writes them
    .{257}ustar
        a tar archive: unpack it, then give the file of weights in it
    \x1f\x8b
        compressed with gzip: unpack it first
    \x28\xb5\x2f\xfd|\xfd7zXZ\x00|BZh|7z\xbc\xaf\x27\x1c|Rar!
        compressed: unpack it, then give the file of weights in it
    \x89PNG|\xff\xd8\xff|%PDF
        an image or a document, not weights
    \s*[\[{]
        a JSON file, not weights: give the file of weights, or the folder of both
    [\t\r\n\x20-~]{256}|[\t\r\n\x20-~]+\Z
        a text file, not weights ({!r})
"""


def open_source(path: Path, part: str = "") -> StoredTensors:
    """Open a file, or a folder in one of the usual layouts; no tensor is read yet.

    The kind of file is recognized by its first bytes, not by its name.

    Args:
        path: of the file or folder
        part: which of several models in it

    Raises:
        WeightsError: no such file, no weights in it, or it is damaged; names file and place.
    """
    with readable(path):
        content = _read_folder(path) if path.is_dir() else _read_file(path)
        explained = beside(path)
        config = explained["config"]
        together = "model_type" in config or "kind" in config  # of a library that names all tensors
        if content.root or not content.metadata:
            found, names = chosen(path, content.root, part, together)
        else:  # a delta that changes nothing
            found, names = FileModel(), []
        stored = found.stored if config else without_holders(found.stored)
        tensors = {name: found.tensors[old].channels_first() for name, old in stored.items()}
        if len(tensors) > MOST:
            raise WeightsError(f"{path} has {len(tensors):,} tensors; the limit is {MOST:,}")
        return StoredTensors(
            path,
            content.kind,
            {name: each.shape for name, each in tensors.items()},
            lambda name: tensors[name].read(),
            **explained,
            metadata=content.metadata,
            record=_record(content.root, found.wrapper),
            stored={name: old for name, old in stored.items() if name != old},
            counters=tuple(n for n, each in tensors.items() if each.whole and not each.shape),
            notes=(_others(path, names, found.outside),) if len(names) > 1 else (),
            seen=read_seen(path if path.is_dir() else path.parent),
        )


def reason(names: Sequence[str], start: bytes = b"\0") -> str:
    """Return what a file or folder is and what to do, if it is no weights; empty if it may be.

    Args:
        names: of the file, or of those in an archive or a folder
        start: the file's first 512 bytes
    """
    for row in re.split(r"\n(?=\S)", dedent(KINDS).strip()):
        marks, *what = row.splitlines()
        pattern, *globs = marks.split()
        known = pattern != "-" and re.match(pattern.encode(), start, re.DOTALL)
        if known or any(fnmatch.filter(names, glob) for glob in globs):
            return " ".join(map(str.strip, what)).format(
                start[:60].decode("ascii", "replace").strip().partition("\n")[0]
            )
    return ""


def _read_file(path: Path) -> Content:
    """Read one file by its first bytes."""
    with readable(path):
        check_regular(path)
        with path.open("rb") as stream:
            start = stream.read(512)
        if start[8:9] == b"{":
            return read_safetensors(path)
        inside = names_in_zip(path) if start[:2] == b"PK" else []
        if what := reason(inside or [path.name], start):
            raise WeightsError(f"{path} is {what}")
        if inside and all(name.endswith(".npy") for name in inside):
            return read_npz(path)
        if start[:1] == b"\x80" or "data.pkl" in inside:
            return read_pickle(path, bool(inside))
    if inside:
        raise WeightsError(
            f"{path} is a zip archive of {some(inside)}: unpack it, then give the file of weights "
            "in it"
        )
    raise WeightsError(
        f"{path} is not a weights file (.safetensors, .npz, .pth, .pt, .ckpt and .bin are "
        "recognized by their content)"
    )


def _read_folder(path: Path) -> Content:
    """Read the weights in a folder, in one file or in shards."""
    files = _model_files(path)
    if files and files[0].endswith(INDEXED):
        return _read_shards(path / files[0])
    if len(files) == 1:
        return _read_file(path / files[0])
    if files:
        raise WeightsError(
            f"{path} contains several files of weights ({some(files)}): give the path of one, "
            f"{path / files[0]} for example"
        )
    names = sorted(each.name for each in path.iterdir())
    if what := reason(names):
        raise WeightsError(f"{path} contains {what}")
    for name in names:
        if (path / name).is_dir() and _model_files(path / name):
            raise WeightsError(
                f"{path} contains no weights itself, but {path / name} does: give that"
            )
    if CONFIG in names:
        raise WeightsError(f"{path} has a {CONFIG}, but {TENSORS} is missing")
    raise WeightsError(
        f"{path} contains no model: give a finished run, a saved folder or a weights file"
    )


def _model_files(folder: Path) -> list[str]:
    return model_files(each.name for each in folder.iterdir() if each.is_file())


def _read_shards(index: Path) -> Content:
    """Read the files that an index lists, each of which must hold what it says."""
    where = shard_files(index)
    found: Fields = {}
    for file in dict.fromkeys(where.values()):
        content = _read_file(file)
        listed = {name for name, place in where.items() if place == file}
        for name in sorted(listed ^ content.root.keys()):
            problem = "does not contain" if name in listed else "contains"
            lists = "lists" if name in listed else "does not list"
            raise WeightsError(
                f"{index}: {file.name} {problem} tensor {name!r}, which the index {lists} for it"
            )
        found |= content.root
    return Content(content.kind, found)


def dropped(source: StoredTensors, patterns: str | Sequence[str]) -> StoredTensors:
    """Return a source without the tensors that the user drops, with a note.

    Raises:
        WeightsError: a pattern fits no tensor.
    """
    gone: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        fitting = {
            name
            for name in source.shapes
            if any(fnmatch.fnmatchcase(each, pattern) for each in (name, source.in_file(name)))
        }
        if not fitting:
            near = nearest(pattern, source.shapes)
            raise WeightsError(f"{source.path} has no tensor {pattern!r} to leave out: {near}")
        gone |= fitting
    if not gone:
        return source
    shapes = {name: shape for name, shape in source.shapes.items() if name not in gone}
    note = f"{source.path}: left out as asked: {some(sorted(gone))}"
    return replace(source, shapes=shapes, notes=(*source.notes, note))


def _others(path: Path, names: list[str], outside: tuple[str, ...]) -> str:
    """The line about a file with several models."""
    left = f"; left out, outside of them: {some(outside)}" if outside else ""
    return (
        f"{path} contains several models ({', '.join(names)}): {names[0]} was read; --part "
        f"{names[1]} reads another (in training --weights-part, in Python part={names[1]!r}){left}"
    )


def _record(root: Fields, wrapper: tuple[str, ...]) -> Fields:
    """What a training script says of its model, in the file or in an entry around the tensors."""
    nodes = accumulate(wrapper, getitem, initial=root)
    return {key: node[key] for node in nodes for key in RECORDED if key in node}
