"""The configuration of a model by the shapes of its tensors, whatever the family calls them."""

import math
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import Size
from vitlab.models.config import map_stride
from vitlab.weights.formats.names import FoundParts


def fields_shown(path: object, parts: FoundParts, label: str) -> dict[str, Any]:
    """Return the fields of `ViTConfig` that tensors show, but for positions, pool and heads.

    Args:
        path: for messages
        parts: of the model, as they were found
        label: the format, for messages

    Raises:
        WeightsError: blocks or a stem of unsupported shapes.
    """
    blocks, contract = parts.counted("n", ("contract.weight",)), parts.shape("contract.weight")
    if blocks != set(range(len(blocks))) or len(contract) != 2:
        raise WeightsError(f"{path}: {label}: unsupported encoder blocks")
    width, mlp = contract
    if parts.shape("qkv.weight")[0] not in (0, 3 * width):
        raise WeightsError(
            f"{path}: unsupported attention, whose heads together are not as wide as a token"
        )
    after = "tokens" if "norm.weight" in parts else "none"
    return {
        "width": width,
        "depth": len(blocks),
        "mlp": mlp,
        "branches": max(1, len(parts.counted("b"))),
        "ffn": "swiglu" if parts.gated else "mlp",
        "bias": "project.bias" in parts,
        "qkv_bias": "qkv.bias" in parts,
        "qk_norm": "q_norm.weight" in parts,
        "norm": "rms" if "norm1.weight" in parts and "norm1.bias" not in parts else "layer",
        "norm_inner_attention": "attn_norm.weight" in parts,
        "norm_inner_mlp": "mlp_norm.weight" in parts,
        "layer_scale": 1e-5 if "scale1" in parts else 0,
        "pre_norm": "pre_norm.weight" in parts,
        "norm_at": "pooled" if "pooled_norm.weight" in parts else after,
        "classes": parts.shape("head.weight")[0],
        "pre_logits": parts.shape("pre_logits.weight")[0],
        "registers": (*parts.shape("registers"), 0)[1],
        "class_token": "token" in parts,
        "class_blocks": len(parts.counted("n", ("class_q.weight",))),
        "talking_heads": "before.weight" in parts,
        "neck": parts.shape("neck_reduce.weight")[0],
        **_stem(path, parts, label),
    }


def _stem(path: object, parts: FoundParts, label: str) -> dict[str, Any]:
    """Patch, channels and kind of stem."""
    if "stem.weight" in parts:
        layers = parts.counted("k", ("stem.weight",))
        if parts.shape("stem.weight")[2:] != (4, 4):
            raise WeightsError(f"{path}: {label}: unsupported layers in the stem")
        # Behind each convolution are a norm and GELU, or GELU alone.
        norms = ("batch" if "stem.running_mean" in parts else "layer") if 1 in layers else "none"
        steps = sum(number % (2 if norms == "none" else 3) == 0 for number in layers)
        return {
            "stem": "hmlp", "patch": 4 * 2 ** (steps - 1), "stem_norm": norms,
            "channels": parts.shape("stem.weight")[1],
        }  # fmt: skip
    kernel = parts.shape("patch.weight")
    if len(kernel) != 4:
        raise WeightsError(f"{path}: {label}: the patches' kernel has shape {kernel}")
    side, channels = kernel[2], kernel[1]
    if "root_conv.weight" not in parts:
        # none only before a norm, as CLIP has it; else a file without it is damaged
        bias = "patch.bias" in parts or "pre_norm.weight" not in parts
        normed = "layer" if "patch_norm.weight" in parts else "none"
        return {"patch": side, "channels": channels, "stem_bias": bias, "stem_norm": normed}
    return {
        "stem": "resnet", "stages": parts.stages, "patch": side * map_stride(parts.stages),
        "channels": parts.shape("root_conv.weight")[1],
    }  # fmt: skip


def patches_of(size: Size, patch: int) -> tuple[int, int]:
    """Return rows and columns of patches; the pixels that remain are never used."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows // patch, columns // patch


def fitting(sizes: list[Size] | None, patch: int, count: int) -> Size | None:
    """Return the first of some sizes that has `count` patches; for None, the square that has."""
    if sizes is None:
        side = math.isqrt(max(count, 0))
        return side * patch if side and side**2 == count else None
    for size in sizes:
        rows, columns = patches_of(size, patch)
        if rows * columns == count:
            return rows * patch, columns * patch
    return None


def overlap(size: Size, patch: int, count: int) -> int:
    """Return the pixels from patch to patch if that many of them overlap in an image, else 0."""
    rows, columns = (size, size) if isinstance(size, int) else size
    steps = range(patch // 2, patch)
    return next(
        (n for n in steps if ((rows - patch) // n + 1) * ((columns - patch) // n + 1) == count), 0
    )
