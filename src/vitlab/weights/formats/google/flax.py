"""Flax's layers as ours: kernels are (inputs, outputs), or (rows, columns, inputs, outputs).

Kernels of attention are (width, heads, head width), those of its output (heads, head width, width).
"""

import torch
from torch import Tensor

from vitlab.weights.formats.entries import Entry, each, same


def norm(ours: str, theirs: str, names: tuple[str, str] = ("scale", "bias")) -> list[Entry]:
    """Map scale and bias of a norm."""
    parts = zip(("weight", "bias"), names, strict=True)
    return [same(f"{ours}.{part}", f"{theirs}/{name}") for part, name in parts]


def dense(ours: str, theirs: str) -> list[Entry]:
    """Map a dense layer."""
    kernel = each(f"{ours}.weight", f"{theirs}/kernel", lambda t: t.T, lambda t: t.T)
    return [kernel, same(f"{ours}.bias", f"{theirs}/bias")]


def conv(ours: str, theirs: str, bias: bool = False) -> list[Entry]:
    """Map a convolution."""

    def read(kernel: Tensor) -> Tensor:
        return kernel.permute(3, 2, 0, 1)

    def write(weight: Tensor) -> Tensor:
        return weight.permute(2, 3, 1, 0)

    table = [each(f"{ours}.weight", f"{theirs}/kernel", read, write)]
    return [*table, same(f"{ours}.bias", f"{theirs}/bias")] if bias else table


def qkv(ours: str, theirs: str, parts: tuple[str, ...], heads: int) -> list[Entry]:
    """Map kernels (D, h, d) and biases (h, d) of each part, stacked in one layer of ours."""

    def read(kernels: list[Tensor]) -> list[Tensor]:
        return [torch.cat([kernel.flatten(1).T for kernel in kernels])]

    def write(weights: list[Tensor]) -> list[Tensor]:
        return [part.T.unflatten(1, (heads, -1)) for part in weights[0].chunk(len(parts))]

    def read_bias(biases: list[Tensor]) -> list[Tensor]:
        return [torch.cat([bias.flatten() for bias in biases])]

    def write_bias(biases: list[Tensor]) -> list[Tensor]:
        return [part.unflatten(0, (heads, -1)) for part in biases[0].chunk(len(parts))]

    kernels = tuple(f"{theirs}/{part}/kernel" for part in parts)
    biases = tuple(f"{theirs}/{part}/bias" for part in parts)
    return [
        Entry((f"{ours}.weight",), kernels, read, write),
        Entry((f"{ours}.bias",), biases, read_bias, write_bias),
    ]


def out(ours: str, theirs: str, heads: int) -> list[Entry]:
    """Map the output projection of attention, (h, d, D)."""

    def read(kernel: Tensor) -> Tensor:
        return kernel.flatten(0, 1).T

    def write(weight: Tensor) -> Tensor:
        return weight.T.unflatten(0, (heads, -1))

    return [
        each(f"{ours}.weight", f"{theirs}/out/kernel", read, write),
        same(f"{ours}.bias", f"{theirs}/out/bias"),
    ]
