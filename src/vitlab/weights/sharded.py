"""Weights in one file or, when they are large, in shards: the layout of the Hugging Face hub."""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitlab.errors import UserError

TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
LIMIT = 5 * 10**9  # bytes in a shard
HEADER, MOST = 10 * 2**20, 100_000  # a header of more bytes, or of more tensors, is no model's


def write_tensors(folder: Path, tensors: dict[str, Tensor], limit: int = LIMIT) -> None:
    """Write tensors into a folder: `model.safetensors`, or shards and their index above `limit`.

    Args:
        folder: an empty one
        tensors: by name; any device, any layout in memory. No more than a shard is ever copied.
        limit: bytes of weights in a file; a tensor larger than that has a shard of its own
    """
    split = split_torch_state_dict_into_shards(
        tensors, filename_pattern="model{suffix}.safetensors", max_shard_size=limit
    )
    for file, names in split.filename_to_tensors.items():
        save_file({name: tensors[name].contiguous() for name in names}, folder / file)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8")


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file of a saved folder holds each tensor, from their headers alone.

    `model.safetensors` counts where it is there, else the shards that the index names.

    Raises:
        ValueError: a file is missing or damaged, or the index names what it may not: an absolute
            path, a parent, a link, a tensor that is elsewhere, or one tensor twice.
    """
    single, index = folder / TENSORS, folder / INDEX
    if single.is_file() or not index.is_file():
        return dict.fromkeys(stored_names(single), single)
    where = read_index(index)
    files = {name: _shard(index, name) for name in sorted(set(where.values()))}
    for name, file in files.items():
        listed = {tensor for tensor, place in where.items() if place == name}
        for tensor in sorted(listed ^ set(stored_names(file))):
            if tensor in listed:
                problem = f"{name} holds no tensor {tensor!r}, which the index places there"
            elif tensor in where:
                problem = f"tensor {tensor!r} is twice there, in {name} and {where[tensor]}"
            else:
                problem = f"{name} holds tensor {tensor!r}, which the index does not know"
            raise UserError(f"{index}: {problem}")
    return {tensor: files[name] for tensor, name in where.items()}


def stored_names(file: Path) -> list[str]:
    """The tensors in a safetensors file, from its header.

    Raises:
        ValueError: no such file, a damaged one, or a header beyond all measure.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
        if length > HEADER:
            raise UserError(f"{file} is damaged: its header would take {length:,} bytes")
        with safe_open(file, framework="pt") as stored:
            names = list(stored.keys())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is damaged or missing: {error}") from error
    if len(names) > MOST:
        raise UserError(f"{file} holds {len(names):,} tensors: more than any model")
    return names


def read_index(index: Path) -> dict[str, str]:
    """The index of a sharded model: the file's name for each tensor's.

    Raises:
        ValueError: it is damaged, or names a tensor twice.
    """
    try:
        if index.stat().st_size > HEADER:
            raise UserError("it is too large for an index")
        content = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_once)
        where = content["weight_map"]
        if not isinstance(where, dict) or not where or len(where) > MOST:
            raise UserError("its weight_map names no tensors, or too many")
        if not all(isinstance(name, str) for name in where.values()):
            raise UserError("its weight_map names something that is no file")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "no weight_map" if isinstance(error, KeyError) else error
        raise UserError(f"{index} is damaged or is no index: {reason}") from error
    return where


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UserError(f"it names {twice!r} twice")
    return content


def _shard(index: Path, name: str) -> Path:
    """A file that an index names, if it lies beside the index as a file of its own."""
    if "/" in name or "\\" in name or not name.isprintable() or not name.endswith(".safetensors"):
        raise UserError(f"{index} names {name!r}: shards are safetensors files beside their index")
    file = index.parent / name
    if file.is_symlink() and not _of_hub_cache(file):
        raise UserError(f"{index} names {name}, which is a link: shards are files of their own")
    if not file.is_file():
        raise UserError(f"{index} names {name}, which is missing")
    return file


def _of_hub_cache(link: Path) -> bool:
    """Whether a link is as the hub's cache makes them: snapshots/COMMIT/file -> blobs/NUMBER."""
    snapshots = link.parent.absolute().parent
    target = Path(os.path.normpath(link.parent.absolute() / link.readlink()))
    return snapshots.name == "snapshots" and target.parent == snapshots.parent / "blobs"
