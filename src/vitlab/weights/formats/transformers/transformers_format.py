"""Hugging Face transformers' folders: a file of tensors and the config.json that explains it."""

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import pad

from vitlab.errors import WeightsError
from vitlab.images import Size, chosen_over
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.dialects import notes_beside, prefixes_of
from vitlab.weights.formats.entries import Names, StoredAs
from vitlab.weights.formats.entry import Entry, written
from vitlab.weights.formats.format_api import (
    Hints,
    Reading,
    TensorsOf,
    Writing,
    cannot,
    check_fields,
    check_kept,
)
from vitlab.weights.formats.names import entries, fields_shown, first_name, found, parts_of
from vitlab.weights.formats.records import Facts, record, rules, with_means, words
from vitlab.weights.formats.timm.architectures import heads_for, settled
from vitlab.weights.formats.transformers.config_json import (
    CLASSIFIERS,
    DEFAULTS,
    KEYS,
    Family,
    StatedModel,
    completed,
    names_of,
    read_fields,
    their_value,
    write_content,
)
from vitlab.weights.formats.transformers.families import FAMILIES, OF_AUTHORS, WRITTEN
from vitlab.weights.formats.transformers.processor import SOUND, read_processor, write_processor
from vitlab.weights.matching import check
from vitlab.weights.sharded import CONFIG, PREPROCESSOR, Fields
from vitlab.weights.source import Shape, StoredTensors
from vitlab.weights.state import StateDict

NAME = "transformers"
# What other models are, or have, for the message that refuses them.
KINDS = rules(r"""
    swin.*|donut-swin|maskformer-swin|hiera|mvit|focalnet|dinat  stages of windows
    pvt.*|segformer|levit|cvt|mobilevit.*|poolformer  stages, with convolutions
    resnet|regnet|convnext.*|dinov3_convnext|bit|.*mobilenet.*  a convolutional network
    vit-hybrid|vit_hybrid  a ViT on a BiT ResNet
    sam.*|vitdet|edgetam.*  windows with decomposed relative positions
    vjepa2|videomae|vivit|timesformer|videoprism  video: patches with a length in time
    radio  RADIO: a class token for each of its teachers
    mlcd.*  a class token that is turned by learned angles
    pixtral|qwen.*|glm.*  a ViT with RMS norms or rotary positions of its own
    pixio  a ViT with several class tokens
    timm_backbone  a model of timm without a configuration of its own
    vision-encoder-decoder|detr|yolos|blip.*  more than an image encoder
""")

# Where config.json has that of the image model, if there are several or more than that.
NESTED = ("vision_config", "encoder", "backbone_config")
LEFT_OUT = rules(r"""
    .*(mask_token|position_ids|relative_position_index)|(.*\.)?rope_embeddings\..*  not needed
    decoder\..*|lm_head\..*                               for pre-training alone
    (decode_head|auxiliary_head|fpn\d|neck|head\.(head|projection))\..*  of dense prediction
""")
SEGMENTERS = ("ForSemanticSegmentation", "ForImageSegmentation")
KNOWN = (
    *CLASSIFIERS, *SEGMENTERS, "Model", "WithProjection", "ForMaskedImageModeling",
    "ForPreTraining", "Backbone", "ForConditionalGeneration",
)  # fmt: skip
# Origins of fields in a file without config.json, in whose place is what tensors show.
ALONE = {"file": "tensors", "family": "assumed"}
# Fields that no class of transformers can have otherwise, and that have tensors of their own.
UNCHANGED = words("branches stem stem_norm qk_norm norm_inner_attention norm_inner_mlp")
# Keys that say whether a part is there.
THERE = record("""
    vision_use_head queries, mlp_bias contract.bias, use_relative_position_bias bias_table,
    use_shared_relative_position_bias shared_table, use_absolute_position_embeddings positions
""")
DECISIVE = words("pool norm_at registers layer_scale pre_logits classes")


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
    """Recognize a folder whose config.json has a model_type, or a state dict by its names.

    Raises:
        WeightsError: an unsupported family, or one of its tensors is missing.
    """
    if source.kind == "npz" or "architecture" in source.config:  # timm's, wrapped or not
        return None
    if isinstance(source.config.get("model_type"), str):
        try:
            return _reading(source, hints, model_in(source), tensors_of)
        except WeightsError as error:
            raise WeightsError(f"{source.path}: {error}") from error
    readings = []
    for stated in shown(source):
        with suppress(WeightsError):
            readings.append(_reading(source, hints, stated, tensors_of))
            check(readings[-1], source, tensors_of(readings[-1].config))
            return readings[-1]
    return readings[0] if readings else None  # its tensors are compared again, for the message


