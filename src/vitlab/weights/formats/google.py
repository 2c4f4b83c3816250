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
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from vitlab.errors import WeightsError
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.positions.sincos import sines
from vitlab.weights.formats.entries import computed, table
from vitlab.weights.formats.format_api import (
    Hints,
    Reading,
    TensorsOf,
    Writing,
    cannot,
    check_fields,
)
from vitlab.weights.formats.names import (
    FoundParts,
    entries,
    fields_shown,
    fitting,
    floored,
    found,
    placed,
)
from vitlab.weights.formats.records import limits
from vitlab.weights.sharded import Fields
from vitlab.weights.source import StoredTensors

VIT, BIT = "Google's ViT (.npz)", "Google's BiT (.npz)"
PREFIXES = ("", "params/", "opt/target/", "opt/target/params/", "params/img/", "img/")
# The values of fields that Google's code has; any other field may have any value.
REPRESENTED = limits("""
    branches 1, attention global, stem linear|resnet, resnet google, stem_norm none, stem_act none,
    stem_bias true, positions 1d, positions_at stem, pre_norm false, pool token|mean|attention,
    norm layer, norm_at tokens, norm_order before, norm_inner_attention false,
    norm_inner_mlp false, queries 1, pool_heads 0, pool_mlp 0, pool_prefix false, registers 0,
    layer_scale 0, qkv_bias true, bias true, qk_norm false, ffn mlp, gelu tanh, norm_eps 1e-6
""")


def sincos(config: ViTConfig) -> Tensor:
    """big_vision's fixed positions, sine and cosine of columns and of rows: (1, 1 + N, D)."""
    rows = sines(config.grid, config.width, whole=True)
    return pad(rows, (0, 0, int(config.has_token), 0))[None]


VIT_NAMES = table("""
    block                 Transformer/encoderblock_{n}
    token                 cls
    positions             Transformer/posembed_input/pos_embedding
                          | Transformer/pos_embedding
                          | pos_embedding
    patch.weight          kernel_of_flax(embedding/kernel)
    patch.bias            embedding/bias
    root_conv.weight      kernel_of_flax(conv_root/kernel)
    root_norm.weight      gn_root/scale
    root_norm.bias        gn_root/bias
    reduce_conv.weight    kernel_of_flax(block{s1}/unit{u1}/conv1/kernel)
    reduce_norm.weight    block{s1}/unit{u1}/gn1/scale
    reduce_norm.bias      block{s1}/unit{u1}/gn1/bias
    middle_conv.weight    kernel_of_flax(block{s1}/unit{u1}/conv2/kernel)
    middle_norm.weight    block{s1}/unit{u1}/gn2/scale
    middle_norm.bias      block{s1}/unit{u1}/gn2/bias
    expand_conv.weight    kernel_of_flax(block{s1}/unit{u1}/conv3/kernel)
    expand_norm.weight    block{s1}/unit{u1}/gn3/scale
    expand_norm.bias      block{s1}/unit{u1}/gn3/bias
    shortcut_conv.weight  kernel_of_flax(block{s1}/unit{u1}/conv_proj/kernel)
    shortcut_norm.weight  block{s1}/unit{u1}/gn_proj/scale
    shortcut_norm.bias    block{s1}/unit{u1}/gn_proj/bias
    norm1.weight          ./LayerNorm_0/scale
    norm1.bias            ./LayerNorm_0/bias
    qkv.weight            heads_apart(./MultiHeadDotProductAttention_1 query key value kernel)
                          | heads_apart(./MultiHeadDotProductAttention_0 query key value kernel)
    qkv.bias              heads_apart(./MultiHeadDotProductAttention_1 query key value bias)
                          | heads_apart(./MultiHeadDotProductAttention_0 query key value bias)
    project.weight        heads_inside(./MultiHeadDotProductAttention_1/out/kernel)
                          | heads_inside(./MultiHeadDotProductAttention_0/out/kernel)
    project.bias          ./MultiHeadDotProductAttention_1/out/bias
                          | ./MultiHeadDotProductAttention_0/out/bias
    norm2.weight          ./LayerNorm_2/scale | ./LayerNorm_1/scale
    norm2.bias            ./LayerNorm_2/bias | ./LayerNorm_1/bias
    expand.weight         transposed(./MlpBlock_3/Dense_0/kernel)
                          | transposed(./MlpBlock_0/Dense_0/kernel)
    expand.bias           ./MlpBlock_3/Dense_0/bias | ./MlpBlock_0/Dense_0/bias
    contract.weight       transposed(./MlpBlock_3/Dense_1/kernel)
                          | transposed(./MlpBlock_0/Dense_1/kernel)
    contract.bias         ./MlpBlock_3/Dense_1/bias | ./MlpBlock_0/Dense_1/bias
    norm.weight           Transformer/encoder_norm/scale
    norm.bias             Transformer/encoder_norm/bias
    queries               MAPHead_0/probe
    pool_q.weight         heads_apart(MAPHead_0/MultiHeadDotProductAttention_0 query kernel)
    pool_q.bias           heads_apart(MAPHead_0/MultiHeadDotProductAttention_0 query bias)
    pool_kv.weight        heads_apart(MAPHead_0/MultiHeadDotProductAttention_0 key value kernel)
    pool_kv.bias          heads_apart(MAPHead_0/MultiHeadDotProductAttention_0 key value bias)
    pool_project.weight   heads_inside(MAPHead_0/MultiHeadDotProductAttention_0/out/kernel)
    pool_project.bias     MAPHead_0/MultiHeadDotProductAttention_0/out/bias
    pool_norm.weight      MAPHead_0/LayerNorm_0/scale
    pool_norm.bias        MAPHead_0/LayerNorm_0/bias
    pool_expand.weight    transposed(MAPHead_0/MlpBlock_0/Dense_0/kernel)
    pool_expand.bias      MAPHead_0/MlpBlock_0/Dense_0/bias
    pool_contract.weight  transposed(MAPHead_0/MlpBlock_0/Dense_1/kernel)
    pool_contract.bias    MAPHead_0/MlpBlock_0/Dense_1/bias
    pre_logits.weight     transposed(pre_logits/kernel)
    pre_logits.bias       pre_logits/bias
    head.weight           transposed(head/kernel)
    head.bias             head/bias
""")
BIT_NAMES = table("""
    root_conv.weight  kernel_of_flax(root_block/standardized_conv2d/kernel)
    conv1.weight      kernel_of_flax(block{s1}/unit{u1:02}/a/standardized_conv2d/kernel)
    norm1.weight      block{s1}/unit{u1:02}/a/group_norm/gamma
    norm1.bias        block{s1}/unit{u1:02}/a/group_norm/beta
    conv2.weight      kernel_of_flax(block{s1}/unit{u1:02}/b/standardized_conv2d/kernel)
    norm2.weight      block{s1}/unit{u1:02}/b/group_norm/gamma
    norm2.bias        block{s1}/unit{u1:02}/b/group_norm/beta
    conv3.weight      kernel_of_flax(block{s1}/unit{u1:02}/c/standardized_conv2d/kernel)
    norm3.weight      block{s1}/unit{u1:02}/c/group_norm/gamma
    norm3.bias        block{s1}/unit{u1:02}/c/group_norm/beta
    shortcut.weight   kernel_of_flax(block{s1}/unit{u1:02}/a/proj/standardized_conv2d/kernel)
    norm.weight       group_norm/gamma
    norm.bias         group_norm/beta
    head.weight       pointwise_of_flax(head/conv2d/kernel)
    head.bias         head/conv2d/bias
""")


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
    """Recognize one of Google's files.

    Raises:
        WeightsError: its tensors have unsupported shapes.
    """
    if source.kind != "npz":
        return None
    prefix = next((p for p in PREFIXES if f"{p}embedding/kernel" in source.shapes), None)
    if prefix is not None:
        return _vision_transformer(source, hints, prefix, tensors_of)
    roots = [n for n in source.shapes if "root_block/" in n and n.endswith("/kernel")]
    if len(roots) == 1:
        prefix = roots[0].partition("root_block/")[0]
        return _big_transfer(source, hints, prefix, tensors_of)
    return None


