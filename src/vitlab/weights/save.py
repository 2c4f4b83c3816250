"""A model as a folder: `config.json` and `model.safetensors`, or shards of it."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.files import is_empty, staged_folder
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.create import Model, build
from vitlab.weights.shards import LIMIT, write_tensors

CONFIG = "config.json"
FORMAT = "vitlab-1"
KINDS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig}


def save(model: Model, folder: str | Path, shard_bytes: int = LIMIT) -> Path:
    """Write a model's configuration and weights; `vitlab.load` reads them back bit for bit.

    The folder appears whole or not at all; a model saved there before is replaced.

    Args:
        model: any that is not fused
        folder: new, empty, or with a model saved before
        shard_bytes: weights of more bytes are put into several files (5 GB)

    Raises:
        ValueError: the folder holds something other than a saved model, or cannot be written.
    """
    folder = Path(folder)
    if not is_empty(folder) and not (folder / CONFIG).is_file():
        raise UserError(f"{folder} exists and holds no saved model: give a new or empty folder")
    tensors = whole_state(model)
    content = description(model.config) | {"provenance": model.provenance}
    with staged_folder(folder) as draft:
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (draft / CONFIG).write_text(text, encoding="utf-8")
        write_tensors(draft, tensors, shard_bytes)
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
