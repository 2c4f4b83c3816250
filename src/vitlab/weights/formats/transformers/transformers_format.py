"""Hugging Face transformers' folders: a file of tensors and the config.json that explains it."""

import re
from collections.abc import Mapping
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.entries import Entry
from vitlab.weights.formats.room import Hints, Reading, Writing, cannot
from vitlab.weights.formats.transformers.families import (
    FAMILIES,
    Family,
    read_fields,
    write_content,
)
from vitlab.weights.formats.transformers.processor import read_processor, write_processor
from vitlab.weights.formats.transformers.transformers_names import NAME, entries
from vitlab.weights.sharded import CONFIG, PREPROCESSOR
from vitlab.weights.source import Source

LEFT_OUT = {
    r".*(mask_token|position_ids|relative_position_index)|(.*\.)?rope_embeddings\..*": "not needed",
    r"decoder\..*|lm_head\..*": "for pre-training alone",
    r"text_model\..*|text_projection\..*|logit_(scale|bias)": "of the text model",
}


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a folder whose config.json has a model_type.

    Raises:
        WeightsError: an unsupported family, or one of its tensors is missing.
    """
    content, model_type = source.config, source.config.get("model_type")
    if source.kind == "npz" or not isinstance(model_type, str) or "architecture" in content:
        return None
    if isinstance(content.get("vision_config"), dict):  # CLIP and SigLIP with their text model
        content = content["vision_config"]
        model_type = content.get("model_type", f"{model_type}_vision_model")
    if model_type not in FAMILIES:
        raise WeightsError(
            f"{source.path}: unsupported model_type {model_type} of {NAME}; supported: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    family = FAMILIES[model_type]
    prefix = _prefix(source, family)
    shapes = {n.removeprefix(prefix): s for n, s in source.shapes.items() if n.startswith(prefix)}
    outside = (n for n in source.shapes if not prefix or not n.startswith(prefix))
    shapes |= {f"/{name}": source.shapes[name] for name in outside}
    fields = read_fields(model_type, content, shapes) | _labels(source.config)
    fields |= read_processor(source.preprocessor, family.prepared)
    config = ViTConfig(**(fields | hints.choices))
    left_out = {f"{re.escape(prefix)}({p})": why for p, why in LEFT_OUT.items()} | LEFT_OUT
    if config.classes and not config.pre_logits:
        left_out[re.escape(prefix) + r"pooler\.dense\..*"] = "not used by the classifier"
    table = _stored(entries(config, model_type, shapes), prefix)
    return Reading(f"{NAME}, {model_type}", config, table, left_out)


def _prefix(source: Source, family: Family) -> str:
    """The prefix of the backbone's names: none, `vit.`, `vision_model.`, …"""
    for name in sorted(source.shapes, key=len):
        if name.endswith(f"{family.patch}.weight"):
            return name.removesuffix(f"{family.patch}.weight")
    raise WeightsError(f"{source.path}: tensor {family.patch}.weight is missing ({NAME})")


def _stored(table: list[Entry], prefix: str) -> list[Entry]:
    """A table with the names of a file, in which only the backbone has a prefix."""
    return [
        entry.renamed(lambda name: name[1:] if name.startswith("/") else prefix + name)
        for entry in table
    ]


def _labels(content: dict[str, Any]) -> dict[str, Any]:
    """Names of the classes, unless they are only numbered."""
    stored = content.get("id2label")
    if not isinstance(stored, dict):
        return {}
    names = [stored.get(str(number)) for number in range(len(stored))]
    if not all(isinstance(name, str) for name in names):
        return {}
    if all(name == f"LABEL_{number}" for number, name in enumerate(names)):
        return {}
    return {"labels": tuple(str(name) for name in names)}


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as a folder that transformers loads.

    Raises:
        WeightsError: transformers has no such model.
    """
    if not isinstance(config, ViTConfig):
        raise cannot(NAME, config.name)
    model_type = _model_type(config)
    content = write_content(model_type, config)
    if config.classes and model_type != "clip_vision_model":  # which has a projection
        labels = config.labels or tuple(f"LABEL_{n}" for n in range(config.classes))
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
    prefix = FAMILIES[model_type].prefix if config.classes else ""
    table = _stored([*entries(config, model_type), *_unused(config, model_type)], prefix)
    return Writing(table, {CONFIG: content, PREPROCESSOR: write_processor(config)})


def _model_type(config: ViTConfig) -> str:
    """The family that has a model of this configuration."""
    if config.stem_norm != "none" or config.stem_act != "none" or config.qk_norm:
        raise cannot(NAME, "norms in the stem, or on queries and keys")
    for model_type, family in FAMILIES.items():
        if family.fits(config):
            return model_type
    raise cannot(
        NAME,
        f"pool={config.pool}",
        f"registers={config.registers}",
        f"norm_at={config.norm_at} together",
    )


def _unused(config: ViTConfig, model_type: str) -> list[Entry]:
    """The mask token of pre-training, which DINO's classes require; zero, as it starts."""
    if not model_type.startswith("dino"):
        return []
    shape = (1, 1, config.width) if model_type == "dinov3_vit" else (1, config.width)
    name = ("embeddings.mask_token",)
    return [Entry((), name, lambda tensors: [], lambda tensors: [torch.zeros(shape)])]
