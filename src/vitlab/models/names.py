"""The papers' notation for a model, `ViT-S18x2/16`, to its configuration and back."""

import difflib
import re
from typing import Any

from vitlab.errors import UserError
from vitlab.models.config import ViTConfig

# width, depth, heads, mlp: ViT paper, Table 1; Ti and S from DeiT; the rest from the releases
# that followed (Zhai et al., Scaling Vision Transformers).
SIZES: dict[str, tuple[int, int, int, int]] = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
# What `vitlab models` lists; any other size, depth, number of branches and patch goes as well.
MODELS = (
    "ViT-Ti/16",
    "ViT-S/32",
    "ViT-S/16",
    "ViT-B/32",
    "ViT-B/16",
    "ViT-L/32",
    "ViT-L/16",
    "ViT-H/14",
)
SHAPE = ("width", "depth", "heads", "mlp", "branches", "patch")  # what a name can say

_NAMED = re.compile(
    r"ViT-(?P<size>[A-Za-z]+)(?:(?P<depth>\d+)(?:x(?P<branches>\d+))?)?/(?P<patch>\d+)"
)
_SPELT = re.compile(r"ViT\((?P<fields>[a-z]+=\d+(?:,[a-z]+=\d+)*)\)/(?P<patch>\d+)")


def config_of(name: str, **choices: Any) -> ViTConfig:
    """The configuration a name stands for, with any further field of `ViTConfig` chosen.

    `ViT-B/16` is a size of the papers and its patch; `ViT-B13/16` has another depth and
    `ViT-S18x2/16` parallel branches (Three things, section 3). A shape without a size of its own
    spells its fields out: `ViT(width=96,depth=6,heads=3,mlp=384)/2`.
    """
    return ViTConfig(**(shape_of(name) | choices))


def name_of(config: ViTConfig) -> str:
    """The notation of a configuration's shape; `config_of` turns it back into the same shape."""
    for size, (width, depth, heads, mlp) in SIZES.items():
        if (config.width, config.heads, config.mlp) == (width, heads, mlp):
            own = "" if config.depth == depth and config.branches == 1 else str(config.depth)
            branches = f"x{config.branches}" if config.branches > 1 else ""
            return f"ViT-{size}{own}{branches}/{config.patch}"
    spelt = ",".join(
        f"{key}={getattr(config, key)}"
        for key in SHAPE[:-1]
        if key != "branches" or config.branches > 1
    )
    return f"ViT({spelt})/{config.patch}"


def shape_of(name: str) -> dict[str, int]:
    """The fields of `ViTConfig` that a name states."""
    if (match := _NAMED.fullmatch(name)) and match["size"] in SIZES:
        shape = dict(zip(("width", "depth", "heads", "mlp"), SIZES[match["size"]], strict=True))
        given = {key: int(match[key]) for key in ("depth", "branches", "patch") if match[key]}
        return shape | given
    if match := _SPELT.fullmatch(name):
        shape = {key: int(n) for key, n in re.findall(r"([a-z]+)=(\d+)", match["fields"])}
        if not set(shape) - set(SHAPE):
            return shape | {"patch": int(match["patch"])}
    raise UserError(f"unknown model {name!r}: {_suggestion(name)}")


def _suggestion(name: str) -> str:
    """The nearest name that exists, with the patch that was asked for if there was one."""
    patch = match[1] if (match := re.search(r"/(\d+)$", name)) else None
    known = {f"ViT-{size}/{patch}" for size in SIZES} if patch else set(MODELS)
    folded = {each.lower(): each for each in sorted(known | set(MODELS))}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"did you mean {folded[near[0]]}?" if near else "a name looks like ViT-B/16"
