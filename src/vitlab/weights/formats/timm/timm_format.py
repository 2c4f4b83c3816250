"""timm's names, which DeiT, MAE, DINO and BEiT's own files share but for a few words.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, beit.py, eva.py; the
checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3) and microsoft/unilm (beit).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.dialects.dialects import layout_of
from vitlab.weights.formats.origins import with_means
from vitlab.weights.formats.outside import notes_beside
from vitlab.weights.formats.room import Hints, Reading, Writing
from vitlab.weights.formats.timm.arguments import NAME, check_arguments
from vitlab.weights.formats.timm.config_json import check_written, stored_as, written
from vitlab.weights.formats.timm.timm_facts import known_of
from vitlab.weights.formats.timm.timm_names import entries, names_for, names_in
from vitlab.weights.formats.timm.timm_shapes import fields_of, overlap
from vitlab.weights.sharded import CONFIG
from vitlab.weights.source import Source

LEFT_OUT = {
    r"mask_token|masked_embed|decoder.*|projectors\..*": "for pre-training alone",
    r"local_cls_norm\..*": "for small crops in pre-training alone",
    r".*relative_position_index|rope_embed\..*|(.*\.)?rope\.freqs_(cos|sin)": "computed here",
    r".*\.rope\..*|freqs_t_[xy]": "computed here",
    r".*num_batches_tracked": "computed here",
    r"lm_head\..*|head\.(mlp|last_layer|prototypes).*": "for pre-training alone",
}
# The MLPs of MoCo-v3 and MSN, which batch norms tell from a classifier.
PROJECTION = "head.proj.weight"  # open_clip's, of a tower of timm, perhaps without a bias
PROJECTOR = re.compile(r"((head\.\d+|fc\.bn\d)\.)running_mean")


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a file with timm's names.

    Raises:
        WeightsError: an unsupported family, or tensors of unsupported shapes.
    """
    layout = layout_of(source)
    if layout is None:
        return None
    shapes, prefix, dialect = layout.shapes, layout.prefix, layout.dialect
    known = known_of(source, hints, layout)
    facts, own_row, register_rows = fields_of(source, shapes, known, hints)
    config = ViTConfig(**with_means(facts).values)
    rows = register_rows or (own_row and config.has_token)
    check_arguments(source.path, known.arguments, config, rows, {*hints.choices})
    names = names_in(shapes, own_row, register_rows, dialect.words, known.pairs or "")
    bare = layout.stored.get("head.weight", "").endswith(PROJECTION) and "head.bias" not in shapes
    names = replace(names, head_bias=not bare)
    table = [
        entry.renamed(lambda n: layout.stored.get(n, prefix + n))
        for entry in entries(config, names)
    ]
    if "head.weight" not in shapes and "head_dist.weight" in shapes:
        raise WeightsError(f"{source.path}: a distilled model without its first classifier")
    left_out = {re.escape(prefix) + f"({pattern})": why for pattern, why in LEFT_OUT.items()}
    if any(PROJECTOR.fullmatch(name) for name in layout.theirs):
        left_out[re.escape(prefix) + r"(head|fc)\..*"] = "for pre-training alone"
    left_out |= {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {}
    label = f"{NAME}, {known.architecture}" if known.architecture else dialect.name
    beside = () if layout.beside else notes_beside(source, prefix, layout.stored.values())
    if (size := hints.image_size) and overlap(size, config.patch, math.prod(config.grid)):
        wide = "x".join(map(str, config.size))
        beside += (f"{source.path}: if its patches overlap, it is not this model of {wide} pixels",)
    return Reading(label, config, table, left_out, facts.origins, beside)


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as a folder that timm loads.

    Raises:
        WeightsError: timm has no such model.
    """
    vit = check_written(config)
    stored = stored_as(vit)
    table, files = entries(stored, names_for(stored)), {CONFIG: written(vit, stored)}
    return Writing(table, files, stored=stored, resampling="antialiased")
