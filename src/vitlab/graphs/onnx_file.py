"""A model as an ONNX file: traced, given its class names and facts, and checked."""

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import WeightsError
from vitlab.files import staged_file, staged_folder
from vitlab.graphs.about import about
from vitlab.graphs.agreement import TOLERANCE, UNITS, check
from vitlab.graphs.certificate import LIMITS, CertifiedParts, blocks_of, certify
from vitlab.graphs.complete import NamedAnswers, Traceable, dynamic_shapes, traceable
from vitlab.graphs.narrowing import calibrated, halve, quantize
from vitlab.graphs.narrowing_cost import DrawnSample, batches, calibrating, narrowing_cost
from vitlab.graphs.reference_images import REFERENCE, make_normalized_images, raw_images
from vitlab.graphs.targets import MODEL, Precision
from vitlab.models.model import Model
from vitlab.progress import named_if_slow

OPSET = 20  # what PyTorch translates to; onnxruntime knows it since 1.17
TOLERANCES = {"fp32": TOLERANCE, "fp16": 0.01, "int8": 0.25}  # on images of noise
LARGEST = 2**31 - 2**20  # bytes of a file: the format's own limit, less what is not weights


def write(
    model: Model,
    file: Path,
    bare: bool = False,
    precision: Precision = "fp32",
    drawn: DrawnSample | None = None,
    *,
    batch: int = 0,
) -> dict[str, Any]:
    """Write an ONNX file, and check it; a folder has the file and what checks it elsewhere.

    Args:
        model: not fused
        file: new; a folder if it has no ending
        bare: normalized images to logits, without preprocessing
        precision: of the weights
        drawn: labeled images to measure on what that costs
        batch: images in every batch; 0 for any number

    Returns:
        `opset`, `precision`, and what `check` and `narrowing_cost` return.

    Raises:
        OptionError: preprocessing that cannot be part of a graph.
        WeightsError: the model cannot be exported, is too large for one file, or the file gives
            other numbers than the model; nothing is written.
        DiskError: the file cannot be written.
    """
    form = traceable(model, bare, batch=batch)
    proto, blocks = _graph(model, form, precision)
    before = proto.SerializeToString() if drawn else b""
    found: dict[str, Any] = {}
    if precision == "fp16":
        halve(proto.graph)
    elif drawn and precision == "int8":
        with named_if_slow("calibrating"):
            found["scales"] = calibrated(proto, calibrating(model, drawn))
        quantize(proto, found["scales"])
    with staged(file) as draft:
        draft.write_bytes(proto.SerializeToString())
        with named_if_slow("checking"):  # images that tell are better judges than noise
            found |= check(draft, model, form, math.inf if drawn else TOLERANCES[precision])
            if drawn:
                found |= narrowing_cost(before, draft, model, drawn)
        if not file.suffix:
            images = _reference(model, drawn, bare=bare, batch=batch)
            certify(draft, form, images, CertifiedParts(blocks, LIMITS[precision], UNITS))
    return {"opset": OPSET, "precision": precision} | found


@contextmanager
def staged(file: Path) -> Iterator[Path]:
    """Yield a draft of a file, or of the model in a folder."""
    if file.suffix:
        with staged_file(file) as draft:
            yield draft
    else:
        with staged_folder(file) as folder:
            yield folder / MODEL


def _graph(model: Model, form: Traceable, precision: Precision) -> tuple[Any, list[str]]:
    """Return a graph with names and facts, and what leaves its blocks."""
    weights = [*form.module.parameters(), *form.module.buffers()]
    if (size := sum(each.nbytes for each in weights)) > LARGEST:
        raise WeightsError(
            f"{model.config.name} has {size:,} bytes of weights, and an ONNX file holds at most "
            f"{LARGEST:,}: export it with --to torch"
        )
    with named_if_slow("exporting"):
        proto, blocks = traced(model, form)
    if "probabilities" in form.outputs:
        add_labels(proto, [*model.config.class_names])
    facts = about(model) | {"precision": precision}
    proto.metadata_props.add(key="vitlab", value=json.dumps(facts))
    return proto, blocks


def _reference(
    model: Model, drawn: DrawnSample | None, *, bare: bool, batch: int
) -> list[NDArray[Any]]:
    """Return batches to compare runtimes on: like photographs and noise, or one that was drawn."""
    count = batch or REFERENCE
    if drawn:
        _, images = next(batches(drawn.asked.source, drawn.numbers, model, drawn))
        return [np.resize(images, (count, *images.shape[1:]))]
    return [*(make_normalized_images if bare else raw_images)(model, (count,))]


def traced(model: Model, form: Traceable) -> tuple[Any, list[str]]:
    """Return the graph as the `onnx` package has it, and what leaves its blocks."""
    import torch

    names = form.outputs + form.inner
    with quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                NamedAnswers(form.module, names) if form.inner else form.module,
                (form.example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                dynamic_shapes=dynamic_shapes(form.free),
                input_names=[form.input],
                output_names=[*names],
            )
        except Exception as error:  # of many kinds
            raise unexported(model, error) from error
    assert program is not None  # with dynamo
    proto = program.model_proto
    blocks = blocks_of(proto)
    strip(proto)
    keep_padding(proto)
    del proto.graph.output[len(form.outputs) :]  # the others stay inside, by their names
    return proto, blocks


def unexported(model: Model, error: BaseException) -> WeightsError:
    """Return one line about what PyTorch's exporter said, in pages of text."""
    reason = str(error.__cause__ or error).strip().partition("\n")[0]
    return WeightsError(f"{model.config.name} cannot be exported: {reason}")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep away from the user what PyTorch's exporter says about itself in the block."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


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
