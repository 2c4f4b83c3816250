"""Any released ViT as our one model, with the outputs it had where it came from."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import UserError
from vitlab.files import MODEL_FOLDER
from vitlab.images import Size
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.create import Model, build
from vitlab.models.position import BiasPositions, RotaryPositions, resize_positions
from vitlab.options import options_of
from vitlab.weights.delta_file import is_delta, load_delta
from vitlab.weights.formats import big_transfer as bit
from vitlab.weights.formats import google, own
from vitlab.weights.formats import transformers as huggingface
from vitlab.weights.formats.timm import timm
from vitlab.weights.hub import PREFIXES, describe, fetch, is_hub_name
from vitlab.weights.reading import Hints, Reading, collect
from vitlab.weights.source import Source, open_source, readable

# The first that knows a file reads it.
FORMATS: tuple[Callable[[Source, Hints], Reading | None], ...] = (
    own.reading,
    huggingface.reading,
    timm.reading,
    google.reading,
    bit.reading,
)


def load(
    source: str | Path,
    classes: int | None = None,
    image_size: Size | None = None,
    *,
    name: str = "",
    revision: str | None = None,
    base: Any = None,
    **choices: Any,
) -> Any:
    """A model from a file, a folder or the hub, in any known format, in evaluation mode.

    Args:
        source: a run folder, a saved folder, a folder of transformers or timm, or a file:
            `.safetensors`, Google's `.npz`, `.pth`, `.pt` or `.bin`; a delta; or `user/name` on
            the Hugging Face hub. What it is, is told from its content.
        classes: where given, the whole head is replaced by a zero classifier of so many outputs
            (ViT paper, section 3.2)
        image_size: where given, the positions are resized to this input size, as the model's
            family does
        name: what the file may not say: `ViT-B/16`, or timm's `vit_base_patch16_224`
        revision: branch, tag or commit on the hub
        base: of a delta, where it is not found where it was: a model, or where to load it from
        choices: any field of the configuration that the file does not say or that should be
            another: heads, mean, std, …

    Returns:
        A `VisionTransformer` or a `ResNet`.

    Raises:
        ValueError: no model there, a format that is not known, or a damaged file; the message
            names the tensor or the place and says what would work.
    """
    if is_delta(source):
        whole = load_delta(source, base)
        tensors = dict(whole.state_dict())
        model = fitted(whole.config, tensors, classes, image_size)
        model.provenance = whole.provenance
    else:
        path, hub = place_of(source, revision)
        found, reading = understand(path, Hints(name, choices, image_size))
        for note in reading.notes:
            logging.getLogger("vitlab").warning(note)
        model = fitted(reading.config, collect(reading, found), classes, image_size)
        saved = found.config.get("provenance") if reading.format == own.NAME else None
        model.provenance = dict(saved) if isinstance(saved, dict) else {}
        if hub or saved is None:
            model.provenance |= {"source": str(source)} | (describe(path) if hub else {})
    model.source = str(source)
    return model


def understand(path: Path, hints: Hints) -> tuple[Source, Reading]:
    """Which format a file or folder has, and what it says."""
    for key in hints.choices:
        known = set(options_of(ViTConfig)) | set(options_of(ResNetConfig))
        if key not in known:
            raise UserError(f"unknown model field {key!r}")
    source = open_source(path)
    with readable(path):
        for reading in FORMATS:
            if (understood := reading(source, hints)) is not None:
                return source, understood
    names = ", ".join(sorted(source.shapes)[:3])
    raise UserError(
        f"{path}: no format is known by its tensors ({names}, …); known are ViTLab, transformers "
        "(with its config.json), timm and the papers' .pth, Google's ViT and BiT .npz"
    )


def place_of(source: str | Path, revision: str | None = None) -> tuple[Path, bool]:
    """Where a source lies on this machine by now, and whether it came from the hub."""
    if not is_hub_name(source):
        return located(Path(source)), False
    try:
        return fetch(str(source), revision), True
    except UserError as error:
        if str(source).startswith(PREFIXES):
            raise
        raise UserError(f"no such file or folder: {source}; on the hub: {error}") from error


def located(source: Path) -> Path:
    """Return the file, the folder itself, or the saved model in a run folder."""
    if (source / MODEL_FOLDER / "config.json").is_file():
        return source / MODEL_FOLDER
    if not source.exists():
        raise UserError(f"no such file or folder: {source}")
    return source


def fitted(
    config: ModelConfig,
    tensors: dict[str, Tensor],
    classes: int | None = None,
    image_size: Size | None = None,
) -> Model:
    """A model around its tensors, with another head or for another image size where asked."""
    new = config
    if classes is not None:
        labels = config.labels if classes == len(config.labels) else ()
        new = replace(config, classes=classes, labels=labels, zero_head=True)
        if isinstance(new, ViTConfig):
            new = replace(new, pre_logits=0)
        tensors = _new_head(tensors, new)
    if image_size is not None:
        old, new = new, replace(new, image_size=image_size)
        tensors = _resized(tensors, old, new)
    return assemble(new, tensors)


def _new_head(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The same tensors with a classifier of zeros, and no tanh layer before it."""
    vit = isinstance(config, ViTConfig)
    place, wide = ("head.classify" if vit else "classify"), getattr(config, "features", 0)
    old = (f"{place}.", "head.pre_logits.")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(old)}
    if config.classes:
        kept[f"{place}.weight"] = torch.zeros(config.classes, wide)
        kept[f"{place}.bias"] = torch.zeros(config.classes)
    return kept


def _resized(tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    if old.image_size == new.image_size:
        return tensors
    if isinstance(old, ViTConfig) and isinstance(new, ViTConfig):
        return resize_positions(tensors, old, new)
    assert isinstance(old, ResNetConfig)
    if old.attention == "axial":
        raise UserError(f"{old.name} is of one image size: its relative positions are of its maps")
    return tensors


def assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> Model:
    """A model of a configuration around tensors that fit it, in evaluation mode."""
    with torch.device("meta"):
        model = build(config)
    model.load_state_dict(tensors, assign=True)
    for module in model.modules():
        if isinstance(module, RotaryPositions):  # computed, not stored
            module.to_empty(device="cpu").compute()
        elif isinstance(module, BiasPositions):
            module.places = torch.empty_like(module.places, device="cpu")
            module.compute()
    return model.requires_grad_().eval()
