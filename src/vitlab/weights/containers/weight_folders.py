"""Folders of weights in their usual layouts: which file to read, and what explains it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import Content
from vitlab.weights.containers.named_arrays import read_shards
from vitlab.weights.containers.not_weights import folder_reason
from vitlab.weights.sharded import (
    ADAPTER,
    ADAPTER_TENSORS,
    CONFIG,
    HEADER,
    INDEX,
    OPEN_CLIP,
    PICKLED,
    PICKLED_INDEX,
    PREPROCESSOR,
    PROCESSOR,
    TENSORS,
    pickled_files,
    tensor_files,
)

# One file for a whole model, as libraries name it, in order of preference: the first that is there
# is read, since the others hold the same model.
WHOLE = (
    TENSORS, PICKLED, "open_clip_model.safetensors", "open_clip_pytorch_model.bin",
    "pytorch_model_fsdp.bin", ADAPTER_TENSORS, "adapter_model.bin",
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
EXPLAINED = {
    "config": CONFIG,
    "preprocessor": PREPROCESSOR,
    "open_clip": OPEN_CLIP,
    "adapter": ADAPTER,
}
PAIR = ("encoder", "decoder")  # OpenAI's DALL-E: encoder.pkl and decoder.pkl
SHOWN = 8

Reader = Callable[[Path], Content]


def read_folder(path: Path, read_file: Reader) -> Content:
    """Read the weights in a folder.

    Args:
        path: of the folder
        read_file: reads one file

    Raises:
        WeightsError: there are none, or several files and nothing says which to read.
    """
    if (path / TENSORS).is_file():
        return read_file(path / TENSORS)
    if (path / INDEX).is_file():
        return read_shards(tensor_files(path))
    if (path / PICKLED_INDEX).is_file() and not (path / PICKLED).is_file():
        return _pickled_shards(path, read_file)
    for name in WHOLE:
        if (path / name).is_file():
            return read_file(path / name)
    if (path / f"{PAIR[0]}.pkl").is_file():
        return _pair(path, read_file)
    files = [file for file in sorted(path.iterdir()) if _is_weights(file)]
    if len({_stem(file) for file in files}) == 1:  # one model, perhaps in two kinds of file
        return read_file(min(files, key=lambda file: ENDINGS.index(_ending(file))))
    raise _unclear(path, files)


def _unclear(path: Path, files: list[Path]) -> WeightsError:
    """The error of a folder in which no file of weights, or more than one, may be meant."""
    if files:
        names = ", ".join(file.name for file in files[:SHOWN])
        more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
        return WeightsError(
            f"{path} contains several files of weights ({names}{more}): give the path of one, "
            f"{files[0]} for example"
        )
    if why := folder_reason(path):
        return WeightsError(f"{path} {why}")
    inside = [each for each in sorted(path.iterdir()) if each.is_dir() and _has_weights(each)]
    if inside:
        return WeightsError(f"{path} contains no weights itself, but {inside[0]} does: give that")
    if (path / CONFIG).is_file():
        return WeightsError(f"{path} has a {CONFIG}, but {TENSORS} is missing")
    return WeightsError(
        f"{path} contains no model: give a finished run, a saved folder or a weights file"
    )


def beside(path: Path) -> dict[str, dict[str, Any]]:
    """Return the JSON files that explain a folder or file, empty where there are none.

    A single file is explained by those beside it if its name is a library's: others stand for
    themselves.

    Raises:
        WeightsError: one is damaged.
    """
    folder = path if path.is_dir() else path.parent
    explained = path.is_dir() or path.name in WHOLE
    found = {key: _json(folder / name) if explained else {} for key, name in EXPLAINED.items()}
    if explained and not found["preprocessor"]:  # transformers 5 puts it into that of all inputs
        inner = _json(folder / PROCESSOR).get("image_processor")
        found["preprocessor"] = inner if isinstance(inner, dict) else {}
    return found


def _pickled_shards(path: Path, read_file: Reader) -> Content:
    """The shards of a pickled model, each of which must hold what the index says."""
    where = pickled_files(path)
    shards = {file: read_file(file).root for file in sorted(set(where.values()))}
    found: dict[str, Any] = {}
    for name, file in where.items():
        if name not in shards[file]:
            raise WeightsError(
                f"{path / PICKLED_INDEX}: {file.name} does not contain tensor {name!r}, which the "
                "index lists for it"
            )
        found[name] = shards[file][name]
    for file, content in shards.items():
        for name in content:
            if where.get(name) != file:
                raise WeightsError(
                    f"{path / PICKLED_INDEX}: {file.name} contains {name!r}, which the index does "
                    "not list for it"
                )
    return Content("pickle", found)


def _pair(path: Path, read_file: Reader) -> Content:
    """The tensors of an encoder and, where it is there, of its decoder, by a prefix each."""
    found: dict[str, Any] = {}
    for part in PAIR:
        if (file := path / f"{part}.pkl").is_file():
            found |= {f"{part}.{name}": each for name, each in read_file(file).root.items()}
    return Content("pickle", found)


def _is_weights(file: Path) -> bool:
    state = file.name.lower().startswith(STATE)
    return not state and file.name.endswith(ENDINGS) and file.is_file()


def _has_weights(folder: Path) -> bool:
    return any(map(_is_weights, folder.iterdir()))


def _ending(file: Path) -> str:
    return next(ending for ending in ENDINGS if file.name.endswith(ending))


def _stem(file: Path) -> str:
    return file.name.removesuffix(_ending(file))


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        if file.stat().st_size > HEADER:
            raise WeightsError(f"{file} is too large for a configuration")
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{file} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} is damaged: not a JSON object")
    return content
