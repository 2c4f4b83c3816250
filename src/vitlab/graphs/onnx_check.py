"""Check of an ONNX file in onnxruntime: the model's own numbers, as users run it."""

from pathlib import Path
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.graphs.agreement import COUNTS, TOLERANCE, Run, agree
from vitlab.graphs.check import EXACT
from vitlab.models.model import Model
from vitlab.packages import silent_onnxruntime


def check(file: Path, model: Model, bare: bool, tolerance: float = TOLERANCE) -> dict[str, Any]:
    """Compare a file, at onnxruntime's default settings, with the model it was made from.

    Args:
        file: to run
        model: on any device
        bare: whether the file takes normalized images
        tolerance: of the comparison

    Returns:
        `inputs` and `outputs`, the shape of each by its name, and what `agree` returns.

    Raises:
        WeightsError: onnxruntime refuses the file, or its numbers differ.
    """
    session = opened(file)
    batch = session.get_inputs()[0].shape[0]
    return shapes_of(session) | agree(
        runs(session),
        model,
        bare=bare,
        where="onnxruntime",
        counts=COUNTS if isinstance(batch, str) else (batch,),
        tolerance=tolerance,
    )


def shapes_of(session: Any) -> dict[str, dict[str, Any]]:
    """Return the `inputs` and `outputs` of a session: the shape of each by its name."""
    sides = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
    return {side: {each.name: list(each.shape) for each in own} for side, own in sides.items()}


def runs(session: Any) -> Run:
    """Return what computes, of a batch of images, the outputs of a session that are numbers."""
    entry = session.get_inputs()[0].name
    names = [each.name for each in session.get_outputs() if each.type != "tensor(string)"]
    return lambda images: session.run(names, {entry: images})


def opened(file: Path | bytes) -> Any:
    """Return a session of onnxruntime on the processor, with as many threads as PyTorch has.

    They do not spin while they wait, which slows down whatever else the machine computes. Products
    of a graph in int8 are exact: processors without VNNI would add in 16 bits, which may overflow.

    Raises:
        WeightsError: onnxruntime cannot run the file.
    """
    onnxruntime = silent_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry(EXACT, "1")
    try:
        return onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    except Exception as error:  # its own types, one for each of its codes
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"onnxruntime cannot run the file: {reason}") from error