def _reading(
    source: StoredTensors, hints: Hints, stated: StatedModel, tensors_of: TensorsOf
) -> Reading:
    """What a file says of its image model, and of the images that it takes."""
    family = stated.family
    facts, notes = _described(source, stated)
    prepared = read_processor(source.preprocessor, family)
    facts.values |= prepared.facts.values | {"center": "floor"}
    facts.origins |= prepared.facts.origins
    notes += prepared.notes
    if not source.config:
        facts.origins = {name: ALONE.get(each, each) for name, each in facts.origins.items()}
        if "bias" not in facts.values.get("positions", ""):  # whose tables have a row for each
            facts.put("assumed", {"heads": facts.values["heads"]})
        facts.put("name", settled(hints.name))
    facts.values["channels"] = hints.choices.get("channels", facts.values["channels"])
    with_means(facts)
    whole = _whole_patches(facts, notes)
    config = ViTConfig(**chosen_over(facts.values, hints.choices))
    if family.square and len({*config.size}) > 1:
        raise WeightsError(
            f"transformers' {family.model_type} takes square images: cannot represent "
            f"image_size={config.image_size}"
        )
    keys = not family.key_bias or bool(stated.content[family.key_bias])
    names = names_of(family, config, stated.shapes, keys)
    table = entries(config, tensors_of(config), names, NAME)
    table = [entry.renamed(stated.in_file) for entry in table]
    if not source.config:
        notes += notes_beside(source, stated.prefix, [n for each in table for n in each.theirs])
    size = None
    if hints.image_size is None and prepared.size not in (None, whole):
        size = _used_at(config, prepared.size, family, notes)
    return Reading(
        f"{NAME}, {family.model_type}", config, table, _left_out(config, stated),
        facts.origins, tuple(notes), image_size=size,
    )  # fmt: skip


def _described(source: StoredTensors, stated: StatedModel) -> tuple[Facts, list[str]]:
    """What config.json and the tensors say of the model, images aside, and what is to be told."""
    family, top, architecture = stated.family, source.config, stated.architecture
    facts = read_fields(stated)
    notes = []
    if architecture.endswith(SEGMENTERS):
        notes.append(f"{architecture}: its segmentation head is left out")
    # Code of a family's authors is what its record follows, and a class of transformers its own.
    followed = stated.given.get("model_type") in OF_AUTHORS or architecture in family.classes
    if own_code := top.get("auto_map") and not followed:
        notes.append(
            "config.json names code of its own (auto_map), which is not run: the model is read as "
            f"{top['model_type']} of {NAME}"
        )
    unknown = architecture and not architecture.endswith(KNOWN)
    doubtful = own_code or unknown or (stated.classifies and not family.classified)
    sure = "file" if architecture else "family"
    facts.origins["pool"] = "assumed" if doubtful else sure
    if architecture.endswith("Backbone") and stated.given.get("apply_layernorm") is False:
        facts.put("file", "norm_at none")
    return facts.put("file", _labels(top, facts.values["classes"])), notes


def _labels(content: Fields, classes: int) -> Fields:
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
    """Cut image size and crop to whole patches, as a convolution does; return it as stated."""
    size, patch = facts.values["image_size"], facts.values["patch"]
    stated = (size, size) if isinstance(size, int) else size
    if facts.values.get("stem_stride"):
        return stated
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


