"""The papers' notation for a model, `ViT-S18x2/16`: its tables, how it is read and written.

A name states the shape of a model; everything else is a field of its configuration, which reads
and writes its name here.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

from vitlab.errors import OptionError

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
# Sizes as timm, torchvision and the Hub spell them.
ELSEWHERE = {
    "tiny": "Ti", "small": "S", "medium": "M", "base": "B", "large": "L", "huge": "H",
    "giant": "g", "gigantic": "G", "b": "B", "l": "L", "h": "H", "s": "S",
}  # fmt: skip

# What `vitlab models` lists; other depths, numbers of branches and patches have names as well.
# With parameters, and multiply-adds of one image, at 224 pixels with 1,000 classes: building all of
# them takes seconds, and a test compares these with `cost`.
MODELS = {
    "ViT-Ti/16": (5_717_416, 1_254_628_800),
    "ViT-S/32": (22_878_952, 1_143_389_952),
    "ViT-S/16": (22_050_664, 4_600_773_504),
    "ViT-B/32": (88_224_232, 4_410_146_304),
    "ViT-B/16": (86_567_656, 17_567_610_624),
    "ViT-L/32": (306_535_400, 15_380_047_872),
    "ViT-L/16": (304_326_632, 61_564_597_248),
    "ViT-H/14": (632_045_800, 167_316_491_520),
    "ViT-S36/16": (64_637_800, 13_685_795_712),
    "ViT-S18x2/16": (64_637_800, 13_685_795_712),
    "ViT-S48/16": (85_931_368, 18_228_306_816),
    "ViT-S24x2/16": (85_931_368, 18_228_306_816),
    "ViT-B13/16": (93_655_528, 19_021_867_776),
    "ViT-B36/16": (256_676_584, 52_469_782_272),
    "ViT-B18x2/16": (256_676_584, 52_469_782_272),
    "ViT-B12x3/16": (256_676_584, 52_469_782_272),
    "R26+ViT-S/32": (36_431_912, 3_464_331_008),
    "R50+ViT-B/32": (110_945_832, 8_458_747_392),
    "R50+ViT-B/16": (98_659_112, 21_539_141_376),
    "R50+ViT-L/32": (328_994_856, 19_415_803_904),
    "R50+ViT-L/16": (316_483_624, 65_548_973_056),
    "Axial-ViT-B/32": (173_244_904, 8_454_458_112),
    "Axial-ViT-B/16": (171_480_808, 33_519_289_344),
    "BiT-R50x1": (25_549_352, 4_089_184_256),
    "BiT-R50x2": (97_988_712, 16_116_613_120),
    "BiT-R101x1": (44_541_480, 7_801_405_440),
    "BiT-R152x1": (60_185_128, 11_513_626_624),
    "BiT-R152x2": (236_335_208, 45_814_382_592),
    "BiT-R200x3": (568_633_000, 134_346_964_992),
    "BiT-R152x4": (936_533_224, 182_777_282_560),
    "Axial-ResNet-50": (19_373_640, 4_052_605_952),
}

VIT_NAME = re.compile(
    r"(?P<axial>Axial-)?(?:R(?P<resnet>\d*|\([\d-]+\))(?:x1)?\+)?ViT"
    r"(?:-(?P<size>[A-Za-z]+(?:400m)?)(?P<depth>\d+)?(?:x(?P<branches>\d+))?"
    r"|\((?P<fields>[a-z]+=\d+(?:,[a-z]+=\d+)*)\))/(?P<patch>\d+)"
)
# The ViT paper's Table 6 has R50x1 (ResNet50x1 in one version) and R50x1+ViT-B/32.
RESNET_NAME = re.compile(
    r"(?:BiT-R|ResNet-?|R)(?P<units>\d+|\([\d-]+\))x(?P<widen>\d+)"
    r"|Axial-ResNet-(?P<axial>\d+|\([\d-]+\))"
)
TOKENIZER_NAME = re.compile(
    r"(?P<form>dVAE|DALL-E)(?:\((?P<fields>[a-z_]+=\d+(?:,[a-z_]+=\d+)*)\))?/(?P<stride>\d+)"
)
# By the name of the form, what it states: DALLE-pytorch's usual values, and those of OpenAI's code.
TOKENIZERS: dict[str, dict[str, Any]] = {
    "dVAE": {"form": "dvae", "codes": 8192, "code_width": 512, "width": 64, "depth": 1},
    "DALL-E": {"form": "dalle", "codes": 8192, "code_width": 128, "width": 256, "depth": 2},
}


def shape_of(name: str) -> dict[str, Any]:
    """Return the configuration fields that a name states.

    `ViT-B/16` is a size of the papers and its patch; `ViT-B13/16` has another depth and
    `ViT-S18x2/16` parallel branches (Three things, section 3). `R50+ViT-B/16` has a ResNet for a
    stem, `Axial-ViT-B/16` axial attention, `Axial-R50+ViT-B/16` both; `BiT-R50x1` and
    `Axial-ResNet-50` are ResNets. A shape without a size of its own lists its fields:
    `ViT(width=96,depth=6,heads=3,mlp=384)/2`.

    `dVAE/8` and `DALL-E/8` are image tokenizers with the pixels per side of a code; fields that
    differ from the usual ones are listed: `dVAE(codes=1024,width=128)/8`.

    Raises:
        OptionError: an unknown name; the message suggests the nearest known one.
    """
    if not isinstance(name, str):
        raise OptionError(f"a model name must be text such as 'ViT-B/16', not {name!r}")
    readers = (
        (RESNET_NAME, _resnet_shape),
        (TOKENIZER_NAME, _tokenizer_shape),
        (VIT_NAME, _vit_shape),
    )
    for pattern, read in readers:
        if (match := pattern.fullmatch(name)) and (shape := read(match)):
            return shape
    raise OptionError(f"unknown model {name!r}: {_suggestion(name)}")


def _vit_shape(match: re.Match[str]) -> dict[str, Any] | None:
    """Return the fields in a ViT's name, or None where a part of it is unknown."""
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
    return shape


