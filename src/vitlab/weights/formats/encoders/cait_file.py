"""CaiT, as its own code and timm store it.

Source: facebookresearch/deit (cait_models.py), timm's cait.py.
"""

import math
import re
from dataclasses import replace
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import Entry, layer, same, stacked
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints, Reading
from vitlab.weights.formats.timm.arguments import check_arguments, stated
from vitlab.weights.formats.timm.config_json import arguments_in, recorded
from vitlab.weights.formats.vit_names import PLAIN, encoder
from vitlab.weights.source import Shape, Source

NAME = "CaiT"
MARK = "blocks_token_only.0.norm1.weight"
NAMES = replace(PLAIN, own_row=False, scales=("gamma_1", "gamma_2"))


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize layers of class attention.

    Raises:
        WeightsError: an unsupported variant, or a damaged file.
    """
    marks = [name for name in source.shapes if name.endswith(MARK)]
    if not marks:
        return None
    prefix = min(marks, key=len).removesuffix(MARK)
    own = (name for name in source.shapes if name.startswith(prefix))
    shapes = {name.removeprefix(prefix): source.shapes[name] for name in own}
    facts = Facts().put(Origin.FAMILY, {"gelu": "exact", "norm_eps": 1e-6, "pool": "token"})
    facts.put(Origin.FAMILY, IMAGENET | {"interpolation": "bicubic", "crop": 1.0})
    facts.put(Origin.FAMILY, {"resampling": "bicubic"}).put(Origin.TENSORS, _fields(source, shapes))
    arguments = arguments_in(source.config)
    facts.put(Origin.FILE, recorded(source.path, source.config, hints.choices))
    facts.put(Origin.FILE, stated(arguments)).put(Origin.OPTION, hints.choices)
    if "heads" not in facts.values:
        raise WeightsError(
            f"{source.path}: {NAME}: without talking heads, the tensors do not show the number of "
            "heads: give --heads (in Python: heads=…)"
        )
    config = ViTConfig(**facts.values)
    _check(source, arguments, config, {*hints.choices})
    table = [entry.renamed(lambda name: prefix + name) for entry in entries(config)]
    left_out = {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {}
    return Reading(NAME, config, table, left_out, facts.origins)


def entries(config: ViTConfig) -> list[Entry]:
    """List which tensors of a file make which of a model."""
    table = [
        *layer("stem.layers.0", NAMES.patch),
        same("class_layers.token", NAMES.token),
        same("positions.0.table", NAMES.positions),
        *encoder(config, NAMES),
    ]
    for number in range(config.depth if config.talking_heads else 0):
        ours, theirs = f"blocks.{number}.attention.0.body.talking", NAMES.block.format(number)
        table += layer(f"{ours}.before", f"{theirs}attn.proj_l")
        table += layer(f"{ours}.after", f"{theirs}attn.proj_w")
    for number in range(config.class_blocks):
        ours, theirs = f"class_layers.blocks.{number}", f"blocks_token_only.{number}."
        for side, kind in enumerate(("attention", "mlp")):
            table += layer(f"{ours}.{kind}.norm", theirs + NAMES.norms[side])
            if config.layer_scale:
                table.append(same(f"{ours}.{kind}.scale", theirs + NAMES.scales[side]))
        attention = f"{ours}.attention.body"
        table += layer(f"{attention}.q", f"{theirs}attn.q", config.qkv_bias)
        for part in ("weight", "bias") if config.qkv_bias else ("weight",):
            kv = [f"{theirs}attn.{name}.{part}" for name in "kv"]
            table.append(stacked(f"{attention}.kv.{part}", kv))
        table += layer(f"{attention}.project", f"{theirs}attn.proj")
        table += layer(f"{ours}.mlp.body.expand", f"{theirs}mlp.fc1")
        table += layer(f"{ours}.mlp.body.contract", f"{theirs}mlp.fc2")
    table += layer("norm", NAMES.norm)
    return table + (layer("head.classify", "head") if config.classes else [])


def _fields(source: Source, shapes: dict[str, Shape]) -> dict[str, Any]:
    """The fields that the tensors show."""
    kernel = shapes.get("patch_embed.proj.weight", ())
    positions, contract = shapes.get("pos_embed", ()), shapes.get("blocks.0.mlp.fc2.weight", ())
    side = math.isqrt(positions[1]) if len(positions) == 3 else 0
    if len(kernel) != 4 or len(contract) != 2 or side * side != (*positions, 0, 0)[1] or not side:
        raise WeightsError(f"{source.path}: {NAME}: unsupported stem, positions or blocks")
    counts = {
        name: {int(m[1]) for key in shapes if (m := re.match(rf"{name}\.(\d+)\.", key))}
        for name in ("blocks", "blocks_token_only")
    }
    fields: dict[str, Any] = {
        "width": contract[0], "mlp": contract[1], "depth": len(counts["blocks"]),
        "class_blocks": len(counts["blocks_token_only"]), "class_token": True,
        "patch": kernel[2], "channels": kernel[1], "image_size": side * kernel[2],
        "qkv_bias": "blocks.0.attn.qkv.bias" in shapes,
        "layer_scale": 1e-5 if "blocks.0.gamma_1" in shapes else 0,
        "talking_heads": "blocks.0.attn.proj_l.weight" in shapes,
        "classes": shapes.get("head.bias", (0,))[0],
    }  # fmt: skip
    if fields["talking_heads"]:
        fields["heads"] = shapes["blocks.0.attn.proj_l.weight"][0]
    return fields


def _check(source: Source, arguments: dict[str, Any], config: ViTConfig, chosen: set[str]) -> None:
    """Compare the arguments of timm's constructor with the model."""
    layers = arguments.get("depth_token_only", config.class_blocks)
    ratio = arguments.get("mlp_ratio_token_only", config.mlp / config.width)
    if layers != config.class_blocks or int(config.width * ratio) != config.mlp:
        raise WeightsError(
            f"{source.path}: unsupported model_args depth_token_only={layers!r} with "
            f"mlp_ratio_token_only={ratio!r} of timm for this model: class-attention layers have "
            f"the MLPs of the other blocks, {config.mlp} units wide"
        )
    own = ("depth_token_only", "mlp_ratio_token_only")
    rest = {name: value for name, value in arguments.items() if name not in own}
    check_arguments(source.path, rest, config, False, chosen)
