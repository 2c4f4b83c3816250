"""A model as a folder: our own `config.json` and `model.safetensors`, or in another's format."""

import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.files import is_empty, staged_folder
from vitlab.models.config import ModelConfig
from vitlab.models.create import Model, build
from vitlab.weights.formats.own import FORMAT, KINDS
from vitlab.weights.reading import Hints, collect
from vitlab.weights.sharded import LIMIT, write_tensors
from vitlab.weights.writing import as_google, as_timm, as_transformers, tensors_of

CONFIG = "config.json"
TARGETS = Literal["vitlab", "timm", "transformers", "google"]
# What a configuration says of training alone, or by a number that only matters there.
OF_TRAINING = (
    "zero_head",
    "head_bias",
    "layer_scale",
    "drop_path",
    "drop_path_ramp",
    "dropout",
    "class_token",
)
OF_IMAGES = ("mean", "std", "interpolation", "crop", "fit", "labels", "resampling")


def save(
    model: Model, folder: str | Path, shard_bytes: int = LIMIT, to: TARGETS = "vitlab"
) -> Path:
    """Write a model's configuration and weights; `vitlab.load` reads them back bit for bit.

    The folder appears whole or not at all; a model saved there before is replaced.

    Args:
        model: any that is not fused
        folder: new, empty, or with a model saved before
        shard_bytes: weights of more bytes are put into several files (5 GB)
        to: the format: our own; timm's or transformers' folder, which their own loaders take; or
            Google's `model.npz`. What was written in another's format is read back and compared.

    Raises:
        ValueError: the folder holds something other than a saved model, or cannot be written; or
            the other format has no place for such a model.
    """
    folder = Path(folder)
    known = any((folder / name).is_file() for name in (CONFIG, "model.npz"))
    if not is_empty(folder) and not known:
        raise UserError(f"{folder} exists and holds no saved model: give a new or empty folder")
    tensors = whole_state(model)
    with staged_folder(folder) as draft:
        match to:
            case "vitlab":
                content = description(model.config) | {"provenance": model.provenance}
                _write_json(draft / CONFIG, content)
                write_tensors(draft, tensors, shard_bytes)
            case "timm" | "transformers":
                table, files = (as_timm if to == "timm" else as_transformers)(model.config)
                write_tensors(draft, tensors_of(table, tensors), shard_bytes)
                for name, told in files.items():
                    _write_json(draft / name, told)
            case "google":
                written = tensors_of(as_google(model.config), tensors)
                arrays: Any = {name: tensor.cpu().numpy() for name, tensor in written.items()}
                np.savez(draft / "model.npz", **arrays)
            case _:
                raise UserError(f"there is no format {to!r}: vitlab, timm, transformers, google")
        if to != "vitlab":
            _compare(model, draft, to)
    return folder


def whole_state(model: Model) -> dict[str, Tensor]:
    """Every tensor of a model, without copies.

    Raises:
        ValueError: the model is fused: its tensors are not those of its configuration.
    """
    tensors = model.state_dict()
    with torch.device("meta"):
        if tensors.keys() != build(model.config).state_dict().keys():
            raise UserError("a fused model cannot be saved: save the one it was made from")
    return tensors


def description(config: ModelConfig) -> dict[str, Any]:
    """A configuration as JSON can hold it, with its name and kind."""
    return {
        "format": FORMAT,
        "name": config.name,
        "kind": next(key for key, kind in KINDS.items() if isinstance(config, kind)),
        "model": config.as_dict(),
    }


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _compare(model: Model, draft: Path, to: str) -> None:
    """Read a folder back: what the format could not hold is an error, or told of."""
    from vitlab.weights.load import understand  # it reads what this file writes

    source, reading = understand(draft, Hints(image_size=model.config.image_size))
    lost = []
    for field in fields(model.config):
        mine, theirs = getattr(model.config, field.name), getattr(reading.config, field.name)
        if field.name == "layer_scale" and bool(mine) != bool(theirs):
            raise UserError(f"{to} has no place for layer_scale={mine!r} in such a model")
        if mine == theirs or field.name in OF_TRAINING:
            continue
        if field.name not in OF_IMAGES:
            raise UserError(f"{to} has no place for {field.name}={mine!r} in such a model")
        lost.append(f"{field.name}={mine!r}")
    read, state = collect(reading, source), model.state_dict()
    for name, tensor in read.items():
        if not torch.equal(tensor, state[name].cpu().to(tensor.dtype)):
            raise UserError(f"{to} has no place for the {name} of such a model")
    if lost:
        logging.getLogger("vitlab").warning(f"{to} has no place for {', '.join(lost)}")
