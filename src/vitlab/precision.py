"""The precision of what is computed: fp32 or bf16, decided once by what the machine does faster.

Nothing here imports PyTorch before it is asked, so that the command line answers at once.

`auto` is bf16 where the device has instructions of its own for it, as GPUs from compute capability
8.0 on and processors with AVX512-BF16 or AMX: training and inference then take half to three
quarters of the time of fp32 (docs/performance.md). Elsewhere bf16 is emulated and slower.
"""

import functools
from typing import TYPE_CHECKING, Literal, get_args

from vitlab.errors import OptionError

if TYPE_CHECKING:
    import torch

Engine = Literal["auto", "plain", "packed", "compiled", "onnxruntime", "openvino"]
Precision = Literal["auto", "fp32", "bf16"]
ServePrecision = Literal["auto", "fp32", "bf16", "int8"]
TrainingPrecision = Literal["auto", "fp32", "bf16", "bf16-pure"]


def check_precision(precision: str) -> None:
    """Refuse any but auto, fp32 and bf16.

    Raises:
        OptionError: it is another one.
    """
    if precision not in get_args(Precision):
        raise OptionError(f"precision must be auto, fp32 or bf16, not {precision!r}")


def fixed(precision: str) -> Literal["fp32", "bf16"]:
    """Return the precision of what does not choose one itself: auto is fp32."""
    return "bf16" if precision == "bf16" else "fp32"


def multiplies_bf16(device: "torch.device") -> bool:
    """Return whether a device has instructions that multiply bf16, and so faster than fp32."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and has_bf16()


@functools.cache
def has_bf16() -> bool:
    """Return whether the processor multiplies bf16 itself, and PyTorch's libraries may use it."""
    import torch

    usable = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    return bool(
        torch.backends.mkldnn.is_available()
        and usable()  # not where ONEDNN_MAX_CPU_ISA forbids it
        and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    )


def resolved(precision: TrainingPrecision, device: "torch.device") -> TrainingPrecision:
    """Return the precision of a training run: `auto` becomes fp32 or bf16, others stay."""
    if precision != "auto":
        return precision
    return "bf16" if multiplies_bf16(device) else "fp32"


def remark(precision: str, device: "torch.device") -> str:
    """Return what the user should know of bf16 where it is slow; empty where it is not."""
    if precision == "fp32" or multiplies_bf16(device):
        return ""
    return (
        f"{precision} is emulated on this {device.type}, which is slower than fp32: "
        "--precision auto chooses the faster"
    )
