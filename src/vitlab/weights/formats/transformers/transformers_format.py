"""Hugging Face transformers' folders: a file of tensors and the config.json that explains it."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad

from vitlab.errors import WeightsError
from vitlab.images import Size, chosen_over
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.assembly import empty
from vitlab.weights.formats.dialects import notes_beside
from vitlab.weights.formats.entries import Entry
from vitlab.weights.formats.names import entries, first_name
from vitlab.weights.formats.origins import Facts, Origin, with_means
from vitlab.weights.formats.room import Hints, Reading, Writing, cannot, check_fields
from vitlab.weights.formats.timm.architectures import settled
from vitlab.weights.formats.transformers.config_json import (
    DEFAULTS,
    check_square,
    completed,
    read_fields,
    write_content,
)
from vitlab.weights.formats.transformers.families import OF_AUTHORS, WRITTEN
from vitlab.weights.formats.transformers.family import Content, Family, Stated, names_of
from vitlab.weights.formats.transformers.processor import read_processor, write_processor
from vitlab.weights.formats.transformers.towers import NAME, Backbone, backbone_of, shown
from vitlab.weights.matching import check
from vitlab.weights.sharded import CONFIG, PREPROCESSOR
from vitlab.weights.source import Source

LEFT_OUT = {
    r".*(mask_token|position_ids|relative_position_index)|(.*\.)?rope_embeddings\..*": "not needed",
    r"decoder\..*|lm_head\..*": "for pre-training alone",
    r"(decode_head|auxiliary_head|fpn\d|neck|head\.(head|projection))\..*": "of dense prediction",
}
# Suffixes of classes whose outputs our model has; of others only the backbone is read.
CLASSIFIERS = ("ForImageClassification", "ForImageClassificationWithTeacher")
SEGMENTERS = ("ForSemanticSegmentation", "ForImageSegmentation")
KNOWN = (
    *CLASSIFIERS, *SEGMENTERS, "Model", "WithProjection", "ForMaskedImageModeling",
    "ForPreTraining", "Backbone", "ForConditionalGeneration",
)  # fmt: skip
# Origins of fields in a file without config.json, in whose place is what tensors show.
ALONE = {Origin.FILE: Origin.TENSORS, Origin.FAMILY: Origin.ASSUMED}
# Fields that no class of transformers can have otherwise; families say the rest.
UNCHANGED = (
    "branches", "attention", "stem", "stem_norm", "stem_act", "norm", "norm_order", "qk_norm",
    "norm_inner_attention", "norm_inner_mlp", "queries", "pool_heads", "pool_mlp", "pool_prefix",
)  # fmt: skip
DECISIVE = ("pool", "norm_at", "registers", "layer_scale", "pre_logits", "classes")


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a folder whose config.json has a model_type, or a state dict by its names.

    Raises:
        WeightsError: an unsupported family, or one of its tensors is missing.
    """
    if source.kind == "npz" or "architecture" in source.config:  # timm's, wrapped or not
        return None
    if isinstance(source.config.get("model_type"), str):
        try:
            return _reading(source, hints, backbone_of(source))
        except WeightsError as error:
            raise WeightsError(f"{source.path}: {error}") from error
    readings = []
    for found in shown(source):
        with suppress(WeightsError):
            readings.append(_reading(source, hints, found))
            check(readings[-1], source, empty(readings[-1].config))
            return readings[-1]
    return readings[0] if readings else None  # its tensors are compared again, for the message


def _reading(source: Source, hints: Hints, found: Backbone) -> Reading:
    """What a file says of its image model, and of the images that it takes."""
    family = found.family
    stated, facts, notes = _described(source, found)
    prepared = read_processor(source.preprocessor, family)
    facts.values |= prepared.facts.values | {"center": "floor"}
    facts.origins |= prepared.facts.origins
    notes += prepared.notes
    if not source.config:
        facts.origins = {name: ALONE.get(each, each) for name, each in facts.origins.items()}
        if "bias" not in facts.values.get("positions", ""):  # whose tables have a row for each
            facts.put(Origin.ASSUMED, {"heads": facts.values["heads"]})
        facts.put(Origin.NAME, settled(hints.name))
    facts.values["channels"] = hints.choices.get("channels", facts.values["channels"])
    with_means(facts)
    whole = _whole_patches(facts, notes)
    config = ViTConfig(**chosen_over(facts.values, hints.choices))
    check_square(family, config)
    keys = not family.key_bias or bool(stated.content[family.key_bias])
    names = names_of(family, config, stated.shapes, keys)
    table = [entry.renamed(found.stored) for entry in entries(config, names, NAME)]
    if not source.config:
        notes += notes_beside(source, found.prefix, [n for each in table for n in each.theirs])
    size = None
    if hints.image_size is None and prepared.size not in (None, whole):
        size = _used_at(config, prepared.size, family, notes)
    return Reading(
        f"{NAME}, {family.model_type}", config, table, _left_out(config, found, stated),
        facts.origins, tuple(notes), image_size=size,
    )  # fmt: skip


