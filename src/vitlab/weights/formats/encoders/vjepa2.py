"""V-JEPA 2's encoder, as Meta and transformers store it, for images.

An image is a clip that stands still: its kernel sees the same pixels in every frame, so that the
kernel's sum over time is a kernel for images, and time turns nothing.

Source: facebookresearch/vjepa2 (vision_transformer.py, modules.py), transformers' vjepa2.
"""

import re
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import Entry, layer, same
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints, Reading, check_heads
from vitlab.weights.formats.transformers.config_keys import check_keys
from vitlab.weights.formats.transformers.family_reading import gelu_of
from vitlab.weights.formats.vit_names import PLAIN, Names, encoder
from vitlab.weights.source import Shape, Source

NAME = "V-JEPA 2"
META = replace(PLAIN, pairs="ij")
TRANSFORMERS = replace(
    META,
    patch="embeddings.patch_embeddings.proj",
    block="layer.{0}.",
    qkv=("attention.query", "attention.key", "attention.value"),
    project="attention.proj",
    norm="layernorm",
)
ROTARY = {"positions": "rope", "rope_kind": "video", "rope_base": 10000.0}
HEADS = {1024: 16, 1280: 16, 1408: 22}  # of the released widths
READ = {"num_attention_heads", "layer_norm_eps", "hidden_act", "crop_size"}
SHOWN = {
    "hidden_size", "num_hidden_layers", "mlp_ratio", "qkv_bias", "in_chans", "patch_size",
    "tubelet_size", "frames_per_clip", "num_pooler_layers", "image_size",
}  # fmt: skip
UNUSED = {"use_SiLU", "wide_SiLU"}  # in the released files; transformers does not read them
MANY = "what V-JEPA 2 computes over time is left out: the model takes one image, not a video"


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize V-JEPA 2 by config.json, or by its tensors and what the user says of positions.

    Raises:
        WeightsError: positions are not settled, or an unsupported variant.
    """
    found = _names(source)
    if found is None:
        return None
    prefix, names = found
    own = (name for name in source.shapes if name.startswith(prefix))
    shapes = {name.removeprefix(prefix): source.shapes[name] for name in own}
    content = source.config if source.config.get("model_type") == "vjepa2" else {}
    if not content and hints.choices.get("positions") != "rope":
        raise WeightsError(
            f"{source.path} has a kernel with a length in time and no positions, like V-JEPA 2, "
            "which computes them: if it is, give --positions rope (in Python: positions='rope')"
        )
    facts = Facts().put(Origin.FAMILY, {"gelu": "exact", "norm_eps": 1e-6, "pool": "mean"})
    facts.put(Origin.FAMILY, {"interpolation": "bilinear", "crop": 224 / 256, **IMAGENET})
    facts.put(Origin.FAMILY, ROTARY).put(Origin.TENSORS, _fields(source, shapes, names))
    if (heads := HEADS.get(facts.values["width"])) is not None:
        facts.put(Origin.FAMILY, {"heads": heads})
    facts.put(Origin.ASSUMED, {"image_size": 256})
    facts.put(Origin.FILE, _stated(content)).put(Origin.OPTION, hints.choices)
    if hints.image_size is not None:  # nothing is stored for a size
        facts.put(Origin.OPTION, {"image_size": hints.image_size})
    check_heads(source.path, facts)
    config = ViTConfig(**facts.values)
    time = shapes[f"{names.patch}.weight"][2]
    table = [entry.renamed(lambda name: prefix + name) for entry in entries(config, names, time)]
    left_out = {f"(?!{re.escape(prefix)}).*": "not of the encoder"} if prefix else {}
    left_out |= {r"(predictor|pooler|classifier)\..*": "not of the encoder"}
    return Reading(NAME, config, table, left_out, facts.origins, (MANY,))


def entries(config: ViTConfig, names: Names, time: int) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Args:
        config: of the model
        names: of the tensors
        time: frames that the kernel covers
    """

    def write(tensors: list[Tensor]) -> list[Tensor]:
        return [(tensors[0] / time)[:, :, None].expand(-1, -1, time, -1, -1)]

    ours, theirs = "stem.layers.0", names.patch
    still = Entry((f"{ours}.weight",), (f"{theirs}.weight",), lambda t: [t[0].sum(2)], write)
    table = [still, same(f"{ours}.bias", f"{theirs}.bias"), *encoder(config, names)]
    return [*table, *layer("norm", names.norm)]


def _names(source: Source) -> tuple[str, Names] | None:
    """The prefix of the encoder's names, and whose names they are; None for another model."""
    for names in (TRANSFORMERS, META):
        for name in sorted(source.shapes, key=len):
            if not name.endswith(f"{names.patch}.weight") or len(source.shapes[name]) != 5:
                continue
            prefix = name.removesuffix(f"{names.patch}.weight")
            first = prefix + names.block.format(0) + names.qkv[0]
            if f"{first}.weight" in source.shapes and f"{prefix}pos_embed" not in source.shapes:
                keyless = names is META and f"{first}.bias" not in source.shapes  # VideoMAE
                return None if keyless else (prefix, names)
    return None


def _fields(source: Source, shapes: dict[str, Shape], names: Names) -> dict[str, Any]:
    """The fields that the tensors show."""
    pattern = re.escape(names.block).replace(r"\{0\}", r"(\d+)")
    numbers = {int(m[1]) for name in shapes if (m := re.match(pattern, name))}
    block, kernel = names.block.format(0), shapes[f"{names.patch}.weight"]
    contract = shapes.get(f"{block}{names.mlp[1]}.weight", ())
    if len(contract) != 2 or sorted(numbers) != list(range(len(numbers))):
        raise WeightsError(f"{source.path}: {NAME}: unsupported encoder blocks")
    return {
        "width": contract[0], "mlp": contract[1], "depth": len(numbers), "channels": kernel[1],
        "patch": kernel[3], "classes": 0, "qkv_bias": f"{block}{names.qkv[0]}.bias" in shapes,
    }  # fmt: skip


def _stated(content: dict[str, Any]) -> dict[str, Any]:
    """What config.json of transformers states that no tensor shows.

    Raises:
        WeightsError: a key that we do not know, or a value that we cannot represent.
    """
    if not content:
        return {}
    predictor = {key for key in content if key.startswith("pred_")}
    check_keys("vjepa2", content, READ | SHOWN | UNUSED | predictor)
    return {
        "heads": content.get("num_attention_heads", 16),
        "norm_eps": content.get("layer_norm_eps", 1e-6),
        "gelu": gelu_of(content.get("hidden_act", "gelu")),
        "image_size": content.get("crop_size", 256),
    }
