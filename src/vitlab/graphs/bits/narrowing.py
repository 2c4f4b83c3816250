"""The weights of an ONNX graph in fewer bits; what goes in and comes out stays as it is."""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.errors import OptionError
from vitlab.graphs.targets import Precision
from vitlab.packages import silent_onnxruntime

LEAST = 256  # elements of a tensor that is worth it
SHARE = 0.5  # of the weights that int8 must reach


def narrow(proto: Any, precision: Precision) -> Any:
    """Return a graph with narrower weights; the one given is changed.

    Args:
        proto: of a module whose attribute `model` is the model
        precision: fp16, or int8 with a scale for each output channel, and one for each batch of
            activations. Weights take 7 of the 8 bits, because processors without VNNI overflow

    Raises:
        OptionError: int8 for a model whose weights are in convolutions.
    """
    if precision == "fp16":
        _halve(proto.graph)
    elif precision == "int8":
        return _quantized(proto)
    return proto


def _halve(graph: Any) -> None:
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


def _quantized(proto: Any) -> Any:
    """Return the graph with its products by constant matrices in 8 bits."""
    import onnx

    silent_onnxruntime()
    from onnxruntime.quantization import QuantType, quantize_dynamic

    nodes = _products(proto.graph)
    del proto.graph.value_info[:]  # some of it is wrong after PyTorch's optimizer
    facts = {each.key: each.value for each in proto.metadata_props}
    proto.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")  # no warning
    with tempfile.TemporaryDirectory() as folder, _silent():
        file = Path(folder) / "int8.onnx"
        quantize_dynamic(
            proto,
            file,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=nodes,
        )
        made = onnx.load(file)
    del made.metadata_props[:]
    onnx.helper.set_model_props(made, facts)
    made.producer_name = proto.producer_name
    return made


def _products(graph: Any) -> list[str]:
    """Return the names of the products by constant matrices that the first output needs.

    Preprocessing has products too, of matrices that depend on the size of the image. Distances,
    another output, keep all their bits.

    Raises:
        OptionError: they hold less than half of the weights.
    """
    size = {each.name: prod(each.dims) for each in graph.initializer}
    needed, found, covered = {graph.output[0].name}, [], 0
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            if node.op_type == "MatMul" and node.input[1] in size:
                found.append(node.name)
                covered += size[node.input[1]]
    whole = sum(size.values())
    if covered < SHARE * whole:
        raise OptionError(
            f"int8 is for dense layers, which hold {covered / whole:.0%} of this "
            "model's weights: choose --precision fp16"
        )
    return found


@contextmanager
def _silent() -> Iterator[None]:
    """Keep onnxruntime, which logs to the root, from printing and from configuring logging."""
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
