"""Quantization of an ONNX graph's weights: fp16, or int8 with scales that images have given."""

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import DataError, OptionError
from vitlab.graphs.agreement import opened
from vitlab.graphs.check import watching

LEAST = 256  # elements of a tensor that is worth it
SHARE = 0.5  # of the weights that int8 must reach
EXACT = 0.2  # of the products, those with the largest error, stay in floating point
ROWS = 16  # tokens of an image that errors are measured on
Floats = NDArray[np.float32]
Scales = list[tuple[float, int] | None]
"""Scale and zero point of what enters each product, in the graph's order; None: not in int8."""


def halve(graph: Any) -> None:
    """Store large tensors in half precision, but those beyond its range."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or prod(tensor.dims) < LEAST:
            continue
        with np.errstate(over="ignore"):
            half = numpy_helper.to_array(tensor).astype(np.float16)
        if np.isfinite(half).all():
            name, stored = tensor.name, f"{tensor.name}.fp16"
            tensor.CopyFrom(numpy_helper.from_array(half, stored))
            casts.append(helper.make_node("Cast", [stored], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def calibrated(proto: Any, images: Iterable[NDArray[Any]]) -> Scales:
    """Return the scales of a graph's products by constant matrices.

    What enters a product is stored in 8 bits from the smallest to the largest number seen: the
    tokens that reach far are few, and a model falls apart without them. A fifth of the products,
    those whose result changes most, stay in floating point.

    Args:
        proto: the graph
        images: for its input, each by itself

    Raises:
        OptionError: the products hold less than half of the weights.
        DataError: there is no image.
    """
    from onnx import numpy_helper

    graph = proto.graph
    products, weights = products_of(graph), {each.name: each for each in graph.initializer}
    names = [node.input[0] for node in products]
    session = opened(watching(proto.SerializeToString(), [*dict.fromkeys(names)]))
    low, high = np.zeros(len(names)), np.zeros(len(names))
    rows: list[list[Floats]] = [[] for _ in names]
    for image in images:
        found = session.run(names, {graph.input[0].name: image})
        low = np.minimum(low, [each.min() for each in found])
        high = np.maximum(high, [each.max() for each in found])
        for kept, each in zip(rows, found, strict=True):
            tokens = each.reshape(-1, each.shape[-1])
            kept.append(tokens[:: max(1, len(tokens) // ROWS)].copy())
    if not all(rows):
        raise DataError("no image to take scales from can be decoded: --data needs more images")
    steps = np.maximum((high - low) / 255, 1e-12)
    ranges = [(float(step), round(-each / step)) for each, step in zip(low, steps, strict=True)]
    errors = [
        _error(np.concatenate(kept), numpy_helper.to_array(weights[node.input[1]]), own)
        for kept, node, own in zip(rows, products, ranges, strict=True)
    ]
    exact = np.argsort(errors)[::-1][: round(EXACT * len(errors))]
    return [None if number in exact else own for number, own in enumerate(ranges)]


def _error(rows: Floats, weight: Floats, own: tuple[float, int]) -> float:
    """Return how far a product in 8 bits is from the exact one, relative to that."""
    step, zero = own
    stored = (np.clip(np.rint(rows / step) + zero, 0, 255) - zero) * step
    codes, scales = _codes(weight)
    exact = rows @ weight
    return float(np.linalg.norm(stored @ (codes * scales) - exact) / np.linalg.norm(exact))


def _codes(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Return a matrix in 8 bits, and the scale of each column, an output channel."""
    scales = np.maximum(np.abs(weight).max(0), 1e-12) / 127
    return np.rint(weight / scales).astype(np.int8), scales.astype(np.float32)


def quantize(proto: Any, scales: Scales) -> None:
    """Store products in 8 bits, with scales of `calibrated`, and other large tensors in fp16.

    An image's answer does not depend on the others in its batch, since no scale does. Runtimes
    compute what stands between `DequantizeLinear` and `QuantizeLinear` in integers.
    """
    from onnx import helper, numpy_helper

    graph = proto.graph
    weights = {each.name: each for each in graph.initializer}
    products = zip(products_of(graph), scales, strict=True)
    chosen = {node.output[0]: own for node, own in products if own is not None}
    nodes, stored = [*graph.node], dict[str, NDArray[Any]]()
    for name in {node.input[1] for node in nodes if node.output[0] in chosen}:
        stored[f"{name}.int8"], stored[f"{name}.scale"] = _codes(
            numpy_helper.to_array(weights[name])
        )
        graph.initializer.remove(weights[name])
    del graph.node[:], graph.value_info[:]  # some of it is wrong after PyTorch's optimizer
    for node in nodes:
        if node.output[0] in chosen:
            (entry, name), out = node.input, node.output[0]
            step, zero = chosen[out]
            stored[f"{out}.step"], stored[f"{out}.zero"] = np.float32(step), np.uint8(zero)  # type: ignore[assignment]
            own = [f"{out}.step", f"{out}.zero"]
            graph.node.extend(
                [
                    helper.make_node("QuantizeLinear", [entry, *own], [f"{out}.codes"]),
                    helper.make_node("DequantizeLinear", [f"{out}.codes", *own], [f"{out}.in"]),
                    helper.make_node(
                        "DequantizeLinear",
                        [f"{name}.int8", f"{name}.scale"],
                        [f"{out}.weight"],
                        axis=1,
                    ),
                ]
            )
            del node.input[:]
            node.input.extend([f"{out}.in", f"{out}.weight"])
        graph.node.append(node)
    halve(graph)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items())


def products_of(graph: Any) -> list[Any]:
    """Return the products by constant matrices that the first output needs, in their order.

    Preprocessing has products too, of matrices that depend on the size of the image. Distances,
    another output, keep all their bits.

    Raises:
        OptionError: they hold less than half of the weights.
    """
    size = {each.name: prod(each.dims) for each in graph.initializer}
    needed, found = {graph.output[0].name}, []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            if node.op_type == "MatMul" and node.input[1] in size:
                found.append(node)
    covered, whole = sum(size[node.input[1]] for node in found), sum(size.values())
    if covered < SHARE * whole:
        raise OptionError(
            f"int8 is for dense layers, which hold {covered / whole:.0%} of this "
            "model's weights: choose --precision fp16"
        )
    return found[::-1]
