"""Agreement of an exported file with its model, as users run it: the model's own numbers."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.preprocess import preprocess
from vitlab.errors import WeightsError
from vitlab.evaluation.infer import probabilities
from vitlab.graphs.check import EXACT, difference
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.packages import silent_onnxruntime

COUNTS = (1, 2, 7)  # of images in a batch
TOLERANCE = 1e-4  # of a file in fp32
Pixels = NDArray[np.uint8]
Run = Callable[[NDArray[Any]], Sequence[NDArray[Any]]]  # images to a file's numbers
Own = Callable[[Tensor], Sequence[NDArray[Any]]]  # normalized images to those of a module
ONE = np.ones(())


def agree(
    run: Run,
    model: Model,
    *,
    bare: bool,
    where: str,
    counts: Sequence[int] = COUNTS,
    tolerance: float = TOLERANCE,
    own: Own | None = None,
    unit: NDArray[Any] = ONE,
) -> dict[str, Any]:
    """Compare a file with the model it was made from, on images of noise.

    Args:
        run: what runs the file
        model: on any device
        bare: whether the file takes normalized images
        where: it runs, for the message
        counts: numbers of images in the batches
        tolerance: of probabilities; of logits, features and distances, relative to the largest
        own: what gives the numbers to compare with, if it is not the model itself
        unit: of differences, as `check.difference` has it

    Returns:
        `batches`, the numbers of images compared; `difference`, the largest.

    Raises:
        WeightsError: a difference is above the tolerance.
    """
    own = own or (lambda ready: wanted(model, ready, bare))
    worst = 0.0
    for number, count in enumerate(counts):
        images: NDArray[Any]
        if bare:
            images = normal_noise(model, count)
            ready = torch.from_numpy(images)
        else:
            images = noise(model, count, number)
            ready = preprocess(model)([*images])
        for found, exact in zip(run(images), own(ready), strict=True):
            worst = float(np.maximum(worst, difference(found, exact, unit)))  # NaN stays
    if not worst <= tolerance:
        raise WeightsError(
            f"the file would differ from {model.config.name} by {worst:.2g} in {where}, more "
            f"than {tolerance:g}: nothing is written"
        )
    return {"batches": [*counts], "difference": worst}


def noise(model: Model, count: int, number: int) -> Pixels:
    """Return images that are not those of the trace, of another size each time: uint8 (B, …)."""
    rows, columns = model.config.size
    draw = np.random.default_rng(number)
    high, wide = ((rows, columns), (rows + 5, 2 * columns), (3 * rows, columns))[number]
    return draw.integers(0, 256, (count, high, wide, model.config.channels), dtype=np.uint8)


def normal_noise(model: Model, count: int) -> NDArray[np.float32]:
    """Return normalized images, (B, channels, H, W)."""
    shape = (count, model.config.channels, *model.config.size)
    return np.random.default_rng(count).standard_normal(shape, np.float32)


def wanted(model: Model, images: Tensor, logits: bool) -> list[NDArray[np.float64]]:
    """Return what the model itself gives for normalized images."""
    device, classes = next(model.parameters()).device, model.config.classes
    with evaluating(model), torch.inference_mode():
        seen, inner = model.judged(images.to(device))
        found = [(model.scores(seen) if classes else seen).double()]
        if classes and not logits:
            found = [probabilities(found[0], model)]
            if model.unlike is not None and inner is not None:
                found.append(model.unlike.distances(inner.double()))
        return [each.cpu().numpy() for each in found]


def check(
    file: Path, model: Model, bare: bool, tolerance: float = TOLERANCE, **how: Any
) -> dict[str, Any]:
    """Compare a file, at onnxruntime's default settings, with the model it was made from.

    Args:
        file: to run
        model: on any device
        bare: whether the file takes normalized images
        tolerance: of the comparison
        how: more arguments of `agree`

    Returns:
        `inputs` and `outputs`, the shape of each by its name, and what `agree` returns.

    Raises:
        WeightsError: onnxruntime refuses the file, or its numbers differ.
    """
    session = opened(file)
    sides = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
    shapes = {side: {each.name: list(each.shape) for each in own} for side, own in sides.items()}
    batch = sides["inputs"][0].shape[0]
    how |= {"counts": COUNTS if isinstance(batch, str) else (batch,), "tolerance": tolerance}
    return shapes | agree(runs(session), model, bare=bare, where="onnxruntime", **how)


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
