"""Folders of weights: which files are the model, shards and their index, the JSON beside them.

The names are those of the Hugging Face Hub. Nothing here imports PyTorch before tensors are
written, so that the command line answers a mistyped path at once.
"""

import fnmatch
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab import documents
from vitlab.errors import WeightsError

if TYPE_CHECKING:
    from torch import Tensor

Fields = dict[str, Any]  # a JSON object, or fields of a configuration
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # with that of images inside, as transformers 5 writes it
OPEN_CLIP = "open_clip_config.json"
ADAPTER, ADAPTER_TENSORS = "adapter_config.json", "adapter_model.safetensors"  # of peft
UNLIKE = "unlike.safetensors"  # how far an image is from what the model has learned from
TENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
INDEXED = ".index.json"  # the end of an index of shards
# The whole model, as libraries name it: the first that is there is read, since all hold the same.
NAMED = (
    TENSORS, INDEX, "open_clip_model.safetensors", PICKLED, PICKLED_INDEX,
    "open_clip_pytorch_model.bin", "pytorch_model_fsdp.bin", ADAPTER_TENSORS, "adapter_model.bin",
)  # fmt: skip
# Ends of other names, those that are preferred first.
ENDINGS = (
    ".safetensors", ".npz", ".pth", ".pt", ".bin", ".ckpt", ".pth.tar", ".pt.tar",
)  # fmt: skip
# What trainers keep beside the weights.
STATE = (
    "optimizer", "scheduler", "scaler", "training_args", "rng_state", "random_states", "trainer",
    "sampler", "custom_checkpoint",
)  # fmt: skip
LIMIT = 5 * 10**9  # bytes in a shard
# bytes and tensors of the largest header that is read
HEADER = 10 * 2**20
MOST = 100_000


def model_files(names: Iterable[str]) -> list[str]:
    """Choose the files of a model among those of a folder or a repository.

    Returns:
        One file, or an index and the shards there are; several others if nothing says which.
    """
    names = sorted(names)
    if name := next((name for name in NAMED if name in names), ""):
        stem, ending, *index = name.split(".")
        return [name, *fnmatch.filter(names, f"{stem}-*-of-*.{ending}")] if index else [name]
    own = {
        name: place
        for name in names
        for place, ending in enumerate(ENDINGS)
        if name.endswith(ending) and not name.lower().startswith(STATE)
    }
    models = {name.removesuffix(ENDINGS[place]) for name, place in own.items()}
    return [min(own, key=own.__getitem__)] if len(models) == 1 else list(own)


def write_tensors(folder: Path, tensors: "dict[str, Tensor]", limit: int = LIMIT) -> None:
    """Write tensors into a folder: `model.safetensors`, or shards and their index above `limit`.

    Args:
        folder: an empty one
        tensors: by name; any device, any layout in memory. At most one shard is copied at a time.
        limit: bytes of weights per file; a larger tensor has a shard of its own

    Raises:
        SafetensorError: a file cannot be written; OSError likewise
    """
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    split = split_torch_state_dict_into_shards(
        tensors, filename_pattern="model{suffix}.safetensors", max_shard_size=limit
    )
    for file, names in split.filename_to_tensors.items():
        save_file({name: tensors[name].contiguous() for name in names}, folder / file)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        (folder / INDEX).write_text(text, encoding="utf-8")


def shard_files(index: Path) -> dict[str, Path]:
    """Return which regular file beside an index each tensor is in, as the index says.

    Raises:
        WeightsError: the index is not valid, or a file is missing or a link.
    """
    where = read_json(index).get("weight_map")
    if not isinstance(where, dict) or not 0 < len(where) <= MOST:
        raise WeightsError(f"{index}: its weight_map must list 1 to {MOST:,} tensors")
    ending = Path(index.name.removesuffix(INDEXED)).suffix
    for name in dict.fromkeys(where.values()):
        if not isinstance(name, str):
            raise WeightsError(f"{index}: its weight_map contains something other than file names")
        if "/" in name or "\\" in name or not name.isprintable() or not name.endswith(ending):
            raise WeightsError(
                f"{index} lists {name!r}: shards must be {ending} files beside their index"
            )
        file = index.parent / name
        if file.is_symlink() and not _of_hub_cache(file):
            raise WeightsError(
                f"{index} lists {name}, which is a link: shards must be regular files"
            )
        if not file.is_file():
            raise WeightsError(f"{index} lists {name}, which is missing")
    return {tensor: index.parent / name for tensor, name in where.items()}


def beside(path: Path) -> dict[str, Fields]:
    """Return the JSON files that explain a folder or file, empty where there are none.

    A single file is explained by those beside it if its name is a library's: others stand for
    themselves.

    Returns:
        Contents by the names of `StoredTensors`: config, preprocessor, open_clip, adapter.

    Raises:
        WeightsError: one is damaged.
    """
    folder = path if path.is_dir() else path.parent
    explained = path.is_dir() or path.name in NAMED

    def content(name: str) -> Fields:
        file = folder / name
        return read_json(file) if explained and file.is_file() else {}

    images = content(PREPROCESSOR) or content(PROCESSOR).get("image_processor")
    return {
        "config": content(CONFIG),
        "preprocessor": images if isinstance(images, dict) else {},
        "open_clip": content(OPEN_CLIP),
        "adapter": content(ADAPTER),
    }


def read_json(file: Path) -> Fields:
    """Read a JSON object from a file of at most `HEADER` bytes.

    Raises:
        WeightsError: it is damaged, too large, or something else.
    """
    return documents.read_json(file, WeightsError, HEADER)


def _of_hub_cache(link: Path) -> bool:
    """Return whether a link is one of the Hub's cache: snapshots/COMMIT/file -> blobs/NUMBER."""
    snapshots = link.parent.absolute().parent
    target = Path(os.path.normpath(link.parent.absolute() / link.readlink()))
    return snapshots.name == "snapshots" and target.parent == snapshots.parent / "blobs"
