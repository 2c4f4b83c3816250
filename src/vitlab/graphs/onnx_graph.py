"""Changes to an ONNX graph after the exporter: what runtimes get wrong, and what nobody needs."""

from collections.abc import Iterator
from typing import Any


def strip(proto: Any) -> None:
    """Remove what the exporter keeps of the program: lines of code, and where they were found."""
    for graph in graphs_of(proto.graph):
        for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
            del part.metadata_props[:]
            part.doc_string = ""
    proto.doc_string = ""
    proto.producer_name = "vitlab"


def keep_padding(proto: Any) -> None:
    """Keep zeros that are padded before a maximum: BiT's root has them.

    At its default settings onnxruntime (`Pad_Fusion`, seen in 1.23 and 1.31) moves the zeros of a
    `Pad` into the padding of a `MaxPool` behind it. There padding counts as minus infinity, so that
    a window of negative numbers at the edge no longer has zero as its maximum. A maximum of the
    padded map with itself, which changes nothing, keeps the two apart.
    """
    graph = proto.graph
    padded = {node.output[0] for node in graph.node if node.op_type == "Pad"}
    for place, node in reversed([*enumerate(graph.node)]):
        if node.op_type == "MaxPool" and node.input[0] in padded:
            name = node.input[0]
            node.input[0] = f"{name}_kept"
            graph.node.insert(place, _node("Max", [name, name], [f"{name}_kept"]))


def add_labels(proto: Any, classes: list[str]) -> None:
    """Add to a graph its class names, `labels`, and that of the likeliest class, `label`."""
    from onnx import TensorProto, helper

    graph = proto.graph
    raw: Any = [name.encode() for name in classes]
    names = helper.make_tensor("class_names", TensorProto.STRING, [len(classes)], raw)
    graph.initializer.append(names)
    graph.node.extend(
        [
            _node("Identity", ["class_names"], ["labels"]),
            _node("ArgMax", ["probabilities"], ["likeliest"], axis=-1, keepdims=0),
            _node("Gather", ["class_names", "likeliest"], ["label"], axis=0),
        ]
    )
    graph.output.extend(
        [
            helper.make_tensor_value_info("labels", TensorProto.STRING, [len(classes)]),
            helper.make_tensor_value_info("label", TensorProto.STRING, ["batch"]),
        ]
    )


def graphs_of(graph: Any) -> Iterator[Any]:
    """Yield a graph, and those inside of its conditions."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)


def _node(kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    """Return an operation named after its result."""
    from onnx import helper

    return helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes)
