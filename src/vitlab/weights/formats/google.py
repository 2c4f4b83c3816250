"""Google's `.npz` files, in and out: ViT, AugReg, hybrids, big_vision's ViTs, and BiT ResNets.

Sub-modules of a block are numbered through in the older files and by kind in the newer ones;
big_vision adds positions to patches only, and stores them elsewhere. GELU is the tanh
approximation, epsilon 1e-6, positions are resized bilinearly with aligned corners, images are in
[-1, 1] (REFERENCE: models_vit.py, checkpoint.py; big_vision's models/vit.py; big_transfer). A
ResNet's evaluation squashes images to the input's size, 480 after fine-tuning.

Flax's kernels are (inputs, outputs) or (rows, columns, inputs, outputs); those of attention
(width, heads, head width), of its output (heads, head width, width).
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.positions.sincos import sines
from vitlab.weights.formats.entries import (
    Names,
    Row,
    StoredAs,
    computed,
    each,
    transposed,
    without_first_row,
)
from vitlab.weights.formats.format_api import Hints, Reading, Writing, cannot, check_fields
from vitlab.weights.formats.names import (
    FoundParts,
    entries,
    fields_shown,
    first_name,
    fitting,
    found,
    located,
    patches_of,
)
from vitlab.weights.formats.origins import Origin
from vitlab.weights.source import Shape, Source

VIT, BIT = "Google's ViT (.npz)", "Google's BiT (.npz)"
PREFIXES = ("", "params/", "opt/target/", "opt/target/params/", "params/img/", "img/")
# The values of fields that Google's code has; any other field may have any value.
REPRESENTED: dict[str, tuple[Any, ...]] = {
    "branches": (1,), "attention": ("global",), "stem": ("linear", "resnet"),
    "resnet": ("google",), "stem_norm": ("none",), "stem_act": ("none",), "stem_bias": (True,),
    "positions": ("1d",), "positions_at": ("stem",), "pre_norm": (False,),
    "pool": ("token", "mean", "attention"), "norm": ("layer",), "norm_at": ("tokens",),
    "norm_order": ("before",), "norm_inner_attention": (False,), "norm_inner_mlp": (False,),
    "queries": (1,), "pool_heads": (0,), "pool_mlp": (0,), "pool_prefix": (False,),
    "registers": (0,), "layer_scale": (0.0,), "qkv_bias": (True,), "bias": (True,),
    "qk_norm": (False,), "ffn": ("mlp",), "gelu": ("tanh",), "norm_eps": (1e-6,),
}  # fmt: skip


def _norm(word: str, *names: str, parts: tuple[str, str] = ("scale", "bias")) -> Names:
    ends = zip(("weight", "bias"), parts, strict=True)
    return {f"{word}.{own}": [f"{name}{end}" for name in names] for own, end in ends}


def _dense(word: str, *names: str) -> Names:
    kernels: list[Row] = [transposed(f"{name}/kernel") for name in names]
    return {f"{word}.weight": kernels, f"{word}.bias": [f"{name}/bias" for name in names]}


def _conv(word: str, name: str, bias: bool = False) -> Names:
    kernel = each(
        f"{name}/kernel", lambda t: t.permute(3, 2, 0, 1), lambda t: t.permute(2, 3, 1, 0)
    )
    return {f"{word}.weight": kernel} | ({f"{word}.bias": f"{name}/bias"} if bias else {})


def _attention(word: str, parts: tuple[str, ...], *names: str) -> Names:
    """Kernels (D, h, d) and biases (h, d) of each part, stacked in one layer of ours."""

    def split(tensors: list[Tensor], config: Any) -> list[Tensor]:
        last = -1 if tensors[0].ndim == 1 else 1
        turned = (part.t() if last == 1 else part for part in tensors[0].chunk(len(parts)))
        return [part.unflatten(last, (config.heads, -1)) for part in turned]

    def stored(end: str, ours: Callable[[Tensor], Tensor]) -> list[Row]:
        theirs = [tuple(f"{name}/{part}/{end}" for part in parts) for name in names]
        return [StoredAs(own, lambda t, _: [torch.cat([*map(ours, t)])], split) for own in theirs]

    kernels = stored("kernel", lambda kernel: kernel.flatten(1).t())
    return {f"{word}.weight": kernels, f"{word}.bias": stored("bias", torch.flatten)}


def _out(word: str, *names: str) -> Names:
    """The output projection of attention, (h, d, D)."""
    kernels: list[Row] = [
        StoredAs(
            (f"{name}/out/kernel",),
            lambda t, _: [t[0].flatten(0, 1).t()],
            lambda t, config: [t[0].t().unflatten(0, (config.heads, -1))],  # type: ignore[union-attr]
        )
        for name in names
    ]
    return {f"{word}.weight": kernels, f"{word}.bias": [f"{name}/out/bias" for name in names]}


def sincos(config: ViTConfig) -> Tensor:
    """big_vision's fixed positions, sine and cosine of columns and of rows: (1, 1 + N, D)."""
    table = sines(config.grid, config.width, whole=True)
    return pad(table, (0, 0, int(config.has_token), 0))[None]


