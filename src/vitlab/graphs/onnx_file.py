"""A model as an ONNX file: traced, given its class names and facts, and checked."""

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitlab.errors import WeightsError
from vitlab.files import staged_file
from vitlab.graphs.about import about, class_names
from vitlab.graphs.agreement import TOLERANCE
from vitlab.graphs.bits.narrowing import narrow
from vitlab.graphs.bits.narrowing_cost import Sample, narrowing_cost
from vitlab.graphs.complete import Traceable, dynamic_shapes, traceable
from vitlab.graphs.inside.any_size import fixed
from vitlab.graphs.onnx_check import check
from vitlab.graphs.onnx_graph import add_labels, keep_padding, strip
from vitlab.graphs.targets import Precision
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
) -> dict[str, Any]:
    """Write an ONNX file, and check it.

    Args:
        model: not fused
        file: new
        bare: normalized images to logits, without preprocessing
        precision: of the weights
        sample: labeled images to measure on what that costs

    Returns:
        `opset`, `precision`, what `check` and `narrowing_cost` return, and if a bare file takes
        images of one size only, `fixed`: the field of the configuration that is the reason.

    Raises:
        OptionError: preprocessing that cannot be part of a graph.
        WeightsError: the model cannot be exported, is too large for one file, or the file gives
            other numbers than the model; nothing is written.
        DiskError: the file cannot be written.
    """
    form = traceable(model, bare, any_size=True)
    weights = [*form.module.parameters(), *form.module.buffers()]
    if (size := sum(each.nbytes for each in weights)) > LARGEST:
        raise WeightsError(
            f"{model.config.name} has {size:,} bytes of weights, and an ONNX file holds at most "
            f"{LARGEST:,}: export it with --to torch"
        )
    with named_if_slow("exporting"):
        proto = _traced(model, form)
    strip(proto)
    keep_padding(proto)
    if model.config.classes and not bare:
        add_labels(proto, class_names(model))
    facts = about(model) | {"precision": precision}
    proto.metadata_props.add(key="vitlab", value=json.dumps(facts))
    before = proto.SerializeToString() if sample else b""
    proto = narrow(proto, precision)
    with staged_file(file) as draft:
        draft.write_bytes(proto.SerializeToString())
        with named_if_slow("checking"):  # images that tell are better judges than noise
            found = check(draft, model, bare, math.inf if sample else TOLERANCES[precision])
            if sample:
                found |= narrowing_cost(before, draft, model, sample, bare=bare)
    limit = {"fixed": reason} if bare and (reason := fixed(model)) else {}
    return {"opset": OPSET, "precision": precision} | found | limit


def _traced(model: Model, form: Traceable) -> Any:
    """Return the graph as the `onnx` package has it."""
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
    return program.model_proto


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
