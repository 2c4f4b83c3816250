"""The names of Segment Anything's encoder: timm's, and the words in which others differ."""

import re
from dataclasses import replace

from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import Entry, layer, same, shaped
from vitlab.weights.formats.vit_names import PLAIN, encoder
from vitlab.weights.source import Source

PATCH = re.compile(r"(.*?)patch_embed\.proj(ection)?\.weight")
MARKS = re.compile(r"(blocks|layers)\.0\.attn\.rel_pos_h|neck\.(0|conv1)\.weight|neck\.weight")
# Words of Meta's code and of transformers, in place of timm's.
WORDS = (
    (r"^neck\.conv1\.", "neck.0."), (r"^neck\.layer_norm1\.", "neck.1."),
    (r"^neck\.conv2\.", "neck.2."), (r"^neck\.layer_norm2\.", "neck.3."),
    (r"^layers\.", "blocks."), (r"\.layer_norm([12])\.", r".norm\1."),
    (r"^patch_embed\.projection\.", "patch_embed.proj."), (r"\.mlp\.lin([12])\.", r".mlp.fc\1."),
)  # fmt: skip
NAMES = replace(PLAIN, scales=("ls1.gamma", "ls2.gamma"), pre_norm="norm_pre", norm="neck")


def root_of(source: Source) -> str | None:
    """Return the prefix of the encoder's names; None for another model."""
    for name in sorted(source.shapes, key=len):
        if found := PATCH.fullmatch(name):
            root = found[1]
            own = [n.removeprefix(root) for n in source.shapes if n.startswith(root)]
            if "cls_token" in own or not any(MARKS.fullmatch(n) for n in own):
                return None
            blocks = any(re.match(r"(blocks|layers)\.0\.(layer_)?norm1\.", n) for n in own)
            return root if blocks else None
    return None


def canonical(root: str, source: Source) -> dict[str, str]:
    """Return the names in the file by timm's.

    Raises:
        WeightsError: two tensors have the same meaning.
    """
    stored: dict[str, str] = {}
    for old in source.shapes:
        if not old.startswith(root):
            continue
        new = old.removeprefix(root)
        for pattern, word in WORDS:
            new = re.sub(pattern, word, new)
        if new in stored:
            raise WeightsError(f"tensors {stored[new]} and {old} have the same meaning")
        stored[new] = old
    return stored


def entries(config: ViTConfig, class_row: bool = False) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Args:
        config: of the model
        class_row: the table of positions has a row for a class token, which nothing uses
    """
    table = [*layer("stem.layers.0", NAMES.patch, config.stem_bias), *_positions(config, class_row)]
    table += encoder(config, NAMES)
    if config.neck:
        neck, width = config.neck, config.width
        table.append(
            shaped("neck.reduce.weight", "neck.0.weight", (neck, width), (neck, width, 1, 1))
        )
        table += layer("neck.reduce_norm", "neck.1")
        table.append(same("neck.mix.weight", "neck.2.weight"))
        table += layer("neck.mix_norm", "neck.3")
    elif config.norm_at == "tokens":
        table += layer("norm", NAMES.norm)
    return table + (layer("head.classify", "head.fc") if config.classes else [])


def _positions(config: ViTConfig, class_row: bool) -> list[Entry]:
    both = config.positions == "1d+decomposed"
    places, table = (1, config.placed, config.width), list[Entry]()
    if "1d" in config.positions:
        ours = "positions.0.added.table" if both else "positions.0.table"
        square = (1, *config.grid, config.width)
        if class_row:
            table.append(_after_class_row(ours, NAMES.positions))
        else:
            table.append(shaped(ours, NAMES.positions, places, square))
    if "decomposed" in config.positions:
        for number in range(config.depth):
            ours = f"positions.{number}." + ("inner." if both else "")
            theirs = NAMES.block.format(number) + "attn.rel_pos_"
            table += [same(f"{ours}rows", f"{theirs}h"), same(f"{ours}columns", f"{theirs}w")]
    return table


def _after_class_row(ours: str, theirs: str) -> Entry:
    """Map positions (1, N, D) in a table (1, 1 + N, D), whose first row is not used."""

    def write(tensors: list[Tensor]) -> list[Tensor]:
        _, places, width = tensors[0].shape
        return [tensors[0].new_zeros(1, 1 + places, width)]

    return Entry((ours,), (theirs,), lambda t: [t[0][:, 1:]], write)
