"""Whether an ONNX file gives a model's own numbers in onnxruntime, as users run it."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from vitlab.errors import WeightsError
from vitlab.graphs.agreement import TOLERANCE, agree
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
    entry, answer = session.get_inputs()[0], session.get_outputs()[0].name

    def run(images: NDArray[Any]) -> NDArray[Any]:
        return session.run([answer], {entry.name: images})[0]

    return {
        "inputs": {entry.name: list(entry.shape)},
        "outputs": {each.name: list(each.shape) for each in session.get_outputs()},
    } | agree(
        run,
        model,
        bare=bare,
        where="onnxruntime",
        any_size=isinstance(entry.shape[2], str),
        tolerance=tolerance,
    )


def opened(file: Path | bytes) -> Any:
    """Return a session of onnxruntime on the processor, with default settings but its chatter.

    Raises:
        WeightsError: onnxruntime cannot run the file.
    """
    onnxruntime = silent_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        return onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    except Exception as error:  # its own types, one for each of its codes
        reason = str(error).strip().partition("\n")[0]
        raise WeightsError(f"onnxruntime cannot run the file: {reason}") from error
