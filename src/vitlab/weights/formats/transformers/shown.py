"""The state dict of a model of transformers, without config.json: what its tensors show.

Names tell the family, shapes most of its configuration; what neither shows has the default of the
family's class, which is only assumed.
"""

import math
import re
from collections.abc import Iterator

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
    first = family.block.format(0)
    gated = bool(family.gated) and f"{first}{family.gated[0]}.weight" in shapes
    kernel = shapes.get(f"{family.patch}.weight", ())
    last = shapes.get(
        f"{first}{((gated and family.gated) or family.mlp or family.gated)[-1]}.weight"
    )
    query, key = (f"{first}{name}" for name in (family.qkv * 3)[:2])
    if len(kernel) != 4 or last is None or f"{query}.weight" not in shapes:
        return {}
    block = re.escape(family.block).replace(r"\{0\}", r"(\d+)")
    biased, table = f"{query}.bias" in shapes, shapes.get(family.positions, (0, 0))
    rows = sum(name in shapes for name in (family.token, family.registers * family.register_rows))
    side = math.isqrt(max(0, table[-2] - rows))
    heads = USUAL_HEADS.get(kernel[0], max(1, kernel[0] // 64))
    for name in (f"{first}{family.bias_table}", family.shared_table):
        if name in shapes:
            offsets, heads = shapes[name]
            side = (math.isqrt(offsets - 3) + 1) // 2
    found: Content = {
        "hidden_size": kernel[0], "num_channels": kernel[1], "patch_size": kernel[2],
        "num_hidden_layers": len({m[1] for name in shapes if (m := re.match(block, name))}),
        "num_attention_heads": heads,
        "intermediate_size": last[1], "mlp_ratio": 4 if gated else last[1] / kernel[0],
        "num_register_tokens": shapes.get(family.registers, (0, 0))[1], "qkv_bias": biased,
        "query_bias": biased, "value_bias": biased, "key_bias": f"{key}.bias" in shapes,
        "attention_bias": biased, "vision_use_head": "head.probe" in shapes, "use_head": False,
        "proj_bias": f"{first}{family.project}.bias" in shapes,
        "mlp_bias": f"{first}{(family.mlp or family.gated)[-1]}.bias" in shapes,
        "use_relative_position_bias": f"{first}{family.bias_table}" in shapes,
        "use_shared_relative_position_bias": family.shared_table in shapes,
        "use_absolute_position_embeddings": family.positions in shapes,
        "use_mean_pooling": "layernorm.weight" not in shapes,
        family.gate: gated, family.scale: float(f"{first}{family.scales[0]}" in shapes),
    }  # fmt: skip
    if side:
        found["image_size"] = side * kernel[2]
    if gated:
        found["hidden_act"] = "silu"
    return {k: v for k, v in found.items() if k in DEFAULTS[family.model_type]}
