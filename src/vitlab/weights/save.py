"""A model as a folder: our own `config.json` and `model.safetensors`, or in another format."""

import json
import logging
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.files import is_empty, staged_folder
from vitlab.models.model import Model
from vitlab.weights.assembly import whole_state
from vitlab.weights.formats.catalog import format_named
from vitlab.weights.formats.entries import Entry
from vitlab.weights.formats.room import Hints, cannot
from vitlab.weights.load import recognize
from vitlab.weights.matching import collect
from vitlab.weights.sharded import CONFIG, LIMIT, write_tensors

ARCHIVE = "model.npz"
# Fields that matter in training alone, or whose exact number does.
OF_TRAINING = (
    "zero_head", "head_bias", "layer_scale", "drop_path", "drop_path_ramp", "dropout",
    "class_token",
)  # fmt: skip
OF_IMAGES = ("mean", "std", "interpolation", "crop", "fit", "labels", "resampling")


def save(model: Model, folder: str | Path, shard_bytes: int = LIMIT, to: str = "vitlab") -> Path:
    """Write a model's configuration and weights; `vitlab.load` reads them back bit for bit.

    The folder appears whole or not at all; a model saved there before is replaced.

    Args:
        model: any that is not fused
        folder: new, empty, or with a saved model
        shard_bytes: weights of more bytes are split into several files (5 GB)
        to: the format: `vitlab`, our own; `timm` or `transformers`, a folder that their loaders
            read; or `google`, one `model.npz`. Other formats than our own are read back and
            compared.

    Raises:
        OptionError: no such format.
        WeightsError: the folder contains something else, or the format cannot represent the model.
        DiskError: the folder cannot be written.
    """
    folder, chosen = Path(folder), format_named(to)
    saved = any((folder / name).is_file() for name in (CONFIG, ARCHIVE))
    if not is_empty(folder) and not saved:
        raise WeightsError(
            f"{folder} exists and contains no saved model: choose a new or empty folder"
        )
    state = whole_state(model)
    writing = chosen.writes(model.config, model.provenance)
    needed = {name for entry in writing.entries for name in entry.ours}
    if lacking := sorted(needed - state.keys()):
        raise cannot(to, f"{model.config.name} without {lacking[0]}")
    with staged_folder(folder) as draft:
        tensors = written_tensors(writing.entries, state)
        if writing.archive:
            arrays: Any = {n: tensor.contiguous().cpu().numpy() for n, tensor in tensors.items()}
            np.savez(draft / writing.archive, **arrays)
        else:
            write_tensors(draft, tensors, shard_bytes)
        for name, content in writing.files.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            (draft / name).write_text(text, encoding="utf-8")
        if not chosen.lossless:
            _compare(model, draft, to)
    return folder


def written_tensors(entries: Sequence[Entry], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's tensors under the other format's names."""
    written: dict[str, Tensor] = {}
    for entry in entries:
        made = entry.write([state[name].detach() for name in entry.ours])
        written |= zip(entry.theirs, made, strict=True)
    return written


def _compare(model: Model, draft: Path, to: str) -> None:
    """Read a folder back: what the format could not represent is an error or a warning."""
    source, reading = recognize(draft, Hints(image_size=model.config.image_size))
    lost = []
    for field in fields(model.config):
        mine, theirs = getattr(model.config, field.name), getattr(reading.config, field.name)
        if field.name == "layer_scale" and bool(mine) != bool(theirs):
            raise cannot(to, f"layer_scale={mine!r} in this model")
        if mine == theirs or field.name in OF_TRAINING:
            continue
        if field.name not in OF_IMAGES:
            raise cannot(to, f"{field.name}={mine!r} in this model")
        lost.append(f"{field.name}={mine!r}")
    read, state = collect(reading, source), model.state_dict()
    for name, tensor in read.items():
        if not torch.equal(tensor, state[name].cpu().to(tensor.dtype)):
            raise cannot(to, f"the values of {name} in this model")
    if lost:
        message = f"{to} cannot represent {', '.join(lost)}: left out"
        logging.getLogger("vitlab").warning(message)
