"""A model back from where it was saved."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ResNetConfig, Size, ViTConfig
from vitlab.models.create import Model, build
from vitlab.models.position import RotaryPositions, resize_positions
from vitlab.weights.delta_file import is_delta, load_delta
from vitlab.weights.save import CONFIG, FORMAT, KINDS
from vitlab.weights.shards import tensor_files


def load(source: str | Path, classes: int | None = None, image_size: Size | None = None) -> Any:
    """A model from a run folder, a saved folder or a delta's file, in evaluation mode.

    Args:
        source: what `vitlab train`, `vitlab.save` or `Delta.save` wrote
        classes: where given, the classifier is replaced by a zero one of so many outputs
        image_size: where given, the position embeddings are resized to this input size

    Returns:
        A `VisionTransformer` or a `ResNet`.

    Raises:
        ValueError: no model there, or its files are damaged; the message names what is wrong.
    """
    if is_delta(source):
        whole = load_delta(source)
        saved, provenance, tensors = whole.config, whole.provenance, whole.state_dict()
    else:
        folder = model_folder(Path(source))
        saved, provenance = _config(folder / CONFIG)
        tensors = _tensors(folder, saved)
    config = saved
    if classes is not None:
        labels = saved.labels if classes == len(saved.labels) else ()
        config = replace(config, classes=classes, labels=labels, zero_head=True)
        head = next(name for name in tensors if name.endswith("classify.weight"))
        tensors[head] = torch.zeros(classes, tensors[head].shape[1])
        tensors[head.replace("weight", "bias")] = torch.zeros(classes)
    if image_size is not None and config.image_size != image_size:
        config = replace(config, image_size=image_size)
        tensors = _resized(tensors, saved, config)
    model = assemble(config, tensors)
    model.provenance = provenance
    return model


def assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> Model:
    """A model of a configuration around tensors that fit it, in evaluation mode."""
    with torch.device("meta"):
        model = build(config)
    model.load_state_dict(tensors, assign=True)
    for module in model.modules():
        if isinstance(module, RotaryPositions):  # computed, not stored
            module.to_empty(device="cpu").reset_parameters()
    return model.requires_grad_().eval()


def _resized(tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    if isinstance(old, ViTConfig) and isinstance(new, ViTConfig):
        return resize_positions(tensors, old, new)
    assert isinstance(old, ResNetConfig)
    if old.attention == "axial":
        raise UserError(f"{old.name} is of one image size: its relative positions are of its maps")
    return tensors


def model_folder(source: Path) -> Path:
    """Where the files lie: the folder itself, or `model/` in a run folder."""
    for folder in (source / "model", source):
        if (folder / CONFIG).is_file():
            return folder
    if not source.exists():
        raise UserError(f"no such file or folder: {source}")
    if (source / "run.toml").is_file():
        raise UserError(f"{source} holds a run that has not finished: go on with --resume")
    raise UserError(f"{source} holds no model: a run folder or a saved folder is needed")


def _config(file: Path) -> tuple[ModelConfig, dict[str, Any]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise UserError(f"{file} has format {content['format']!r}, not {FORMAT!r}")
        kind = KINDS[content["kind"]]
        return kind.from_dict(content["model"]), dict(content["provenance"])
    except UserError as error:
        raise UserError(f"{file}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged or is no ViTLab configuration: {error}") from error


def _tensors(folder: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Every tensor that the configuration asks for, checked for name, shape, type and NaN."""
    with torch.device("meta"):
        expected = build(config).state_dict()
    files = tensor_files(folder)
    for name in sorted(files.keys() ^ expected.keys()):
        problem = f"{folder}: tensor {name!r} is missing"
        if name in files:
            problem = f"{files[name]}: tensor {name!r} is not part of the model"
        raise UserError(problem)
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(files.values())):
        names = [name for name in expected if files[name] == file]
        tensors |= _read(file, {name: expected[name] for name in names})
    return {name: tensors[name] for name in expected}


def _read(file: Path, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one file, which are known to be there."""
    try:
        with safe_open(file, framework="pt") as stored:
            for name, want in expected.items():
                shape = stored.get_slice(name).get_shape()
                if tuple(shape) != want.shape:
                    raise UserError(
                        f"{file}: tensor {name} has shape {tuple(shape)}, not {tuple(want.shape)}"
                    )
            # copies: a file that others overwrite must not change, or crash, a model in use
            tensors = {name: stored.get_tensor(name).clone() for name in expected}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file} is damaged or missing: {error}") from error
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise UserError(
                f"{file}: tensor {name} holds {tensor.dtype}, not {expected[name].dtype}"
            )
        if not torch.isfinite(tensor).all():
            raise UserError(f"{file}: tensor {name} holds NaN or infinite numbers")
    return tensors
