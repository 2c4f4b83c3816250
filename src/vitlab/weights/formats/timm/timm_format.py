"""timm's names, which DeiT, MAE, DINO and BEiT's own files share but for a few words.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, beit.py, eva.py; the
checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3) and microsoft/unilm (beit).
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.dialects.dialects import layout_of
from vitlab.weights.formats.names import entries, first_name, placed
from vitlab.weights.formats.origins import with_means
from vitlab.weights.formats.outside import notes_beside
from vitlab.weights.formats.room import Hints, Reading, Writing
from vitlab.weights.formats.rotary_rows import frequencies
from vitlab.weights.formats.shapes import overlap
from vitlab.weights.formats.timm.arguments import NAME, check_arguments
from vitlab.weights.formats.timm.config_json import check_written, stored_as, written
from vitlab.weights.formats.timm.timm_facts import known_of
from vitlab.weights.formats.timm.timm_names import names_for, pairs_for
from vitlab.weights.formats.timm.timm_shapes import fields_of
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
PROJECTOR = re.compile(r"((head\.\d+|fc\.bn\d)\.)running_mean")


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a file with timm's names.

    Raises:
        WeightsError: an unsupported family, or tensors of unsupported shapes.
    """
    file = layout_of(source)
    if file is None:
        return None
    prefix, dialect, parts = file.prefix, file.dialect, file.parts
    known = known_of(source, hints, file)
    facts, own_row, register_rows = fields_of(source, file, known, hints)
    config = ViTConfig(**with_means(facts).values)
    rows = register_rows or (own_row and config.has_token)
    arguments = _without_class_layers(source.path, known.arguments, config)
    check_arguments(source.path, arguments, config, rows, {*hints.choices})
    if "head_dist.weight" in file.shapes and "heads.weight" not in parts:
        raise WeightsError(f"{source.path}: a distilled model without its first classifier")
    names = parts.names
    if "positions" in parts:
        has_rows = own_row or not config.has_token or bool(config.class_blocks)
        names = placed(names, has_rows, register_rows)
    if "freqs" in parts:
        names["freqs"] = frequencies(first_name(names, "freqs"), known.pairs == "xy")
    if "pooled_norm.weight" not in parts:
        names["pooled_norm"] = names.get("norm", "")
    table = [
        entry.renamed(lambda n: file.stored.get(n, prefix + n.removeprefix("/")))
        for entry in entries(config, names, dialect.name, known.pairs or "")
    ]
    left_out = {re.escape(prefix) + f"({pattern})": why for pattern, why in LEFT_OUT.items()}
    if any(PROJECTOR.fullmatch(name) for name in file.shapes):
        left_out[re.escape(prefix) + r"(head|fc)\..*"] = "for pre-training alone"
    left_out |= {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {}
    label = f"{NAME}, {known.architecture}" if known.architecture else dialect.name
    taken = {name for entry in table for name in entry.theirs}
    beside = notes_beside(source, prefix, taken)
    if (size := hints.image_size) and overlap(size, config.patch, math.prod(config.grid)):
        wide = "x".join(map(str, config.size))
        beside += (f"{source.path}: if its patches overlap, it is not this model of {wide} pixels",)
    return Reading(label, config, table, left_out, facts.origins, beside)


def _without_class_layers(
    path: object, arguments: Mapping[str, Any], config: ViTConfig
) -> Mapping[str, Any]:
    """Check CaiT's arguments of its class-attention layers, and return the others.

    Raises:
        WeightsError: those layers have other MLPs than the blocks, or another number.
    """
    if not config.class_blocks:
        return arguments
    layers = arguments.get("depth_token_only", config.class_blocks)
    ratio = arguments.get("mlp_ratio_token_only", config.mlp / config.width)
    if layers != config.class_blocks or int(config.width * ratio) != config.mlp:
        raise WeightsError(
            f"{path}: unsupported model_args depth_token_only={layers!r} with "
            f"mlp_ratio_token_only={ratio!r} of timm for this model: class-attention layers have "
            f"the MLPs of the other blocks, {config.mlp} units wide"
        )
    own = ("depth_token_only", "mlp_ratio_token_only")
    return {name: value for name, value in arguments.items() if name not in own}


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as a folder that timm loads.

    Raises:
        WeightsError: timm has no such model.
    """
    vit = check_written(config)
    stored = stored_as(vit)
    table = entries(stored, names_for(stored), NAME, pairs_for(stored))
    return Writing(table, {CONFIG: written(vit, stored)}, stored=stored, resampling="antialiased")
