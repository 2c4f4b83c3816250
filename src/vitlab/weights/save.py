"""A model as a folder: `config.json` and `model.safetensors`."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vitlab.errors import UserError
from vitlab.files import is_empty, staged_folder
from vitlab.models.create import Model, build
from vitlab.weights.formats.own import FORMAT, KINDS

CONFIG, TENSORS = "config.json", "model.safetensors"


def save(model: Model, folder: str | Path) -> Path:
    """Write a model's configuration and weights; `vitlab.load` reads them back bit for bit.

    The folder appears whole or not at all; a model saved there before is replaced.

    Raises:
        ValueError: the folder holds something other than a saved model, or cannot be written.
    """
    folder = Path(folder)
    if not is_empty(folder) and not (folder / CONFIG).is_file():
        raise UserError(f"{folder} exists and holds no saved model: give a new or empty folder")
    tensors = {key: tensor.contiguous() for key, tensor in model.state_dict().items()}
    with torch.device("meta"):
        if set(tensors) != set(build(model.config).state_dict()):
            raise UserError("a fused model cannot be saved: save the one it was made from")
    config: dict[str, Any] = {
        "format": FORMAT,
        "name": model.config.name,
        "kind": next(key for key, kind in KINDS.items() if isinstance(model.config, kind)),
        "model": model.config.as_dict(),
        "provenance": model.provenance,
    }
    with staged_folder(folder) as draft:
        text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (draft / CONFIG).write_text(text, encoding="utf-8")
        save_file(tensors, draft / TENSORS)
    return folder
