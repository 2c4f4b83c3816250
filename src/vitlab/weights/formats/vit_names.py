"""The tensors of a Vision Transformer by the names of a family: one record, one table."""

from dataclasses import dataclass

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import (
    Entry,
    layer,
    masked,
    same,
    shaped,
    stacked,
    with_prefix_rows,
    without_first_row,
    without_key,
)
from vitlab.weights.formats.room import cannot


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a family calls the parts of a model, and how it stores them.

    Attributes:
        patch, token, registers, positions: of the embedding
        flat: the class token is (D) and positions are (N, D), without leading ones
        own_row, register_rows: the class token has a position; the registers have
        block: prefix of block {0}
        branches: prefixes of attention and MLP {1} within the block
        norms, scales: of attention and MLP
        qkv: queries, keys and values: one layer, or three
        biases: of queries and values, where keys have none
        mask: a mask of the bias of queries, keys and values
        qk_norms, project: the other layers of attention
        mlp: the layers of an MLP
        gated: a gated MLP's first layers, stacked in ours, and its last
        pre_norm, norm: before and after the blocks
        bias_table, shared_table: of positions=bias, in each block or for all
        pre_logits: the tanh layer before the classifier
        projection: a classifier without a bias, stored transposed
        channels_last: the map of patches is a matrix, with channels behind rows and columns
    """

    patch: str
    token: str
    registers: str
    positions: str
    flat: bool = False
    own_row: bool = True
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
    pre_norm: str = ""
    norm: str
    bias_table: str = ""
    shared_table: str = ""
    pre_logits: str = ""
    projection: str = ""
    channels_last: bool = False


def embedding(config: ViTConfig, names: Names, format: str) -> list[Entry]:
    """List class token, registers and positions.

    Raises:
        WeightsError: the format cannot represent them.
    """
    width, table = config.width, list[Entry]()
    if config.has_token:
        flat = shaped("token", names.token, (1, 1, width), (width,))
        table.append(flat if names.flat else same("token", names.token))
    if names.register_rows:
        if config.has_token and not names.own_row:
            raise WeightsError(f"{format}: registers with positions, but a class token without")
        both = (names.registers, names.positions)
        return [*table, with_prefix_rows(config.has_token, config.registers, both)]
    if config.registers:
        table.append(same("registers", names.registers))
    return table + _positions(config, names, format)


def _positions(config: ViTConfig, names: Names, format: str) -> list[Entry]:
    """List learned positions, added to the tokens or within attention."""
    added, both, within = config.positions.partition("+")
    within = within if both else added
    first, inner = ("positions.0.added", "inner.") if both else ("positions.0", "")
    table = list[Entry]()
    match added, config.positions_at:
        case "1d", "stem" | "shared" if both or config.positions_at == "stem":
            table.append(_learned(config, names, f"{first}.table"))
        case (("none" | "rope" | "bias"), _):
            pass
        case _:
            where = f"positions_at={config.positions_at} together"
            raise cannot(format, f"positions={config.positions}", where)
    if within == "bias" and config.positions_at == "shared":
        table.append(same(f"positions.0.{inner}table", names.shared_table))
    elif within == "bias":
        for number in range(config.depth):
            theirs = names.block.format(number) + names.bias_table
            table.append(same(f"positions.{number}.{inner}table", theirs))
    return table


def _learned(config: ViTConfig, names: Names, ours: str) -> Entry:
    """Map learned positions, (1, N, D)."""
    places = (config.placed, config.width)
    if names.flat:
        return shaped(ours, names.positions, (1, *places), places)
    if config.has_token and not names.own_row:
        return without_first_row(ours, names.positions)
    return same(ours, names.positions)


def encoder(config: ViTConfig, names: Names) -> list[Entry]:
    """List the blocks, and the norm before them."""
    table = layer("pre_norm", names.pre_norm) if config.pre_norm else []
    for number in range(config.depth):
        for branch in range(config.branches):
            for side, (kind, body) in enumerate((("attention", _attention), ("mlp", _mlp))):
                ours = f"blocks.{number}.{kind}.{branch}"
                theirs = (names.block + names.branches[side]).format(number, branch)
                table += layer(f"{ours}.norm", theirs + names.norms[side])
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
            table += layer(f"{ours}.norms.{part}", theirs + name)
    return table + layer(f"{ours}.project", theirs + names.project, config.bias)


def _mlp(config: ViTConfig, names: Names, ours: str, theirs: str) -> list[Entry]:
    *first, last = names.gated if config.ffn == "swiglu" else names.mlp
    table = layer(f"{ours}.contract", theirs + last, config.bias)
    for part in ("weight", "bias") if config.bias else ("weight",):
        table.append(stacked(f"{ours}.expand.{part}", [f"{theirs}{n}.{part}" for n in first]))
    return table