def _vision_transformer(
    source: StoredTensors, hints: Hints, prefix: str, tensors_of: TensorsOf
) -> Reading:
    stored = {n.removeprefix(prefix): n for n in source.shapes if n.startswith(prefix)}
    parts = found(source.shapes, VIT_NAMES, stored, prefix)
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
    size, own_row = _positions(source, parts, fields["patch"], hints)
    config = ViTConfig(**(fields | {"image_size": size} | hints.choices))
    if "positions" not in parts:
        parts.names["positions"] = [computed(sincos)]
    elif config.has_token and not own_row:
        parts.names.update(placed(parts.names, False, False))
    left_out = parts.outside("not of the image model") or {"opt/state/.*": "not of the image model"}
    origins = dict.fromkeys(("heads", "image_size", "pool", "positions"), "tensors")
    table = parts.entries(config, tensors_of(config), VIT)
    return Reading(VIT, config, table, left_out, origins)


def _positions(
    source: StoredTensors, parts: FoundParts, patch: int, hints: Hints
) -> tuple[Any, bool]:
    """The image size in pixels, and whether the class token has a position of its own."""
    said = hints.choices.get("image_size") or hints.image_size
    shape = parts.shape("positions")
    if len(shape) != 3:
        return floored(said or 224, patch), False
    for own_row in ("token" in parts, False):
        for sizes in ([said or 224], None):  # what is said wins over a square
            if size := fitting(sizes, patch, shape[1] - own_row):
                return (size, size) if isinstance(size, int) else size, own_row
    raise WeightsError(
        f"{source.path}: {shape[1]} positions do not form a square: give their size in pixels, "
        "--image-size ROWS COLUMNS (in Python image_size=(rows, columns))"
    )


def _big_transfer(
    source: StoredTensors, hints: Hints, prefix: str, tensors_of: TensorsOf
) -> Reading:
    """A ResNet; some files number their layers: conv2d_17."""
    numbered = re.compile(r"(standardized_conv2d|group_norm|conv2d)_\d+/")
    stored = {numbered.sub(r"\1/", n.removeprefix(prefix)): n for n in source.shapes}
    parts = found(source.shapes, BIT_NAMES, stored)
    root = parts.tensors.get("root_block/standardized_conv2d/kernel", ())
    if len(root) != 4 or root[3] % 64 or not parts.stages:
        raise WeightsError(f"{source.path}: {BIT}: unsupported root kernel or units")
    fields: Fields = {
        "stages": parts.stages, "fit": "squash",
        "widen": root[3] // 64, "channels": root[2], "classes": parts.shape("head.bias")[0],
    }  # fmt: skip
    if hints.image_size:  # convolutions take any
        fields["image_size"] = hints.image_size
    config = ResNetConfig(**(fields | hints.choices))
    return Reading(BIT, config, parts.entries(config, tensors_of(config), BIT))


def writes(config: ModelConfig, provenance: Fields, tensors_of: TensorsOf) -> Writing:
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
    table = entries(stored, tensors_of(stored), names, label)
    return Writing(table, archive="model.npz", stored=stored)
