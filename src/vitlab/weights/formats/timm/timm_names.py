"""The table of timm's names for our tensors, in the dialects of its families."""

import math
import re
from dataclasses import replace

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.formats.entries import Entry, halves, layer, same
from vitlab.weights.formats.resnet_units import hybrid_parts
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.timm.timm_arguments import NAME
from vitlab.weights.formats.vit_names import Names, embedding, encoder
from vitlab.weights.source import Shape

# Names of the papers' own files that differ from timm's.
ALIASES = (
    (r"^blocks\.\d+\.(\d+)\.(?=norm|attn|mlp|ls)", r"blocks.\1."),  # DINOv2's chunks
    (r"^(register_tokens|storage_tokens)$", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.gamma_1$", ".ls1.gamma"),
    (r"\.gamma_2$", ".ls2.gamma"),
)
# Two parallel branches in DeiT's own code (norm11, attn1, gamma_1_1, …).
PARALLEL = (
    (r"\.norm11\.", ".attns.1.norm."), (r"\.norm1\.", ".attns.0.norm."),
    (r"\.norm21\.", ".ffns.1.norm."), (r"\.norm2\.", ".ffns.0.norm."),
    (r"\.attn1\.", ".attns.1.attn."), (r"\.attn\.", ".attns.0.attn."),
    (r"\.mlp1\.", ".ffns.1.mlp."), (r"\.mlp\.", ".ffns.0.mlp."),
    (r"\.gamma_1_1$", ".attns.1.ls.gamma"), (r"\.gamma_1$", ".attns.0.ls.gamma"),
    (r"\.gamma_2_1$", ".ffns.1.ls.gamma"), (r"\.gamma_2$", ".ffns.0.ls.gamma"),
)  # fmt: skip


# Of most models; of two parallel branches; of beit.py and eva.py.
TIMM = Names(
    patch="patch_embed.proj",
    token="cls_token",
    registers="reg_token",
    positions="pos_embed",
    block="blocks.{0}.",
    norms=("norm1", "norm2"),
    scales=("ls1.gamma", "ls2.gamma"),
    qkv=("attn.qkv",),
    qk_norms=("attn.q_norm", "attn.k_norm"),
    project="attn.proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    gated=("mlp.fc1", "mlp.fc2"),
    pre_norm="norm_pre",
    norm="norm",
    bias_table="attn.relative_position_bias_table",
    shared_table="rel_pos_bias.relative_position_bias_table",
)
BRANCHED = replace(
    TIMM,
    branches=("attns.{1}.", "ffns.{1}."),
    norms=("norm", "norm"),
    scales=("ls.gamma", "ls.gamma"),
)
EVA = replace(TIMM, scales=("gamma_1", "gamma_2"))
NO_KEY_BIAS = ("attn.q_bias", "attn.v_bias")
GATE_APART = ("mlp.fc1_g", "mlp.fc1_x", "mlp.fc2")


def names_in(shapes: dict[str, Shape], own_row: bool, register_rows: bool) -> Names:
    """Return the names of a file, after `canonical`.

    Args:
        shapes: of its tensors
        own_row: the class token has a position
        register_rows: the registers have positions
    """
    first = first_branch(shapes)
    base = BRANCHED if "attns" in first else TIMM
    return replace(
        base,
        own_row=own_row,
        register_rows=register_rows,
        registers="dist_token" if "dist_token" in shapes else base.registers,
        biases=NO_KEY_BIAS if f"{first}attn.q_bias" in shapes else (),
        mask="attn.qkv.bias_mask" if f"{first}attn.qkv.bias_mask" in shapes else "",
        gated=GATE_APART if f"{first}mlp.fc1_g.weight" in shapes else base.gated,
    )


def names_for(config: ViTConfig) -> Names:
    """Return the names under which timm stores a model."""
    eva = config.positions in ("bias", "rope")
    base = EVA if eva else BRANCHED if config.branches > 1 else TIMM
    return replace(
        base,
        register_rows=config.registers > 0 and config.positions == "1d",
        registers="dist_token" if config.pool == "prefix" else base.registers,
        biases=NO_KEY_BIAS if eva else (),
        gated=GATE_APART if config.positions == "rope" else base.gated,
    )


def first_branch(shapes: dict[str, Shape]) -> str:
    """Return the prefix of the first block's first branch."""
    return "blocks.0.attns.0." if "blocks.0.attns.0.norm.weight" in shapes else "blocks.0."


def canonical(names: list[str]) -> dict[str, str]:
    """Return the original names by timm's names."""
    rules = PARALLEL if any(".norm11." in name for name in names) else ALIASES
    renamed: dict[str, str] = {}
    for old in names:
        new = old
        for pattern, word in rules:
            new, count = re.subn(pattern, word, new)
            if count and rules is PARALLEL:
                break  # one word per name
        if new in renamed:
            raise WeightsError(f"tensors {renamed[new]} and {old} have the same meaning")
        renamed[new] = old
    return renamed


def entries(config: ModelConfig, names: Names) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Raises:
        WeightsError: timm cannot represent the model.
    """
    if not isinstance(config, ViTConfig) or config.attention == "axial" or config.queries > 1:
        raise cannot(NAME, config.name)
    if config.pre_logits or config.pool == "both":
        raise cannot(NAME, f"pre_logits={config.pre_logits} with pool={config.pool}")
    table = [*_stem(config), *embedding(config, names, NAME), *encoder(config, names)]
    if config.norm_at != "none":
        pooled = config.norm_at == "pooled"
        table += layer("head.norm" if pooled else "norm", "fc_norm" if pooled else names.norm)
    if config.pool == "attention":
        table += _attention_pool()
    if config.classes and config.pool == "prefix":
        for part in ("weight", "bias"):
            table.append(halves(f"head.classify.{part}", (f"head.{part}", f"head_dist.{part}")))
    elif config.classes:
        table += layer("head.classify", "head")
    return table


def _stem(config: ViTConfig) -> list[Entry]:
    match config.stem:
        case "linear" if config.stem_norm == "none" and config.stem_act == "none":
            return layer("stem.layers.0", "patch_embed.proj", config.stem_bias)
        case "hmlp" if config.stem_norm != "layer":
            return _hmlp(config)
        case "resnet":
            return _hybrid(config)
    raise cannot(
        NAME,
        f"stem={config.stem}",
        f"stem_norm={config.stem_norm}",
        f"stem_act={config.stem_act} together",
    )


def _hmlp(config: ViTConfig) -> list[Entry]:
    """DeiT's code: the same sequence of layers."""
    steps = int(math.log2(config.patch)) - 1
    stride = 3 if config.stem_norm == "batch" else 2
    table: list[Entry] = []
    for step in range(steps):
        table += layer(f"stem.layers.{stride * step}", f"patch_embed.proj.{stride * step}")
        if config.stem_norm == "batch":
            place = f"{stride * step + 1}"
            table += layer(f"stem.layers.{place}", f"patch_embed.proj.{place}")
            for part in ("running_mean", "running_var", "num_batches_tracked"):
                table.append(
                    same(f"stem.layers.{place}.{part}", f"patch_embed.proj.{place}.{part}")
                )
    return table


def _hybrid(config: ViTConfig) -> list[Entry]:
    body = "patch_embed.backbone"
    root = f"{body}.stem" if config.stages else body
    table = layer("stem.project", "patch_embed.proj")
    table += layer("stem.body.root.reduce.conv", f"{root}.conv", bias=False)
    table += layer("stem.body.root.reduce.norm", f"{root}.norm")
    names = {"reduce": "{}1", "middle": "{}2", "expand": "{}3", "shortcut": "downsample.{}"}
    for ours, stage, unit, part in hybrid_parts(config.stages):
        theirs = f"{body}.stages.{stage}.blocks.{unit}.{names[part]}"
        table += layer(f"{ours}.conv", theirs.format("conv"), bias=False)
        table += layer(f"{ours}.norm", theirs.format("norm"))
    return table


def _attention_pool() -> list[Entry]:
    ours, theirs = "head.attend", "attn_pool"
    table = [same(f"{ours}.queries", f"{theirs}.latent")]
    for part, name in (("q", "q"), ("kv", "kv"), ("project", "proj"), ("norm", "norm")):
        table += layer(f"{ours}.{part}", f"{theirs}.{name}")
    table += layer(f"{ours}.mlp.expand", f"{theirs}.mlp.fc1")
    return [*table, *layer(f"{ours}.mlp.contract", f"{theirs}.mlp.fc2")]
