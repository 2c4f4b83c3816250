"""Weights in one file or, when they are large, in shards: the layout of the Hugging Face hub."""

import json
import os
from pathlib import Path
from typing import Any

from huggingface_hub import split_torch_state_dict_into_shards
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vitlab.errors import WeightsError

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # with that of images inside, as transformers 5 writes it
TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
OPEN_CLIP = "open_clip_config.json"
ADAPTER, ADAPTER_TENSORS = "adapter_config.json", "adapter_model.safetensors"  # of peft
LIMIT = 5 * 10**9  # bytes in a shard
HEADER, MOST = 10 * 2**20, 100_000  # bytes and tensors of the largest header that is read


def write_tensors(folder: Path, tensors: dict[str, Tensor], limit: int = LIMIT) -> None:
    """Write tensors into a folder: `model.safetensors`, or shards and their index above `limit`.

    Args:
        folder: an empty one
        tensors: by name; any device, any layout in memory. At most one shard is copied at a time.
        limit: bytes of weights per file; a larger tensor has a shard of its own

    Raises:
        SafetensorError: a file cannot be written; OSError likewise
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
    """Return which file of a saved folder contains each tensor, from the headers alone.

    `model.safetensors` takes precedence over the shards that an index names.

    Raises:
        WeightsError: a file is missing or damaged, or the index is invalid: an absolute path, a
            parent, a link, a tensor that is elsewhere, or one tensor twice.
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
                problem = f"{name} does not contain tensor {tensor!r}, which the index lists for it"
            elif tensor in where:
                problem = f"tensor {tensor!r} occurs twice, in {name} and {where[tensor]}"
            else:
                problem = f"{name} contains tensor {tensor!r}, which the index does not list"
            raise WeightsError(f"{index}: {problem}")
    return {tensor: files[name] for tensor, name in where.items()}


def pickled_files(folder: Path) -> dict[str, Path]:
    """Return which file of a folder holds each tensor of a model pickled in shards.

    Raises:
        WeightsError: the index is invalid, or a file is missing.
    """
    index = folder / PICKLED_INDEX
    where = read_index(index)
    files = {name: _shard(index, name, ".bin") for name in sorted(set(where.values()))}
    return {tensor: files[name] for tensor, name in where.items()}


def stored_names(file: Path) -> list[str]:
    """List the tensors in a safetensors file, from its header.

    Raises:
        WeightsError: no such file, a damaged one, or an implausibly large header.
    """
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
        if length > HEADER:
            raise WeightsError(f"{file} is damaged: its header has an implausible {length:,} bytes")
        with safe_open(file, framework="pt") as stored:
            names = list(stored.keys())
    except (OSError, SafetensorError) as error:
        if "not fully covered" in str(error):
            raise WeightsError(
                f"{file} is damaged: it is not as long as its header states; download it again"
            ) from error
        raise WeightsError(f"{file} is damaged or missing: {error}") from error
    if len(names) > MOST:
        raise WeightsError(f"{file} has {len(names):,} tensors: more than any supported model")
    return names


def read_index(index: Path) -> dict[str, str]:
    """Read the index of a sharded model: file names by tensor names.

    Raises:
        WeightsError: it is damaged, or names a tensor twice.
    """
    try:
        if index.stat().st_size > HEADER:
            raise WeightsError("it is too large")
        content = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_once)
        where = content["weight_map"]
        if not isinstance(where, dict) or not where or len(where) > MOST:
            raise WeightsError(f"its weight_map must list 1 to {MOST:,} tensors")
        if not all(isinstance(name, str) for name in where.values()):
            raise WeightsError("its weight_map contains something other than file names")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = "no weight_map" if isinstance(error, KeyError) else error
        raise WeightsError(f"{index} is not a valid index: {reason}") from error
    return where


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys are all different."""
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise WeightsError(f"it lists {twice!r} twice")
    return content


def _shard(index: Path, name: str, ending: str = ".safetensors") -> Path:
    """A file that an index names, if it is a regular file beside the index."""
    if "/" in name or "\\" in name or not name.isprintable() or not name.endswith(ending):
        raise WeightsError(
            f"{index} lists {name!r}: shards must be {ending} files beside their index"
        )
    file = index.parent / name
    if file.is_symlink() and not _of_hub_cache(file):
        raise WeightsError(f"{index} lists {name}, which is a link: shards must be regular files")
    if not file.is_file():
        raise WeightsError(f"{index} lists {name}, which is missing")
    return file


def _of_hub_cache(link: Path) -> bool:
    """Return whether a link is one of the Hub's cache: snapshots/COMMIT/file -> blobs/NUMBER."""
    snapshots = link.parent.absolute().parent
    target = Path(os.path.normpath(link.parent.absolute() / link.readlink()))
    return snapshots.name == "snapshots" and target.parent == snapshots.parent / "blobs"
