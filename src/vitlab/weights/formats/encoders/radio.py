"""RADIO and C-RADIO, as NVIDIA's code and transformers store them.

Several class tokens, one per teacher, and registers come before the patches, whose positions are
a large square table, resized to the longer side of an image and cropped. The means of pixels are
part of the weights. The summary is made of some of the class tokens.

Source: NVlabs/RADIO (vit_patch_generator.py, radio_model.py, hf_model.py), transformers' radio.
"""

import math
import re
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import Entry, layer, same, shaped
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints, Reading, check_heads
from vitlab.weights.formats.transformers.config_keys import check_keys
from vitlab.weights.formats.transformers.family_reading import gelu_of
from vitlab.weights.formats.vit_names import PLAIN, Names, encoder
from vitlab.weights.source import Shape, Source

NAME = "RADIO"
NVIDIA = replace(
    PLAIN,
    patch="patch_generator.embedder",
    registers="patch_generator.cls_token.token",
    positions="patch_generator.pos_embed",
)
TRANSFORMERS = replace(
    NVIDIA,
    patch="embeddings.patch_projection",
    registers="embeddings.cls_register_token",
    positions="embeddings.position_embedding",
    block="encoder.layer.{0}.",
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    project="attention.o_proj",
)
# LayerScale and gated MLPs, whose names transformers keeps in files with NVIDIA's others.
SCALES = (("ls1.grandma", "ls2.grandma"), ("layer_scale1.lambda1", "layer_scale2.lambda1"))
GATED = (("mlp.w12", "mlp.w3"), ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"))
HEADS = {384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1536: 24}  # of the released widths
GRID = 32  # patches per side of the images that a model takes if nothing says so
# Keys of transformers' configuration: read, shown by the tensors, or of other inputs.
READ = {"num_attention_heads", "layer_norm_eps", "hidden_act"}
SHOWN = {
    "hidden_size", "num_hidden_layers", "mlp_ratio", "use_swiglu_ffn", "qkv_bias",
    "layerscale_value", "num_channels", "patch_size", "image_size", "max_img_size", "patch_dim",
    "num_cls_tokens", "num_registers", "summary_idxs", "norm_mean", "norm_std",
    "video_temporal_patch_size", "video_patch_dim",
}  # fmt: skip
LEFT_OUT = {
    r".*(adaptors|_heads|_feature_projections)\..*": "of adaptors to other models",
    r".*(summary_idxs|input_conditioner\..*)": "stated in the configuration",
    r".*video_(patch_projection|embedder)\..*": "for video",
}


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize RADIO's patch generator.

    Raises:
        WeightsError: an unsupported variant, or a damaged file.
    """
    found = _names(source)
    if found is None:
        return None
    prefix, names = found
    own = (name for name in source.shapes if name.startswith(prefix))
    shapes = {name.removeprefix(prefix): source.shapes[name] for name in own}
    facts = Facts().put(Origin.FAMILY, {"gelu": "exact", "norm_eps": 1e-6, "pool": "prefix"})
    facts.put(Origin.FAMILY, {"interpolation": "bilinear", "crop": 1.0, "fit": "squash"})
    facts.put(Origin.FAMILY, {"resampling": "bilinear-cropped"})
    facts.put(Origin.TENSORS, _fields(source, shapes, names))
    facts.put(Origin.FILE, _pixels(source))
    if (heads := HEADS.get(facts.values["width"])) is not None:
        facts.put(Origin.FAMILY, {"heads": heads})
    if source.config.get("model_type") == "radio":
        facts.put(Origin.FILE, _of_transformers(source.config))
    facts.put(*_summary(source, prefix, facts.values["registers"]))
    facts.put(Origin.OPTION, hints.choices)
    check_heads(source.path, facts)
    config = ViTConfig(**facts.values)
    table = [entry.renamed(lambda name: prefix + name) for entry in entries(config, names)]
    size, note = _used_at(source, config, hints)
    notes = (note,) if note else ()
    return Reading(NAME, config, table, LEFT_OUT, facts.origins, notes, image_size=size)


def entries(config: ViTConfig, names: Names) -> list[Entry]:
    """List which tensors of a file make which of a model."""
    width, channels, patch = config.width, config.channels, config.patch
    kernel = (width, channels, patch, patch)
    ours, tokens = "stem.layers.0", (config.registers, width)
    table = [
        shaped(f"{ours}.weight", f"{names.patch}.weight", kernel, (width, math.prod(kernel[1:]))),
        shaped("registers", names.registers, (1, *tokens), tokens),
        same("positions.0.table", names.positions),
        *encoder(config, names),
    ]
    if config.stem_bias:
        table.append(same(f"{ours}.bias", f"{names.patch}.bias"))
    return table + (layer("norm", names.norm) if config.norm_at == "tokens" else [])


def _names(source: Source) -> tuple[str, Names] | None:
    """The prefix of the backbone's names, and whose names they are; None for another model."""
    for names in (NVIDIA, TRANSFORMERS):
        for name in sorted(source.shapes, key=len):
            if name.endswith(names.registers):
                prefix = name.removesuffix(names.registers)
                if f"{prefix}{names.patch}.weight" in source.shapes:
                    return prefix, _with_parts(source, prefix, names)
    return None


def _with_parts(source: Source, prefix: str, names: Names) -> Names:
    """Add the names of LayerScale and gated MLPs, if the blocks have them."""
    first = prefix + names.block.format(0)
    scales = next((pair for pair in SCALES if first + pair[0] in source.shapes), names.scales)
    gated = next((g for g in GATED if f"{first}{g[0]}.weight" in source.shapes), names.gated)
    return replace(names, scales=scales, gated=gated)


def _fields(source: Source, shapes: dict[str, Shape], names: Names) -> dict[str, Any]:
    """The fields that the tensors show."""
    block, bracket = names.block.format(0), re.escape(names.block).replace(r"\{0\}", r"(\d+)")
    numbers = {int(m[1]) for name in shapes if (m := re.match(bracket, name))}
    last = (names.gated or names.mlp)[-1]
    contract = shapes.get(f"{block}{last}.weight", ())
    embedder, table = shapes[f"{names.patch}.weight"], shapes.get(names.positions, (0, 0, 0))
    side, patch = math.isqrt(table[1]), math.isqrt(embedder[1] // 3)
    square = side * side == table[1] and side and 3 * patch * patch == embedder[1]
    if len(contract) != 2 or not square or sorted(numbers) != list(range(len(numbers))):
        raise WeightsError(f"{source.path}: {NAME}: unsupported patches, positions or blocks")
    return {
        "width": contract[0], "mlp": contract[1], "depth": len(numbers), "patch": patch,
        "image_size": side * patch, "registers": shapes[names.registers][0], "classes": 0,
        "class_token": False, "stem_bias": f"{names.patch}.bias" in shapes,
        "ffn": "swiglu" if names.gated else "mlp",
        "qkv_bias": f"{block}{names.qkv[0]}.bias" in shapes,
        "layer_scale": 1e-5 if names.scales[0] else 0,
        "norm_at": "tokens" if f"{names.norm}.weight" in shapes else "none",
    }  # fmt: skip


def _pixels(source: Source) -> dict[str, Any]:
    """How pixels are normalized, which is stored among the tensors.

    Raises:
        WeightsError: the file does not have it, or images are normalized twice.
    """
    if source.preprocessor.get("do_normalize"):
        raise WeightsError(
            f"{source.path}: unsupported do_normalize=True in preprocessor_config.json: {NAME} "
            "normalizes images itself"
        )
    fields = {}
    for own in ("mean", "std"):
        name = next((n for n in source.shapes if n.endswith(f"input_conditioner.norm_{own}")), "")
        if not name:
            raise WeightsError(f"{source.path}: tensor input_conditioner.norm_{own} is missing")
        fields[own] = tuple(float(f"{value:.9g}") for value in source.read(name).flatten().tolist())
    return fields


def _summary(source: Source, prefix: str, tokens: int) -> tuple[Origin, dict[str, Any]]:
    """Which tokens the summary is made of, and where that is said."""
    if name := next((n for n in source.shapes if n.endswith("summary_idxs")), ""):
        numbers = tuple(int(number) for number in source.read(name).flatten().tolist())
    elif prefix.endswith("inner."):  # a DINOv2, whose first token is its output
        return Origin.FAMILY, {"pool_tokens": (0,)}
    elif (teachers := _teachers(source)) is not None:
        numbers = teachers
    else:
        return Origin.ASSUMED, {"pool_tokens": ()}
    return Origin.FILE, {"pool_tokens": () if numbers == tuple(range(tokens)) else numbers}


def _teachers(source: Source) -> tuple[int, ...] | None:
    """The class tokens of those teachers whose summary is used, by a checkpoint's `args`."""
    args = source.config.get("args", source.record.get("args"))
    args = vars(args) if isinstance(args, Namespace) else args
    if not isinstance(args, Mapping) or not isinstance(args.get("teachers"), list):
        return None
    if not args.get("cls_token_per_teacher", True):
        return (0,)
    first: dict[str, int] = {}
    for number, teacher in enumerate(args["teachers"]):
        if teacher.get("use_summary", True):
            first.setdefault(str(teacher.get("name")), number)
    return tuple(sorted(first.values()))


def _of_transformers(content: dict[str, Any]) -> dict[str, Any]:
    """What config.json states that no tensor shows.

    Raises:
        WeightsError: a key that we do not know, or a value that we cannot represent.
    """
    check_keys("radio", content, READ | SHOWN)
    return {
        "heads": content.get("num_attention_heads", 16),
        "norm_eps": content.get("layer_norm_eps", 1e-6),
        "gelu": gelu_of(content.get("hidden_act", "gelu")),
    }


def _used_at(source: Source, config: ViTConfig, hints: Hints) -> tuple[Any, str]:
    """The size that the model is used at, and a note on it; its table is for the largest."""
    if hints.image_size is not None or "image_size" in hints.choices:
        return None, ""
    stated = source.config.get("preferred_resolution")
    fits = isinstance(stated, list) and len(stated) == 2
    size = tuple(stated) if fits and stated else (min(GRID * config.patch, config.size[0]),) * 2
    if any(not isinstance(side, int) or side % config.patch for side in size):
        return None, ""
    shown = f"{size[0]}x{size[1]}"
    return size, (
        f"the model takes {shown} pixels; image_size= gives another size, up to "
        f"{config.size[0]} as its positions are stored"
    )
