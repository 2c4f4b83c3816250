"""The tensors of a Vision Transformer by the names of a family: one record, one table."""

from dataclasses import dataclass
from typing import Literal

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import (
    Entry,
    each,
    layer,
    masked,
    same,
    scaled,
    shaped,
    stacked,
    with_prefix_rows,
    without_first_row,
    without_key,
)
from vitlab.weights.formats.room import cannot
from vitlab.weights.formats.rotary_rows import frequencies, paired


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a family calls the parts of a model, and how it stores them.

    Attributes:
        patch, token, registers, positions: of the embedding
        flat: the class token is (D) and positions are (N, D), without leading ones
        gridded: positions are (1, rows, columns, D)
        own_row, register_rows: the class token has a position; the registers have
        added_row: the first row of positions is added to those of all patches
        block: prefix of block {0}
        branches: prefixes of attention and MLP {1} within the block
        norms, scales: of attention and MLP
        qkv: queries, keys and values: one layer, or three
        biases: of queries and values, where keys have none
        mask: a mask of the bias of queries, keys and values
        qk_norms, project: the other layers of attention
        mlp: the layers of an MLP
        gated: a gated MLP's first layers, stacked in ours, and its last
        inner_norms: before the last layers of attention and MLP
        pre_norm, norm: before and after the blocks; a norm without a name has no scale
        pooled_norm: of norm_at=pooled
        head_bias: the classifier has a bias
        bias_table, shared_table: of positions=bias, in each block or for all
        pre_logits: the tanh layer before the classifier
        projection: a classifier without a bias, stored transposed
        channels_last: the map of patches is a matrix, with channels behind rows and columns
        freqs: learned frequencies of rotary positions, of all blocks: (2, L, h, d / 2); or named
            so by RoPE-ViT's own code, (2, L, h d / 2); with rope_kind=free, of each block, (2, d)
        pool_joined: queries, keys and values of the attention pool are one layer
        pairs: how channels that turn together lie: in halves of a head, or as neighbors, where
            those that turn with the row come first (ij), or with the column (xy)
    """

    patch: str
    token: str
    registers: str
    positions: str
    flat: bool = False
    gridded: bool = False
    own_row: bool = True
    added_row: bool = False
    register_rows: bool = False
    block: str
    branches: tuple[str, str] = ("", "")
    norms: tuple[str, str]
    scales: tuple[str, str] = ("", "")
    qkv: tuple[str, ...]
    biases: tuple[str, ...] = ()
    mask: str = ""
    qk_norms: tuple[str, str] = ("", "")
    project: str
    mlp: tuple[str, ...]
    gated: tuple[str, ...] = ()
    inner_norms: tuple[str, str] = ("", "")
    pre_norm: str = ""
    norm: str
    pooled_norm: str = "fc_norm"
    head_bias: bool = True
    bias_table: str = ""
    shared_table: str = ""
    pre_logits: str = ""
    projection: str = ""
    channels_last: bool = False
    freqs: str = ""
    pool_joined: bool = False
    pairs: Literal["", "ij", "xy"] = ""


# Of the first ViT code in PyTorch, which most others follow.
PLAIN = Names(
    patch="patch_embed.proj",
    token="cls_token",
    registers="reg_token",
    positions="pos_embed",
    block="blocks.{0}.",
    norms=("norm1", "norm2"),
    qkv=("attn.qkv",),
    project="attn.proj",
    mlp=("mlp.fc1", "mlp.fc2"),
    norm="norm",
)


def embedding(config: ViTConfig, names: Names, format: str) -> list[Entry]:
    """List class token, registers and positions.

    Raises:
        WeightsError: the format cannot represent them.
    """
    width, table = config.width, list[Entry]()
    if config.has_token:
        flat = shaped("token", names.token, (1, 1, width), (width,))
        table.append(flat if names.flat else same("token", names.token))
    if config.registers and not names.register_rows:
        table.append(same("registers", names.registers))
    both = "+" in config.positions
    within = "positions.{0}.inner." if both else "positions.{0}."
    for kind in config.positions.split("+"):
        match kind, config.positions_at:
            case "1d", at if both or at == "stem":
                table.append(_learned(config, names, format, both))
            case "bias", "shared":
                table.append(same(within.format(0) + "table", names.shared_table))
            case "bias", "stem":
                for number in range(config.depth):
                    theirs = names.block.format(number) + names.bias_table
                    table.append(same(within.format(number) + "table", theirs))
            case "rope", _ if config.rope_kind == "mixed":
                first = names.pairs == "xy"
                table.append(frequencies(config, within + "freqs", names.freqs, first))
            case "rope", _ if config.rope_kind == "free":
                size = config.width // config.heads
                for number in range(config.depth):
                    ours, theirs = within.format(number), names.block.format(number)
                    pair = (f"{ours}freqs", theirs + names.freqs)
                    table.append(shaped(*pair, (2, 1, size), (2, size)))
            case (("none" | "rope"), _):
                pass
            case _:
                where = f"positions_at={config.positions_at} together"
                raise cannot(format, f"positions={config.positions}", where)
    return table


def _learned(config: ViTConfig, names: Names, format: str, both: bool) -> Entry:
    """Learned positions, perhaps beside others, with or without rows of class token and registers.

    Raises:
        WeightsError: registers have rows, but the class token has none.
    """
    ours = "positions.0.added.table" if both else "positions.0.table"
    if names.register_rows:
        if config.has_token and not names.own_row:
            raise WeightsError(f"{format}: registers with positions, but a class token without")
        stored = (names.registers, names.positions)
        return with_prefix_rows(config.has_token, config.registers, stored, ours)
    if names.added_row:
        return each(
            ours,
            names.positions,
            lambda t: t[:, 1:] + t[:, :1],
            lambda t: torch.cat([torch.zeros_like(t[:, :1]), t], dim=1),
        )
    places = (config.placed, config.width)
    if names.flat or names.gridded:
        theirs = (1, *config.grid, config.width) if names.gridded else places
        return shaped(ours, names.positions, (1, *places), theirs)
    if config.has_token and not names.own_row:
        return without_first_row(ours, names.positions)
    return same(ours, names.positions)


def encoder(config: ViTConfig, names: Names) -> list[Entry]:
    """List the blocks, and the norm before them."""
    table = scaled("pre_norm", names.pre_norm, config) if config.pre_norm else []
    for number in range(config.depth):
        for branch in range(config.branches):
            for side, (kind, body) in enumerate((("attention", _attention), ("mlp", _mlp))):
                ours = f"blocks.{number}.{kind}.{branch}"
                theirs = (names.block + names.branches[side]).format(number, branch)
                table += scaled(f"{ours}.norm", theirs + names.norms[side], config)
                if config.layer_scale:
                    table.append(same(f"{ours}.scale", theirs + names.scales[side]))
                table += body(config, names, f"{ours}.body", theirs)
    return table


def void_keys(config: ViTConfig) -> bool:
    """Return whether a bias of keys has no effect.

    It adds the same number to all logits of a query, which the softmax takes out again, unless
    keys are normalized or turned after it.
    """
    return not config.qk_norm and "rope" not in config.positions


def _attention(config: ViTConfig, names: Names, ours: str, theirs: str) -> list[Entry]:
    qkv, first = f"{ours}.qkv", theirs + names.qkv[0]
    table = [stacked(f"{qkv}.weight", [f"{theirs}{name}.weight" for name in names.qkv])]
    if config.qkv_bias and names.biases:
        query, value = (theirs + name for name in names.biases)
        table.append(without_key(f"{qkv}.bias", query, value, void_keys(config)))
    elif config.qkv_bias and names.mask:
        table.append(masked(f"{qkv}.bias", (f"{first}.bias", theirs + names.mask)))
    elif config.qkv_bias:
        table.append(stacked(f"{qkv}.bias", [f"{theirs}{name}.bias" for name in names.qkv]))
    if config.qk_norm:
        for part, name in zip("qk", names.qk_norms, strict=True):
            table += scaled(f"{ours}.norms.{part}", theirs + name, config)
    if names.pairs and "rope" in config.positions:
        table = [paired(entry, config, names.pairs == "xy") for entry in table]
    if config.norm_inner_attention:
        table += scaled(f"{ours}.norm", theirs + names.inner_norms[0], config)
    return table + layer(f"{ours}.project", theirs + names.project, config.bias)


def _mlp(config: ViTConfig, names: Names, ours: str, theirs: str) -> list[Entry]:
    *first, last = names.gated if config.ffn == "swiglu" else names.mlp
    table = layer(f"{ours}.contract", theirs + last, config.bias)
    if config.norm_inner_mlp:
        table += scaled(f"{ours}.norm", theirs + names.inner_norms[1], config)
    for part in ("weight", "bias") if config.bias else ("weight",):
        table.append(stacked(f"{ours}.expand.{part}", [f"{theirs}{n}.{part}" for n in first]))
    return table