def _described(source: Source, found: Backbone) -> tuple[Stated, Facts, list[str]]:
    """What config.json and the tensors say of the model, images aside, and what is to be told."""
    family, top = found.family, source.config
    saved = top.get("architectures")
    architecture = str(saved[0]) if isinstance(saved, list) and saved else ""
    classifies = "/classifier.weight" in found.names or architecture.endswith(CLASSIFIERS)
    shapes = {short: source.shapes[name] for short, name in found.names.items()}
    content = completed(family.model_type, found.content)
    stated = Stated(content, shapes, architecture, classifies, found.projection)
    facts = read_fields(family, stated, found.content)
    notes = []
    if architecture.endswith(SEGMENTERS):
        notes.append(f"{architecture}: its segmentation head is left out")
    # Code of a family's authors is what its record follows, and a class of transformers its own.
    followed = found.content.get("model_type") in OF_AUTHORS or architecture in family.classes
    if own_code := top.get("auto_map") and not followed:
        notes.append(
            "config.json names code of its own (auto_map), which is not run: the model is read as "
            f"{top['model_type']} of {NAME}"
        )
    unknown = architecture and not architecture.endswith(KNOWN)
    doubtful = own_code or unknown or (classifies and not family.classified)
    sure = Origin.FILE if architecture else Origin.FAMILY
    facts.origins["pool"] = Origin.ASSUMED if doubtful else sure
    if architecture.endswith("Backbone") and found.content.get("apply_layernorm") is False:
        facts.put(Origin.FILE, {"norm_at": "none"})
    return stated, facts.put(Origin.FILE, _labels(top, facts.values["classes"])), notes


def _labels(content: Content, classes: int) -> dict[str, Any]:
    """Names of the classes, unless they are only numbered or there is no classifier."""
    stored = content.get("id2label")
    if not isinstance(stored, dict) or not classes:
        return {}
    names = tuple(stored.get(str(number)) for number in range(len(stored)))
    numbered = tuple(f"LABEL_{number}" for number in range(len(names)))
    if names == numbered or not all(isinstance(name, str) for name in names):
        return {}
    if len(names) != classes:
        raise WeightsError(
            f"config.json names {len(names)} classes (id2label), but the classifier has {classes}"
        )
    return {"labels": names}


