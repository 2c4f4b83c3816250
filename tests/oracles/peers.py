"""Peers that import torchvision, made importable beside a CPU build of torch.

PyPI's torchvision is a CUDA build. Beside a CPU build of torch its library of operators does not
load, and its import fails where it describes an operator that nobody has declared. Declared, they
are enough for timm and transformers, which call none of them here.
"""

import functools
import importlib
from types import ModuleType

import torch

_SIZE = "float spatial_scale, SymInt pooled_height, SymInt pooled_width"
_SHAPE = "SymInt batch_size, SymInt channels, SymInt height, SymInt width"
_CONVOLUTION = (
    "Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, "
    "SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, "
    "SymInt groups, SymInt offset_groups, bool use_mask"
)
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    f"roi_align(Tensor input, Tensor rois, {_SIZE}, int sampling_ratio, bool aligned) -> Tensor",
    f"_roi_align_backward(Tensor grad, Tensor rois, {_SIZE}, {_SHAPE}, int sampling_ratio, "
    "bool aligned) -> Tensor",
    f"roi_pool(Tensor input, Tensor rois, {_SIZE}) -> (Tensor, Tensor)",
    f"_roi_pool_backward(Tensor grad, Tensor rois, Tensor argmax, {_SIZE}, {_SHAPE}) -> Tensor",
    f"ps_roi_align(Tensor input, Tensor rois, {_SIZE}, int sampling_ratio) -> (Tensor, Tensor)",
    f"_ps_roi_align_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_SIZE}, "
    f"int sampling_ratio, {_SHAPE}) -> Tensor",
    f"ps_roi_pool(Tensor input, Tensor rois, {_SIZE}) -> (Tensor, Tensor)",
    f"_ps_roi_pool_backward(Tensor grad, Tensor rois, Tensor channel_mapping, {_SIZE}, "
    f"{_SHAPE}) -> Tensor",
    f"deform_conv2d({_CONVOLUTION}) -> Tensor",
    f"_deform_conv2d_backward(Tensor grad, {_CONVOLUTION}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@functools.cache
def prepare_torchvision() -> torch.library.Library | None:
    """Make `import torchvision` work, if it is installed and does not by itself.

    Call it before anything else imports torchvision. What it returns holds the declarations, which
    last as long as it does; the cache keeps it.
    """
    try:
        importlib.import_module("torchvision")
    except ModuleNotFoundError:
        return None
    except RuntimeError as error:  # "operator torchvision::nms does not exist"
        if "operator torchvision::" not in str(error):
            raise
    else:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for schema in OPERATORS:
        library.define(schema)
    importlib.import_module("torchvision")
    return library


def timm() -> ModuleType:
    """The imported timm; where it is not installed the test is skipped."""
    return _peer("timm")


def transformers() -> ModuleType:
    """The imported transformers; where it is not installed the test is skipped."""
    return _peer("transformers")


def _peer(name: str) -> ModuleType:
    import pytest  # here, because the benchmarks prepare torchvision without it

    prepare_torchvision()
    module: ModuleType = pytest.importorskip(name)
    return module
