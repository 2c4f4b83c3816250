"""Where the image model is in a file of transformers: alone, or beside a text model."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from vitlab.errors import WeightsError
from vitlab.weights.formats.names import first_name, found, parts_of
from vitlab.weights.formats.shapes import fields_shown
from vitlab.weights.formats.timm.timm_content import USUAL_HEADS
from vitlab.weights.formats.transformers.config_json import DEFAULTS
from vitlab.weights.formats.transformers.families import FAMILIES, OF_AUTHORS
from vitlab.weights.formats.transformers.family import Content, Family, Shapes
from vitlab.weights.source import Source

NAME = "transformers"
# What other models are, or have, for the message that refuses them.
KINDS = {
    r"swin.*|donut-swin|maskformer-swin|hiera|mvit|focalnet|dinat": "stages of windows",
    r"pvt.*|segformer|levit|cvt|mobilevit.*|poolformer": "stages, with convolutions",
    r"resnet|regnet|convnext.*|dinov3_convnext|bit|.*mobilenet.*": "a convolutional network",
    r"vit-hybrid|vit_hybrid": "a ViT on a BiT ResNet",
    r"sam2.*|sam3.*|vitdet|edgetam.*": "windows with decomposed relative positions",
    r"vjepa2|videomae|vivit|timesformer|videoprism": "video: patches with a length in time",
    r"radio": "RADIO: a class token for each of its teachers",
    r"mlcd.*": "a class token that is turned by learned angles",
    r"audio-spectrogram-transformer": "a model of sound, whose patches overlap",
    r"pixtral|qwen.*|glm.*": "a ViT with RMS norms or rotary positions of its own",
    r"pixio": "a ViT with several class tokens",
    r"timm_backbone": "a model of timm without a configuration of its own",
    r"vision-encoder-decoder|detr|yolos|blip.*": "more than an image encoder",
}  # fmt: skip

# Where config.json has that of the image model, if there are several or more than that.
NESTED = ("vision_config", "encoder", "backbone_config")


@dataclass(frozen=True)
class Backbone:
    """The image model of a file.

    Attributes:
        family: of its model_type
        content: its part of config.json
        prefix: of its tensors
        names: stored names by those without the prefix; `/name` is outside of the backbone
        projection: width of the projection that both towers share
        tower: it is one of several models in the file
    """

    family: Family
    content: Content
    prefix: str
    names: dict[str, str]
    projection: int = 512
    tower: bool = False

    def stored(self, name: str) -> str:
        """Return the name that a tensor has, or would have, in the file."""
        outside = self.prefix.removesuffix("vision_model.") + name[1:]
        there = outside if name.startswith("/") else self.prefix + name
        return self.names.get(name, there)


def backbone_of(source: Source) -> Backbone:
    """Find the image model by config.json, and its tensors by the patch embedding.

    Raises:
        WeightsError: an unsupported model_type, or a file without a patch embedding.
    """
    top = source.config
    tower = next((key for key in NESTED if isinstance(top.get(key), dict)), "")
    content: Content = top[tower] if tower else top
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
    patch = f"{family.patch}.weight"
    first = min((name for name in source.shapes if name.endswith(patch)), key=len, default=None)
    if first is None:
        raise WeightsError(f"tensor {patch} is missing ({NAME})")
    prefix = first.removesuffix(patch)
    projection = top.get("projection_dim") or (768 if tower and "altclip" in model_type else 512)
    names = named(source, family, prefix)
    return Backbone(family, content, prefix, names, projection, bool(tower))


def named(source: Source, family: Family, prefix: str) -> dict[str, str]:
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


def shown(source: Source) -> Iterator[Backbone]:
    """Yield the image models that the tensors of a file may be, those named so by a prefix first.

    Each has what the tensors show in place of a config.json.
    """
    known = [each for each in FAMILIES.values() if each.patch.startswith("embeddings.")]
    ends = {f"{family.patch}.weight" for family in known}
    prefixes = {n.removesuffix(e) for e in ends for n in source.shapes if n.endswith(e)}
    for prefix in sorted(prefixes, key=len):
        own = [each for each in known if each.prefix and prefix.endswith(each.prefix)]
        for family in [*own, *known]:
            names = named(source, family, prefix)
            shapes = {short: source.shapes[name] for short, name in names.items()}
            if content := _content(family, shapes):
                projection = shapes.get("/visual_projection.weight", (0,))[0]
                yield Backbone(family, content, prefix, names, projection, True)


def _content(family: Family, shapes: Shapes) -> Content:
    """The keys of config.json that tensors show, of what may be the family; empty if it is not."""
    gate = first_name({**family.names, **family.gated}, "expand.weight").format(n=0)
    gated = bool(family.gated) and gate in shapes
    parts = found(shapes, {**family.names, **(family.gated if gated else {})})
    if len(parts.theirs.get("patch.weight", ((),))[0]) != 4 or "qkv.weight" not in parts:
        return {}
    try:
        fields = fields_shown("", parts, family.model_type)
    except WeightsError:
        return {}
    width, mlp, patch = fields["width"], fields["mlp"], fields["patch"]
    layers = [name.format(n=0) for name in parts_of(family.names, "qkv")] * 2
    query, key = (f"{layer}.bias" in shapes for layer in layers[:2])
    rows = fields["class_token"] + family.register_rows * fields["registers"]
    side = math.isqrt(max(0, (*parts.shape("positions"), 0)[1] - rows))
    heads = USUAL_HEADS.get(width, max(1, width // 64))
    if parts.offsets:
        offsets, heads = parts.offsets
        side = (math.isqrt(offsets - 3) + 1) // 2
    content: Content = {
        "hidden_size": width, "num_channels": fields["channels"], "patch_size": patch,
        "num_hidden_layers": fields["depth"], "num_attention_heads": heads,
        "intermediate_size": mlp, "mlp_ratio": 4 if gated else mlp / width,
        "num_register_tokens": fields["registers"], "qkv_bias": query, "query_bias": query,
        "value_bias": query, "key_bias": key, "attention_bias": query,
        "vision_use_head": "queries" in parts, "use_head": False, "proj_bias": fields["bias"],
        "mlp_bias": "contract.bias" in parts, "use_relative_position_bias": "bias_table" in parts,
        "use_shared_relative_position_bias": "shared_table" in parts,
        "use_absolute_position_embeddings": "positions" in parts,
        "use_mean_pooling": "layernorm.weight" not in shapes,
        "use_swiglu_ffn": gated, "use_gated_mlp": gated,
        **dict.fromkeys(("layerscale_value", "layer_scale_init_value"), fields["layer_scale"]),
    }  # fmt: skip
    if side:
        content["image_size"] = side * patch
    if gated:
        content["hidden_act"] = "silu"
    return {k: v for k, v in content.items() if k in DEFAULTS[family.model_type]}