def _whole_patches(facts: Facts, notes: list[str]) -> tuple[int, ...]:
    """Cut the image size to whole patches, and the crop with it; return the size as stated.

    A convolution leaves out the last rows and columns if the patch does not divide the size.
    """
    size, patch = facts.values["image_size"], facts.values["patch"]
    stated = (size, size) if isinstance(size, int) else size
    cut = tuple(side // patch * patch for side in stated)
    if cut != stated:
        facts.values["image_size"] = cut
        facts.values["crop"] *= min(cut) / min(stated)
        notes.append(
            f"patch_size {patch} does not divide image_size {size}: the last pixels of each side, "
            f"which the patches leave out, are cropped; the model takes {cut[0]}x{cut[1]}"
        )
    return stated


def _used_at(
    config: ViTConfig, size: tuple[int, int], family: Family, notes: list[str]
) -> Size | None:
    """The size of prepared images, if the model is used at it instead of that of its positions."""
    if family.any_size and not any(side % config.patch for side in size):
        return replace(config, image_size=size).image_size
    rows, columns = config.size
    notes.append(
        f"preprocessor_config.json prepares images at {size[0]}x{size[1]}, but the model takes "
        f"{rows}x{columns}"
    )
    return None


def _left_out(config: ViTConfig, found: Backbone, stated: Stated) -> dict[str, str]:
    """Patterns of names that the model does not need, each with the reason."""
    prefix, family = re.escape(found.prefix), found.family
    left_out = {f"({prefix})?({pattern})": why for pattern, why in LEFT_OUT.items()}
    if config.classes and not config.pre_logits:
        left_out[prefix + r"pooler\.dense\..*"] = "not used by the classifier"
    if config.norm_at == "none":
        name = first_name(family.names, "norm")
        left_out[prefix + re.escape(name) + r"\..*"] = "not used by this class"
    if stated.classifies and "head.probe" in found.names:
        left_out[prefix + r"head\..*"] = "attention pooling, which the classifier does not use"
    registers = first_name(family.names, "registers")
    if 0 in stated.shapes.get(registers, ()):
        left_out[prefix + re.escape(registers)] = "no registers"
    if found.tower and prefix:
        others = r"(?!(.*\.)?(visual_projection\.weight|classifier\.\w+)$).*"
        left_out[f"(?!{prefix}){others}"] = "not of the image model"
    return left_out


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as a folder that transformers loads.

    Raises:
        WeightsError: transformers has no such model.
    """
    if not isinstance(config, ViTConfig):
        raise cannot(NAME, config.name)
    check_fields(NAME, config, {name: (getattr(ViTConfig, name),) for name in UNCHANGED})
    family = next((each for each in WRITTEN if each.fits(config)), None)
    if family is None:
        shown = [f"{name}={value}" for name in DECISIVE if (value := getattr(config, name))]
        raise cannot(NAME, f"{' and '.join(shown)} together")
    stored = config.at_positions if family.any_size else config.settled
    full = _in_full(stored, family)
    content = write_content(family, full)
    if config.classes and not family.has_projection:  # CLIP has a projection
        labels = config.labels or tuple(f"LABEL_{n}" for n in range(config.classes))
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
    prefix = family.prefix if config.classes else ""
    table = entries(full, names_of(family, full), NAME)
    own = [_of_part(entry, stored, full) for entry in table]
    table = [
        entry.renamed(lambda name: name[1:] if name.startswith("/") else prefix + name)
        for entry in [*own, *_unused(stored, family)]
    ]
    files = {CONFIG: content, PREPROCESSOR: write_processor(config)}
    return Writing(table, files, stored=stored, resampling=family.resampling)


def _in_full(config: ViTConfig, family: Family) -> ViTConfig:
    """The same function with what DINO's classes always have: LayerScale, and both pools."""
    if not family.any_size:
        return config
    pool = "both" if config.classes and family.classified else config.pool
    return replace(config, layer_scale=config.layer_scale or 1.0, pool=pool)


def _of_part(entry: Entry, own: ViTConfig, full: ViTConfig) -> Entry:
    """An entry of the model in full as one of the model itself: it adds scales of one, and zeros.

    Args:
        entry: that maps tensors of `full`
        own: the model's configuration
        full: the same with LayerScale or both pools
    """
    if entry.ours[0].endswith(".scale") and not own.layer_scale:
        ones = torch.ones(own.width)
        return entry._replace(ours=(), read=lambda tensors: [], write=lambda tensors: [ones])
    if entry.ours == ("head.classify.weight",) and own.pool != full.pool:
        half = int(own.pool == "mean")
        sides = (half * own.width, (1 - half) * own.width)
        return entry._replace(
            read=lambda tensors: [tensors[0].chunk(2, 1)[half]],
            write=lambda tensors: [pad(tensors[0], sides)],
        )
    return entry


def _unused(config: ViTConfig, family: Family) -> list[Entry]:
    """The mask token of pre-training and no registers, which DINO's classes require."""
    if not family.any_size:
        return []
    shape = (1, 1, config.width) if family.key_bias else (1, config.width)
    unused = {"embeddings.mask_token": torch.zeros(shape)}
    if not config.registers and "num_register_tokens" in DEFAULTS[family.model_type]:
        unused[first_name(family.names, "registers")] = torch.zeros(1, 0, config.width)
    values = list(unused.values())
    return [Entry((), tuple(unused), lambda tensors: [], lambda tensors: values)]
