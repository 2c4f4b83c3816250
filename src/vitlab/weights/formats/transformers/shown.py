"""The state dict of a model of transformers, without config.json: what its tensors show.

Names tell the family, shapes most of its configuration; what neither shows has the default of the
family's class, which is only assumed.
"""

import math
from collections.abc import Iterator

from vitlab.errors import WeightsError
from vitlab.weights.formats.names import first_name, found, parts_of
from vitlab.weights.formats.shapes import fields_shown
from vitlab.weights.formats.timm.timm_content import USUAL_HEADS
from vitlab.weights.formats.transformers.config_json import DEFAULTS
from vitlab.weights.formats.transformers.families import FAMILIES
from vitlab.weights.formats.transformers.family import Content, Family, Shapes
from vitlab.weights.formats.transformers.towers import Backbone, named
from vitlab.weights.source import Source


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
    tables = [parts.shape(key) for key in ("bias_table", "shared_table") if key in parts]
    rows = fields["class_token"] + family.register_rows * fields["registers"]
    side = math.isqrt(max(0, (*parts.shape("positions"), 0)[1] - rows))
    heads = USUAL_HEADS.get(width, max(1, width // 64))
    if tables:
        offsets, heads = tables[0]
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