_OLD, _NEW = "/MultiHeadDotProductAttention_1", "/MultiHeadDotProductAttention_0"
_HEADS, _MLPS = (f".{_OLD}", f".{_NEW}"), ("./MlpBlock_3", "./MlpBlock_0")
_QKV = ("query", "key", "value")
_UNIT = "block{s1}/unit{u1}"
VIT_NAMES: Names = {
    "block": "Transformer/encoderblock_{n}", "token": "cls",
    "positions": ["Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding",
                  "pos_embedding"],
    **_conv("patch", "embedding", bias=True), **_conv("root_conv", "conv_root"),
    **_norm("root_norm", "gn_root/"),
    **{key: row for part, end in (("reduce", "1"), ("middle", "2"), ("expand", "3"),
                                  ("shortcut", "_proj"))
       for key, row in {**_conv(f"{part}_conv", f"{_UNIT}/conv{end}"),
                        **_norm(f"{part}_norm", f"{_UNIT}/gn{end}/")}.items()},
    **_norm("norm1", "./LayerNorm_0/"), **_attention("qkv", _QKV, *_HEADS),
    **_out("project", *_HEADS), **_norm("norm2", "./LayerNorm_2/", "./LayerNorm_1/"),
    **_dense("expand", *(f"{name}/Dense_0" for name in _MLPS)),
    **_dense("contract", *(f"{name}/Dense_1" for name in _MLPS)),
    **_norm("norm", "Transformer/encoder_norm/"), "queries": "MAPHead_0/probe",
    **_attention("pool_q", ("query",), f"MAPHead_0{_NEW}"),
    **_attention("pool_kv", ("key", "value"), f"MAPHead_0{_NEW}"),
    **_out("pool_project", f"MAPHead_0{_NEW}"), **_norm("pool_norm", "MAPHead_0/LayerNorm_0/"),
    **_dense("pool_expand", "MAPHead_0/MlpBlock_0/Dense_0"),
    **_dense("pool_contract", "MAPHead_0/MlpBlock_0/Dense_1"),
    **_dense("pre_logits", "pre_logits"), **_dense("head", "head"),
}  # fmt: skip
_UNIT = "block{s1}/unit{u1:02}"
_GROUPED = ("gamma", "beta")
BIT_NAMES: Names = {
    **_conv("root_conv", "root_block/standardized_conv2d"),
    **{key: row for number, letter in enumerate("abc", start=1)
       for key, row in {**_conv(f"conv{number}", f"{_UNIT}/{letter}/standardized_conv2d"),
                        **_norm(f"norm{number}", f"{_UNIT}/{letter}/group_norm/",
                                parts=_GROUPED)}.items()},
    **_conv("shortcut", f"{_UNIT}/a/proj/standardized_conv2d"),
    **_norm("norm", "group_norm/", parts=_GROUPED),
    "head.weight": each("head/conv2d/kernel", lambda t: t[0, 0].t(), lambda t: t.t()[None, None]),
    "head.bias": "head/conv2d/bias",
}  # fmt: skip


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize one of Google's files.

    Raises:
        WeightsError: its tensors have unsupported shapes.
    """
    if source.kind != "npz":
        return None
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in source.shapes), None)
    if prefix is not None:
        return _vision_transformer(source, hints, prefix)
    roots = [n for n in source.shapes if "root_block/" in n and n.endswith("/kernel")]
    if len(roots) == 1:
        return _big_transfer(source, hints, roots[0].partition("root_block/")[0])
    return None


def _vision_transformer(source: Source, hints: Hints, prefix: str) -> Reading:
    stored = _stored(source, prefix)
    parts = found({name: source.shape(old) for name, old in stored.items()}, VIT_NAMES)
    query = parts.theirs.get("qkv.weight", ((),))[0]
    if len(query) != 3 or "expand.weight" not in parts:
        raise WeightsError(
            f"{source.path}: {VIT}: no attention kernels of shape (width, heads, head width), or "
            "no MLP kernels in the blocks"
        )
    fields = fields_shown(source.path, parts, VIT)
    pool = "attention" if "queries" in parts else "token" if fields["class_token"] else "mean"
    fields |= {"heads": query[1], "layer_scale": 0.0, "pool": pool, "gelu": "tanh", "fit": "squash"}
    if fields["class_token"] == (pool == "token"):
        fields["class_token"] = None
    rows, own_row = _positions(source, parts, fields["patch"], hints)
    config = ViTConfig(**(fields | {"image_size": rows} | hints.choices))
    names = dict(parts.names)
    if "positions" not in parts:
        names["positions"] = computed(sincos)
    elif config.has_token and not own_row:
        names["positions"] = without_first_row(first_name(names, "positions"))
    table = located(entries(config, names, VIT), stored, prefix)
    others = f"(?!{re.escape(prefix)}).*" if prefix else "opt/state/.*"
    origins = dict.fromkeys(("heads", "image_size", "pool", "positions"), Origin.TENSORS)
    return Reading(VIT, config, table, {others: "not of the image model"}, origins)


def _stored(source: Source, prefix: str) -> dict[str, str]:
    """Stored names by usual ones: models made by a scan have all their blocks in one array."""
    stored = {}
    for name, shape in source.shapes.items():
        short, within = name.removeprefix(prefix), "Transformer/encoderblock/"
        if not name.startswith(prefix):
            continue
        if short.startswith(within) and shape:
            for number in range(min(shape[0], 1000)):
                stored[short.replace("block/", f"block_{number}/", 1)] = f"{name}[{number}]"
        else:
            stored[short] = name
    return stored


def _positions(source: Source, parts: FoundParts, patch: int, hints: Hints) -> tuple[Any, bool]:
    """The image size in pixels, and whether the class token has a position of its own."""
    said = hints.choices.get("image_size") or hints.image_size
    table = parts.shape("positions")
    if len(table) != 3:
        rows, columns = patches_of(said or 224, patch)
        return (rows * patch, columns * patch), False
    for own_row in ("token" in parts, False):
        for sizes in ([said or 224], None):  # what is said wins over a square
            if size := fitting(sizes, patch, table[1] - own_row):
                return (size, size) if isinstance(size, int) else size, own_row
    raise WeightsError(
        f"{source.path}: {table[1]} positions do not form a square: give their size in pixels, "
        "--image-size ROWS COLUMNS (in Python image_size=(rows, columns))"
    )


def _big_transfer(source: Source, hints: Hints, prefix: str) -> Reading:
    """A ResNet; some files number their layers: conv2d_17."""
    numbered = re.compile(r"(standardized_conv2d|group_norm|conv2d)_\d+/")
    stored = {numbered.sub(r"\1/", n.removeprefix(prefix)): n for n in source.shapes}
    shapes: dict[str, Shape] = {name: source.shapes[old] for name, old in stored.items()}
    root = shapes.get("root_block/standardized_conv2d/kernel", ())
    parts = found(shapes, BIT_NAMES) if len(root) == 4 else None
    if parts is None or root[3] % 64 or not parts.stages:
        raise WeightsError(f"{source.path}: {BIT}: unsupported root kernel or units")
    fields: dict[str, Any] = {
        "stages": parts.stages, "fit": "squash",
        "widen": root[3] // 64, "channels": root[2], "classes": parts.shape("head.bias")[0],
    }  # fmt: skip
    if hints.image_size:  # convolutions take any
        fields["image_size"] = hints.image_size
    config = ResNetConfig(**(fields | hints.choices))
    return Reading(BIT, config, located(entries(config, BIT_NAMES, BIT), stored, prefix))


def writes(config: ModelConfig, provenance: Mapping[str, Any]) -> Writing:
    """Represent a model as Google's code reads it.

    Raises:
        WeightsError: Google's files cannot represent it.
    """
    if isinstance(config, ViTConfig):
        check_fields("google", config, REPRESENTED)
    elif not isinstance(config, ResNetConfig) or config.attention == "axial":
        raise cannot("google", config.name)
    stored = config.settled
    names, label = (VIT_NAMES, VIT) if isinstance(config, ViTConfig) else (BIT_NAMES, BIT)
    return Writing(entries(stored, names, label), archive="model.npz", stored=stored)
