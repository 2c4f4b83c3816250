"""The least bytes that a model moves, and how fast a device could be at best (the roofline).

Source: Williams et al., Roofline: an insightful visual performance model, 2009.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vitlab.measure.rates import Rates
from vitlab.models.config import ModelConfig
from vitlab.models.cost import cost
from vitlab.models.create import build
from vitlab.models.fuse import fuse

PRODUCTS = {
    F.linear, F.conv1d, F.conv2d, F.conv_transpose2d, F.scaled_dot_product_attention, F.bilinear,
    torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum,
    Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.__matmul__, Tensor.__rmatmul__,
}  # fmt: skip
BACKWARD = 3  # passes of a training step over weights and activations: one forward, two backward
UPDATE = (
    28  # bytes per parameter of AdamW in fp32: weight, gradient, two moments read; three written
)


class Moved(TorchFunctionMode):
    """Within its context, counts the elements that products read and write.

    Attributes:
        elements: of the factors and results of every dense layer, convolution, matrix product and
            attention, each once
    """

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function and count what it reads and writes."""
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            leaves = tree_leaves((args, kwargs, result))
            self.elements += sum(each.numel() for each in leaves if isinstance(each, Tensor))
        return result


@dataclass(frozen=True)
class Work:
    """What a model must compute and move for a batch, of its fused form.

    Attributes:
        macs: multiply-adds per image
        params: number of parameters
        weights: elements that products move whatever the batch
        activations: elements that they move per image
    """

    macs: int
    params: int
    weights: int
    activations: int

    def operations(self, batch: int, training: bool = False) -> int:
        """Return the operations of a pass: two per multiply-add, six with the backward pass."""
        return (6 if training else 2) * self.macs * batch

    def bytes(self, batch: int, precision: str, training: bool = False) -> int:
        """Return the least bytes that a pass moves.

        Every product reads its factors and writes its result once; all else costs nothing, as if
        it were done on the way. A training step does so three times, and AdamW moves 28 bytes per
        parameter.
        """
        size = 4 if precision == "fp32" else 2
        moved = size * (self.weights + batch * self.activations)
        return BACKWARD * moved + UPDATE * self.params if training else moved


def work_of(config: ModelConfig) -> Work:
    """Count a model's operations and the elements it moves, by shapes alone."""
    with torch.device("meta"):
        model = build(config)
    model = fuse(model)
    found = []
    for batch in (1, 2):
        images = torch.empty(batch, config.channels, *config.size, device="meta")
        with torch.inference_mode(), Moved() as moved:
            model(images)
        found.append(moved.elements)
    each, price = found[1] - found[0], cost(config)
    return Work(price.macs, price.params, found[0] - each, each)


@dataclass(frozen=True)
class Shares:
    """How close a measurement is to what the device can do.

    Attributes:
        of_products: share of the matrix-product rate (model FLOPs utilization, MFU)
        of_roofline: share of the lower of that rate and of intensity times bandwidth; above 1
            where a cache serves what is counted as memory
        intensity: operations per byte moved
        bound: which of the two is the lower one: products or memory
    """

    of_products: float
    of_roofline: float
    intensity: float
    bound: str


def shares(
    work: Work, device: Rates, precision: str, batch: int, seconds: float, training: bool = False
) -> Shares:
    """Return how close a pass of so many seconds is to what its device can do."""
    operations, limit = work.operations(batch, training), device.of(precision)
    intensity = operations / work.bytes(batch, precision, training)
    roof = min(limit, intensity * device.bandwidth)
    reached = operations / seconds
    bound = "products" if roof == limit else "memory"
    return Shares(reached / limit, reached / roof, intensity, bound)