def _resnet_shape(match: re.Match[str]) -> dict[str, Any] | None:
    """Return the fields in a ResNet's name, or None where its depth is unknown."""
    stages = _stages(match["units"] or match["axial"])
    other = {"attention": "axial"} if match["axial"] else {"widen": int(match["widen"])}
    return {"stages": stages, **other} if stages else None


def _tokenizer_shape(match: re.Match[str]) -> dict[str, Any]:
    """Return the fields in a tokenizer's name."""
    listed = re.findall(r"([a-z_]+)=(\d+)", match["fields"] or "")
    return {
        **TOKENIZERS[match["form"]],
        **{key: int(number) for key, number in listed},
        "stride": int(match["stride"]),
    }


def tokenizer_name(form: str, stride: int, fields: Mapping[str, Any]) -> str:
    """Write a tokenizer's shape, with those of its fields that are not the usual ones."""
    front = next(name for name, usual in TOKENIZERS.items() if usual["form"] == form)
    other = [f"{key}={fields[key]}" for key, n in TOKENIZERS[front].items() if fields[key] != n]
    return f"{front}({','.join(other)})/{stride}" if other else f"{front}/{stride}"


def _stages(units: str) -> tuple[int, ...] | None:
    """Return the units of each stage from `50` or from `(3-4-6-3)`."""
    if units.startswith("("):
        return tuple(int(number) for number in units.strip("()").split("-") if number)
    return STAGES.get(int(units))


def _hybrid(units: str, patch: int) -> tuple[int, ...] | None:
    """Return a hybrid's stages; at 1/16 the fourth's units go into the third (4.1, option ii)."""
    stages = _stages(units)
    if stages and patch == 16 and not units.startswith("("):
        return (*stages[:2], stages[2] + stages[3])
    return stages


def _units(stages: tuple[int, ...], patch: int = 0) -> str:
    """Write stages as `_stages` or, with a patch, `_hybrid` reads them."""
    if not stages:
        return ""
    known = (str(depth) for depth in STAGES if _hybrid(str(depth), patch) == stages)
    return next(known, "(" + "-".join(map(str, stages)) + ")")


def vit_name(
    width: int, depth: int, heads: int, mlp: int, branches: int, patch: int,
    *, axial: bool, hybrid: tuple[int, ...] | None,
) -> str:  # fmt: skip
    """Write a ViT's shape; `hybrid` has the stages of a ResNet stem, None for another stem."""
    front = "Axial-" if axial else ""
    front += f"R{_units(hybrid, patch)}+" if hybrid is not None else ""
    shape = f"(width={width},depth={depth},heads={heads},mlp={mlp}"
    middle = shape + (f",branches={branches})" if branches > 1 else ")")
    for size, (usual_width, usual_depth, usual_heads, usual_mlp) in SIZES.items():
        if (width, heads, mlp) == (usual_width, usual_heads, usual_mlp):
            parallel = f"x{branches}" if branches > 1 else ""
            middle = f"-{size}{depth if parallel or depth != usual_depth else ''}{parallel}"
    return f"{front}ViT{middle}/{patch}"


def resnet_name(stages: tuple[int, ...], widen: int, *, axial: bool) -> str:
    """Write a ResNet's shape."""
    units = _units(stages)
    return f"Axial-ResNet-{units}" if axial else f"BiT-R{units}x{widen}"


def _elsewhere(name: str) -> str:
    """Return the papers' name for a name of timm or torchvision, or of the Hub; empty if unknown.

    `vit_base_patch16_224`, `vit_small_patch16_18x2_224`, `vit_b_16`, `google/vit-base-patch16-224`.
    """
    word = name.lower().rpartition("/")[2].replace("-", "_").partition(".")[0]
    match = re.match(
        r"(?:vit|deit3?)_([a-z]+)(?:_distilled)?_(?:patch)?(\d+)(?:_(\d+)x(\d+))?", word
    )
    if match is None:
        return ""
    size = ELSEWHERE.get(match[1], "")
    layers = f"{match[3]}x{match[4]}" if match[3] and match[4] != "1" else match[3] or ""
    return f"ViT-{size}{layers}/{match[2]}" if size else ""


def _suggestion(name: str) -> str:
    """Suggest the nearest known name, with the same patch if there was one."""
    if ours := _elsewhere(name):
        return f"its shape is {ours} here; vitlab.load and --from take weights by other names"
    patch = match[1] if (match := re.search(r"/(\d+)$", name)) else None
    known = {f"ViT-{size}/{patch}" for size in SIZES} if patch else set(MODELS)
    folded = {each.lower(): each for each in sorted(known | set(MODELS))}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    return f"did you mean {folded[near[0]]}?" if near else "a model name looks like ViT-B/16"
