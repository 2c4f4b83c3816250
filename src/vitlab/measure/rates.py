"""Peak rate of a device, measured: operations per second of matrix products."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vitlab import device as devices
from vitlab.measure.timing import Pass, time_passes, waiter
from vitlab.models.fast.packed_form import can_pack

SIDE = {"cpu": 1536, "cuda": 8192, "mps": 4096}  # of the square matrices
REPEATS = {"cpu": 5, "cuda": 20, "mps": 20}
TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Rates:
    """What a device can do at best.

    Attributes:
        device: in words
        products: operations per second of a large matrix product, two for each multiply-add, by
            precision: fp32, bf16, and on a GPU tf32 (fp32 is then without it)
        tf32: whether fp32 products of this process use TF32
    """

    device: str
    products: dict[str, float]
    tf32: bool

    def of(self, precision: str) -> float:
        """Return the matrix-product rate for a precision: fp32, bf16 or bf16-pure."""
        if precision == "fp32":
            return self.products["tf32" if self.tf32 else "fp32"]
        return self.products["bf16"]

    def as_dict(self) -> dict[str, Any]:
        """Return the rates as JSON."""
        return {"products": self.products, "tf32": self.tf32}


def device_rates(device: str = "auto") -> Rates:
    """Measure a device: medians of several products, in one or two seconds.

    On a CPU a product is taken plain and with its second factor laid out beforehand, as for
    weights that stay, and the faster one counts.

    Args:
        device: auto, cpu, cuda, cuda:N or mps

    Raises:
        DeviceError: a device that this machine does not have.
    """
    where = devices.choose(device)
    kinds = ("fp32", "tf32", "bf16") if where.type == "cuda" else ("fp32", "bf16")
    return Rates(
        devices.described(where),
        {kind: _product_rate(where, kind) for kind in kinds},
        where.type == "cuda" and torch.get_float32_matmul_precision() != "highest",
    )


@torch.inference_mode()
def _product_rate(where: torch.device, kind: str) -> float:
    side, dtype = SIDE[where.type], TYPES[kind]
    a, b = (torch.randn(side, side, device=where, dtype=dtype) for _ in range(2))
    works: list[Pass] = [lambda: F.linear(a, b)]
    if where.type == "cpu" and can_pack(dtype):
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(b, side)
        works.append(lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], ""))
    how = {"seconds": 0.0, "least": REPEATS[where.type]}  # two passes to warm up, and these
    with _products_in(kind, where):
        times = [time_passes(work, waiter(where), **how).median for work in works]  # type: ignore[arg-type]
        return 2 * side**3 / min(times)


@contextmanager
def _products_in(kind: str, where: torch.device) -> Iterator[None]:
    """Within the context, a GPU's fp32 products use TF32 or do not."""
    before = torch.get_float32_matmul_precision()
    try:
        if where.type == "cuda":
            torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
        yield
    finally:
        torch.set_float32_matmul_precision(before)
