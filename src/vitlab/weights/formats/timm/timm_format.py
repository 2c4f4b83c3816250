"""timm's names, which DeiT, MAE, DINO and BEiT's own files share but for a few words.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, beit.py, eva.py; the
checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3) and microsoft/unilm (beit).
"""

import re
from collections.abc import Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.room import Hints, Reading, Writing, cannot
from vitlab.weights.formats.timm.timm_arguments import NAME, check_arguments
from vitlab.weights.formats.timm.timm_config import written
from vitlab.weights.formats.timm.timm_facts import known_of
from vitlab.weights.formats.timm.timm_names import canonical, entries, names_for, names_in
from vitlab.weights.formats.timm.timm_shapes import fields_of
from vitlab.weights.sharded import CONFIG
from vitlab.weights.source import Source

ROOTS = ("patch_embed.proj.weight", "patch_embed.proj.0.weight")
LEFT_OUT = {
    r"mask_token|decoder.*": "for pre-training alone",
    r".*relative_position_index|rope_embed\..*|.*\.rope\..*": "computed here",
    r".*num_batches_tracked": "computed here",
    r"lm_head\..*|head\.(mlp|last_layer|prototypes).*": "for pre-training alone",
}


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a file with timm's names.

    Raises:
        WeightsError: an unsupported family, or tensors of unsupported shapes.
    """
    roots = [name for name in source.shapes if name.endswith(ROOTS)]
    if source.kind == "npz" or not roots:
        return None
    root = min(roots, key=len)
    prefix = root[: root.index("patch_embed.")]
    own = [name for name in source.shapes if name.startswith(prefix)]
    stored = canonical([name.removeprefix(prefix) for name in own])
    shapes = {name: source.shapes[prefix + old] for name, old in stored.items()}
    theirs = {name.removeprefix(prefix): source.shapes[name] for name in own}
    known = known_of(source, hints, theirs | shapes)
    facts, own_row, register_rows = fields_of(source, shapes, known, hints)
    config = ViTConfig(**facts.values)
    rows = register_rows or (own_row and config.has_token)
    check_arguments(source.path, known.arguments, config, rows, {*hints.choices})
    back = {name: prefix + old for name, old in stored.items()}
    table = [
        entry.renamed(lambda n: back.get(n, prefix + n))
        for entry in entries(config, names_in(shapes, own_row, register_rows))
    ]
    if "head.weight" not in shapes and "head_dist.weight" in shapes:
        raise WeightsError(f"{source.path}: a distilled model without its first classifier")
    left_out = {re.escape(prefix) + f"({pattern})": why for pattern, why in LEFT_OUT.items()}
    left_out |= {f"(?!{re.escape(prefix)}).*": "outside the model"} if prefix else {}
    label = f"{NAME}, {known.architecture}" if known.architecture else f"{NAME}'s names"
    return Reading(label, config, table, left_out, facts.origins)


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as a folder that timm loads.

    Raises:
        WeightsError: timm has no such model.
    """
    if not isinstance(config, ViTConfig):
        raise cannot(NAME, config.name)
    if config.stem == "linear" and config.stem_bias == config.pre_norm:
        raise WeightsError(
            f"{NAME} has a norm before the encoder exactly if the stem has no bias, so it cannot "
            f"represent pre_norm={config.pre_norm} with stem_bias={config.stem_bias}"
        )
    if config.branches > 2:
        raise WeightsError(f"{NAME} supports two parallel branches, not {config.branches}")
    content = written(config)
    return Writing(entries(config, names_for(config)), {CONFIG: content})
