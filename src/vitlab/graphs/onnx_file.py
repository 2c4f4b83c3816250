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
from vitlab.graphs.agreement import TOLERANCE, noise, normal_noise
from vitlab.graphs.certificate import LIMITS, blocks_of, certify
from vitlab.graphs.complete import BATCH, Traceable, dynamic_shapes, traceable
from vitlab.graphs.narrowing import calibrated, halve, quantize
from vitlab.graphs.narrowing_cost import (
    DrawnSample,
    Sample,
    batches,
    calibrating,
    draw,
    narrowing_cost,
)
from vitlab.graphs.onnx_check import check
from vitlab.graphs.onnx_graph import add_labels, keep_padding, strip
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
    sample: Sample | None = None,
    *,
    batch: int = 0,
) -> dict[str, Any]:
    """Write an ONNX file, and check it; a folder has the file and what checks it elsewhere.

    Args:
        model: not fused
        file: new; a folder if it has no ending
        bare: normalized images to logits, without preprocessing
        precision: of the weights
        sample: labeled images to measure on what that costs
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
    drawn = draw(model, sample, bare=bare, batch=batch or 1) if sample else None
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
            found |= check(draft, model, bare, math.inf if drawn else TOLERANCES[precision])
            if drawn:
                found |= narrowing_cost(before, draft, model, drawn)
        if not file.suffix:
            images = _reference(model, drawn, bare=bare, batch=batch)
            certify(draft, form.input, images, [*form.outputs], blocks, LIMITS[precision])
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


def _reference(model: Model, drawn: DrawnSample | None, *, bare: bool, batch: int) -> NDArray[Any]:
    """Return images to compare runtimes on: those that were drawn first, or noise."""
    count = batch or BATCH
    if drawn:
        _, images = next(batches(drawn.asked.source, drawn.numbers, model, drawn))
        return np.resize(images, (count, *images.shape[1:]))
    return normal_noise(model, count) if bare else noise(model, count, 1)


def traced(model: Model, form: Traceable) -> tuple[Any, list[str]]:
    """Return the graph as the `onnx` package has it, and what leaves its blocks."""
    import torch

    with quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                form.module,
                (form.example,),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                dynamic_shapes=dynamic_shapes(form.free),
                input_names=[form.input],
                output_names=list(form.outputs),
            )
        except Exception as error:  # of many kinds
            raise unexported(model, error) from error
    assert program is not None  # with dynamo
    proto = program.model_proto
    blocks = blocks_of(proto)
    strip(proto)
    keep_padding(proto)
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