def _left_out(config: ViTConfig, stated: StatedModel) -> dict[str, str]:
    """Patterns of names that the model does not need, each with the reason."""
    prefix, family = re.escape(stated.prefix), stated.family
    left_out = {f"({prefix})?({pattern})": why for pattern, why in LEFT_OUT.items()}
    norm = re.escape(first_name(family.names, "norm.weight").removesuffix("weight"))
    registers = first_name(family.names, "registers")
    if config.classes and not config.pre_logits:
        left_out[prefix + r"pooler\.dense\..*"] = "not used by the classifier"
    if config.norm_at == "none":
        left_out[prefix + norm + ".*"] = "not used by this class"
    if stated.classifies and "head.probe" in stated.shapes:
        left_out[prefix + r"head\..*"] = "attention pooling, which the classifier does not use"
    if 0 in stated.shapes.get(registers, ()):
        left_out[prefix + re.escape(registers)] = "no registers"
    if stated.tower and prefix:
        projection = r"visual_projection\.weight|" if family.has_projection else ""
        others = rf"(?!(.*\.)?({projection}classifier\.\w+)$).*"
        left_out[f"(?!{prefix}){others}"] = "not of the image model"
    return left_out


def model_in(source: StoredTensors) -> StatedModel:
    """Find the image model by config.json, and its tensors by the patch embedding.

    Raises:
        WeightsError: an unsupported model_type, or a file without a patch embedding.
    """
    top = source.config
    tower = next((key for key in NESTED if isinstance(top.get(key), dict)), "")
    content: Fields = top[tower] if tower else top
    model_type = str(content.get("model_type", f"{top['model_type']}_vision_model"))
    others = top.get("vision_config_dict")
    if tower and isinstance(others, dict) and model_type in DEFAULTS:
        content = content | DEFAULTS[model_type] | others  # as transformers reads old files
    family = (FAMILIES | OF_AUTHORS).get(model_type)
    if family is None:
        kind = next((f" ({KINDS[p]})" for p in KINDS if re.fullmatch(p, model_type)), "")
        raise WeightsError(
            f"unsupported model_type {model_type} of {NAME}{kind}: docs/weights.md lists what loads"
        )
    prefixes, saved = prefixes_of(source, [family.patch]), top.get("architectures")
    if not prefixes:
        raise WeightsError(f"tensor {family.patch} is missing ({NAME})")
    prefix = prefixes[0]
    names = named(source, family, prefix)
    return StatedModel(
        family,
        content,
        completed(family.model_type, content),
        prefix,
        names,
        {name: source.shapes[old] for name, old in names.items()},
        str(saved[0]) if isinstance(saved, list) and saved else "",
        top.get("projection_dim") or (768 if tower and "altclip" in model_type else 512),
        bool(tower),
    )


def named(source: StoredTensors, family: Family, prefix: str) -> dict[str, str]:
    """Return stored names by usual ones; what is outside loses the prefix of the whole model."""
    whole = prefix.removesuffix("vision_model.").removesuffix(family.prefix)
    inside = {n.removeprefix(prefix): n for n in source.shapes if n.startswith(prefix)}
    outside = {n.removeprefix(whole): n for n in source.shapes if not n.startswith(prefix)}
    if not any(re.search(r"(layers?|blocks)\.0\.", name) for name in inside):
        # The blocks of MSN's classifier can be beside its other tensors.
        inside |= {name: n for name, n in outside.items() if name.startswith("encoder.")}
    usual = {}
    for name, stored in inside.items():
        for spelling, word in family.spellings.items():
            name = re.sub(spelling, word, name)
        usual[name] = stored
    rest = {f"/{name}": n for name, n in outside.items() if name not in inside}
    alone = {f"/{name}": n for name, n in inside.items() if not prefix}
    return usual | rest | alone


def shown(source: StoredTensors) -> Iterator[StatedModel]:
    """Yield the image models that the tensors of a file may be, those named so by a prefix first.

    Each has what the tensors show in place of a config.json.
    """
    known = [
        each
        for each in FAMILIES.values()
        if each.processor != SOUND and each.patch.startswith("embeddings.")
    ]
    for prefix in prefixes_of(source, {family.patch for family in known}):
        own = [each for each in known if each.prefix and prefix.endswith(each.prefix)]
        for family in [*own, *known]:
            names = named(source, family, prefix)
            shapes = {short: source.shapes[name] for short, name in names.items()}
            if given := _content(family, shapes):
                projection = shapes.get("/visual_projection.weight", (0,))[0]
                content = completed(family.model_type, given)
                yield StatedModel(
                    family, given, content, prefix, names, shapes, "", projection, True
                )


