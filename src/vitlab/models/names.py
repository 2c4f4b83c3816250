"""The papers' notation for a model, `ViT-S18x2/16`, to its configuration and back."""

import difflib
import re
from typing import Any

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig

# width, depth, heads, mlp: ViT paper, Table 1; Ti and S from DeiT; the rest from the releases
# that followed (Zhai et al., Scaling Vision Transformers; Alabdulmohsin et al., SoViT).
SIZES: dict[str, tuple[int, int, int, int]] = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "So400m": (1152, 27, 16, 4304),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
# Units of a ResNet's stages by its depth (BiT; 26 from the hybrids of the AugReg release).
STAGES = {
    26: (2, 2, 2, 2),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
SHAPE = ("width", "depth", "heads", "mlp", "branches", "patch", "stem", "stages", "attention")

# What `vitlab models` lists; any other depth, number of branches and patch has a name as well.
MODELS = (
    "ViT-Ti/16",
    "ViT-S/32",
    "ViT-S/16",
    "ViT-B/32",
    "ViT-B/16",
    "ViT-L/32",
    "ViT-L/16",
    "ViT-H/14",
    "ViT-S36/16",
    "ViT-S18x2/16",
    "ViT-S48/16",
    "ViT-S24x2/16",
    "ViT-B13/16",
    "ViT-B36/16",
    "ViT-B18x2/16",
    "ViT-B12x3/16",
    "R26+ViT-S/32",
    "R50+ViT-B/32",
    "R50+ViT-B/16",
    "R50+ViT-L/32",
    "R50+ViT-L/16",
    "Axial-ViT-B/32",
    "Axial-ViT-B/16",
    "BiT-R50x1",
    "BiT-R50x2",
    "BiT-R101x1",
    "BiT-R152x1",
    "BiT-R152x2",
    "BiT-R200x3",
    "BiT-R152x4",
    "Axial-ResNet-50",
)

_VIT = re.compile(
    r"(?P<axial>Axial-)?(?:R(?P<resnet>\d*|\([\d-]+\))\+)?ViT"
    r"(?:-(?P<size>[A-Za-z]+(?:400m)?)(?P<depth>\d+)?(?:x(?P<branches>\d+))?"
    r"|\((?P<fields>[a-z]+=\d+(?:,[a-z]+=\d+)*)\))/(?P<patch>\d+)"
)
_BIT = re.compile(r"BiT-R(?P<units>\d+|\([\d-]+\))x(?P<widen>\d+)")
_AXIAL = re.compile(r"Axial-ResNet-(?P<units>\d+|\([\d-]+\))")


def config_of(name: str, **choices: Any) -> ModelConfig:
    """The configuration a name stands for, with any further field of it chosen.

    `ViT-B/16` is a size of the papers and its patch; `ViT-B13/16` has another depth and
    `ViT-S18x2/16` parallel branches (Three things, section 3). `R50+ViT-B/16` has a ResNet for a
    stem, `Axial-ViT-B/16` axial attention; `BiT-R50x1` and `Axial-ResNet-50` are ResNets. A shape
    without a size of its own spells its fields out: `ViT(width=96,depth=6,heads=3,mlp=384)/2`.

    Raises:
        ValueError: no such name or field, or values that cannot be.
    """
    shape = shape_of(name)
    kind = kind_of(name)
    if unknown := sorted(set(choices) - set(kind.__dataclass_fields__)):
        known = ", ".join(kind.__dataclass_fields__)
        raise UserError(f"unknown model field {unknown[0]!r} of {name}; there are {known}")
    return kind(**(shape | choices))


def kind_of(name: str) -> type[ModelConfig]:
    """Which configuration a name is for."""
    return ResNetConfig if _BIT.fullmatch(name) or _AXIAL.fullmatch(name) else ViTConfig


def shape_of(name: str) -> dict[str, Any]:
    """The fields of the configuration that a name states."""
    if match := _BIT.fullmatch(name):
        if stages := _stages(match["units"]):
            return {"stages": stages, "widen": int(match["widen"])}
    elif match := _AXIAL.fullmatch(name):
        if stages := _stages(match["units"]):
            return {"stages": stages, "attention": "axial"}
    elif (match := _VIT.fullmatch(name)) and (shape := _vit_shape(match)):
        return shape
    raise UserError(f"unknown model {name!r}: {_suggestion(name)}")


def _vit_shape(match: re.Match[str]) -> dict[str, Any] | None:
    """The fields in a ViT's name; None where a part of it is unknown."""
    shape: dict[str, Any] = {"patch": int(match["patch"])}
    if match["fields"]:
        shape |= {key: int(n) for key, n in re.findall(r"([a-z]+)=(\d+)", match["fields"])}
    elif size := SIZES.get(match["size"]):
        shape |= zip(("width", "depth", "heads", "mlp"), size, strict=True)
        shape |= {key: int(match[key]) for key in ("depth", "branches") if match[key]}
    else:
        return None
    if match["axial"]:  # no class token, positions by row and column (scenic's code)
        shape |= {"attention": "axial", "positions": "2d", "pool": "mean"}
    if match["resnet"] is not None:  # a bare R is the root alone
        stages = _hybrid(match["resnet"], shape["patch"]) if match["resnet"] else ()
        if stages is None:
            return None
        shape |= {"stem": "resnet", "stages": stages}
    known = set(ViTConfig.__dataclass_fields__)
    return shape if set(shape) <= known else None


def _stages(units: str) -> tuple[int, ...] | None:
    """Units of each stage from `50` or from `(3-4-6-3)`."""
    if units.startswith("("):
        return tuple(int(number) for number in units.strip("()").split("-") if number)
    return STAGES.get(int(units))


def _hybrid(units: str, patch: int) -> tuple[int, ...] | None:
    """Units of a hybrid's stages; at 1/16 the fourth stage's go into the third (4.1, option ii)."""
    stages = _stages(units)
    if stages and patch == 16 and not units.startswith("("):
        return (*stages[:2], stages[2] + stages[3])
    return stages


def _units(stages: tuple[int, ...], patch: int = 0) -> str:
    """What `_stages` or, with a patch, `_hybrid` turns back into these stages."""
    if not stages:
        return ""
    known = (str(depth) for depth in STAGES if _hybrid(str(depth), patch) == stages)
    return next(known, "(" + "-".join(map(str, stages)) + ")")


def name_of(config: ModelConfig) -> str:
    """The notation of a configuration's shape; `shape_of` turns it back into the same shape."""
    if isinstance(config, ResNetConfig):
        units = _units(config.stages)
        axial = config.attention == "axial"
        return f"Axial-ResNet-{units}" if axial else f"BiT-R{units}x{config.widen}"
    assert isinstance(config, ViTConfig)
    return f"{_front(config)}ViT{_middle(config)}/{config.patch}"


def _front(config: ViTConfig) -> str:
    axial = "Axial-" if config.attention == "axial" else ""
    resnet = f"R{_units(config.stages, config.patch)}+" if config.stem == "resnet" else ""
    return axial + resnet


def _middle(config: ViTConfig) -> str:
    for size, (width, depth, heads, mlp) in SIZES.items():
        if (config.width, config.heads, config.mlp) == (width, heads, mlp):
            branches = f"x{config.branches}" if config.branches > 1 else ""
            return f"-{size}{config.depth if branches or config.depth != depth else ''}{branches}"
    keys = ["width", "depth", "heads", "mlp"] + ["branches"] * (config.branches > 1)
    return "(" + ",".join(f"{key}={getattr(config, key)}" for key in keys) + ")"


def _suggestion(name: str) -> str:
    """The nearest name that exists, with the patch that was asked for if there was one."""
    patch = match[1] if (match := re.search(r"/(\d+)$", name)) else None
    known = {f"ViT-{size}/{patch}" for size in SIZES} if patch else set(MODELS)
    folded = {each.lower(): each for each in sorted(known | set(MODELS))}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"did you mean {folded[near[0]]}?" if near else "a name looks like ViT-B/16"