def _content(family: Family, shapes: dict[str, Shape]) -> Fields:
    """The keys of config.json that tensors show, of what may be the family; empty if it is not."""
    gate = first_name(family.names | family.gated, "expand.weight").format(n=0)
    gated = bool(family.gated) and gate in shapes
    parts = found(shapes, family.names | (family.gated if gated else {}))
    if len(parts.theirs.get("patch.weight", ((),))[0]) != 4 or "qkv.weight" not in parts:
        return {}
    try:
        fields = fields_shown("", parts, family.model_type)
    except WeightsError:
        return {}
    width, mlp = fields["width"], fields["mlp"]
    biases = [name.format(n=0) in shapes for name in parts_of(family.names, "qkv.bias")]
    query, key = (biases * 2)[:2]
    rows = fields["class_token"] + family.register_rows * fields["registers"]
    side = math.isqrt(max(0, parts.rows("positions") - rows))
    fields |= {"heads": max(1, width // 64), "qkv_bias": query} | heads_for(width)
    if parts.offsets:
        offsets, fields["heads"] = parts.offsets
        side = (math.isqrt(offsets - 3) + 1) // 2
    if side:
        fields["image_size"] = side * fields["patch"]
    content = {key: their_value(key, fields[own]) for key, own in KEYS.items() if own in fields}
    content |= {own: part in parts for own, part in THERE.items()} | {
        "mlp_ratio": 4 if gated else mlp / width, "key_bias": key, "use_head": False,
        "use_mean_pooling": "layernorm.weight" not in shapes,
    } | ({"hidden_act": "silu"} if gated else {})  # fmt: skip
    return {k: v for k, v in content.items() if k in DEFAULTS[family.model_type]}


def writes(config: ModelConfig, provenance: Fields, tensors_of: TensorsOf) -> Writing:
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
    resampled = family.any_size and config.resampling == family.resampling  # as transformers does
    stored = config.at_positions if resampled else config.settled
    names, unused = names_of(family, stored), StateDict()
    full = stored
    if family.any_size:
        names, unused = _in_full(family, stored, names)
        full = replace(stored, layer_scale=stored.layer_scale or 1.0)
    content = write_content(family, full)
    if config.classes and not family.has_projection:  # CLIP has a projection
        labels = config.labels or tuple(f"LABEL_{n}" for n in range(config.classes))
        content["id2label"] = {str(number): label for number, label in enumerate(labels)}
        content["label2id"] = {label: number for number, label in enumerate(labels)}
    prefix = family.prefix if config.classes else ""
    table = entries(stored, tensors_of(stored), names, NAME)
    table.append(Entry((), tuple(unused), lambda tensors: [], lambda tensors: [*unused.values()]))
    table = [
        entry.renamed(lambda name: name[1:] if name.startswith("/") else prefix + name)
        for entry in table
    ]
    images = write_processor(config)
    made = written(table, tensors_of(stored))
    shapes = {name: tuple(tensor.shape) for name, tensor in made.items()}
    source = StoredTensors(
        Path(NAME), "safetensors", shapes, made.__getitem__, content, preprocessor=images
    )
    hints = Hints(image_size=stored.image_size)
    again = _reading(source, hints, model_in(source), tensors_of)
    check_kept(NAME, stored, again.config)
    check(again, source, tensors_of(again.config))
    files = {CONFIG: content, PREPROCESSOR: images}
    return Writing(table, files, stored=stored)


def _in_full(family: Family, config: ViTConfig, names: Names) -> tuple[Names, StateDict]:
    """The names for DINO's classes, which always see both pools, and tensors without effect."""
    width, zeros = config.width, torch.zeros
    unused = {"embeddings.mask_token": zeros((1, 1, width) if family.key_bias else (1, width))}
    if not config.registers and "num_register_tokens" in DEFAULTS[family.model_type]:
        unused[first_name(names, "registers")] = zeros(1, 0, width)
    if not config.layer_scale:
        scales = [first_name(names, key) for key in ("scale1", "scale2")]
        blocks = range(config.depth)
        unused |= {scale.format(n=n): torch.ones(width) for scale in scales for n in blocks}
    if config.classes and family.classified and config.pool != "both":
        half = int(config.pool == "mean")
        sides = (half * width, (1 - half) * width)
        head = StoredAs(
            parts_of(names, "head.weight"),
            lambda _, tensors: [tensors[0].chunk(2, 1)[half]],
            lambda _, tensors: [pad(tensors[0], sides)],
        )
        names = names | {"head.weight": [head]}
    return names, unused
