"""Agreement of an exported file with its model, as users run it: the model's own numbers."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.preprocess import preprocess
from vitlab.errors import WeightsError
from vitlab.evaluation.infer import probabilities
from vitlab.graphs.check import EXACT, difference, watching
from vitlab.graphs.complete import Traceable
from vitlab.graphs.reference_images import COUNTS, make_normalized_images, raw_images
from vitlab.models.layers import evaluating
from vitlab.models.model import Model
from vitlab.packages import silent_onnxruntime

TOLERANCE = 1e-4  # of a file in fp32, in shares of an image's largest answer
Answers = dict[str, NDArray[Any]]  # by their names, (B, …) each
Run = Callable[[NDArray[Any]], Mapping[str, NDArray[Any]]]  # images to a file's numbers
Own = Callable[[Tensor], Answers]  # normalized images to those of a module
SMALLEST = np.full((), 1e-30)  # answer that an image's largest is taken to be
UNITS = {  # least of what the answers of an image are compared in
    "distance": np.ones(()),  # where images begin to be unlike the training images
    **dict.fromkeys(("logits", "outputs", "scores"), np.full((), 0.1)),  # sums that may cancel
}
Units = Mapping[str, NDArray[Any]]


def agree(
    run: Run,
    model: Model,
    *,
    bare: bool,
    where: str,
    counts: Sequence[int] = COUNTS,
    tolerance: float = TOLERANCE,
    own: Own | None = None,
    units: Units = UNITS,
) -> dict[str, Any]:
    """Compare a file with the model it was made from, on images like photographs and on noise.

    Args:
        run: what runs the file
        model: on any device
        bare: whether the file takes normalized images
        where: it runs, for the message
        counts: numbers of images in the batches
        tolerance: of each answer, relative to the image's largest or to its unit, if that is larger
        own: what gives the numbers to compare with, if it is not the model itself
        units: of answers that have one of their own, as `check.difference` takes them

    Returns:
        `batches`, the numbers of images compared; `difference`, the largest.

    Raises:
        WeightsError: a difference is above the tolerance.
    """
    own = own or (lambda ready: wanted(model, ready, bare))
    images: Iterable[NDArray[Any]] = (make_normalized_images if bare else raw_images)(model, counts)
    worst, what = 0.0, ""
    for batch in images:
        ready = torch.from_numpy(batch) if bare else preprocess(model)([*batch])
        exact = own(ready)
        for name, found in run(batch).items():
            away = difference(name, found, exact[name], units.get(name, SMALLEST))
            if not away <= worst:  # NaN stays
                worst = away if worst == worst else worst
                what = name
    if not worst <= tolerance:
        raise WeightsError(
            f"the file would differ from {model.config.name} by {worst:.2g} of an image's largest "
            f"{what} in {where}, more than {tolerance:g}: nothing is written"
        )
    return {"batches": [*counts], "difference": worst}


def wanted(model: Model, images: Tensor, bare: bool) -> Answers:
    """Return what the model itself gives for normalized images."""
    device = next(model.parameters()).device
    classes = model.config.classes
    with evaluating(model), torch.inference_mode():
        seen, inner = model.judge(images.to(device))
        found = {"features": seen.double()}
        if classes:
            found["logits"] = model.scores(seen).double()
            if not bare:
                found["probabilities"] = probabilities(found["logits"], model)
                if model.unlike is not None and inner is not None:
                    found["distance"] = model.unlike.distances(inner.double())
        return {name: each.cpu().numpy() for name, each in found.items()}


def check(
    file: Path, model: Model, form: Traceable, tolerance: float = TOLERANCE, **how: Any
) -> dict[str, Any]:
    """Compare a file, at onnxruntime's default settings, with the model it was made from.

    Args:
        file: to run
        model: on any device
        form: that the file was traced from
        tolerance: of the comparison
        how: more arguments of `agree`

    Returns:
        `inputs` and `outputs`, the shape of each by its name, and what `agree` returns.

    Raises:
        WeightsError: onnxruntime refuses the file, its numbers differ, or its class names do.
    """
    content = file.read_bytes()
    session = opened(content)
    sides = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
    shapes = {side: {each.name: list(each.shape) for each in own} for side, own in sides.items()}
    batch = sides["inputs"][0].shape[0]
    how |= {"counts": COUNTS if isinstance(batch, str) else (batch,), "tolerance": tolerance}
    how |= {"bare": form.input == "images", "where": "onnxruntime"}
    _check_names(session, model, form)
    found = agree(runs(session, form.outputs), model, **how)
    if form.inner:
        within = opened(watching(content, form.inner))
        inner = agree(runs(within, form.inner), model, **how)
        found["difference"] = max(found["difference"], inner["difference"])
    return shapes | found


def _check_names(session: Any, model: Model, form: Traceable) -> None:
    """Compare the class names of a file with the model's, and each answer's name with its class."""
    facts = json.loads(session.get_modelmeta().custom_metadata_map.get("vitlab", "{}"))
    classes = [*model.config.class_names]
    if "label" not in [each.name for each in session.get_outputs()]:
        return
    batch = session.get_inputs()[0].shape[0]
    images = next(raw_images(model, COUNTS if isinstance(batch, str) else (batch,)))
    found = session.run(["labels", "label", "probabilities"], {form.input: images})
    named = [classes[number] for number in found[2].argmax(1)]
    if [*found[0]] != classes or [*found[1]] != named or facts.get("classes", classes) != classes:
        raise WeightsError(
            f"the file would name other classes than {model.config.name}: nothing is written"
        )


def runs(session: Any, names: Sequence[str] = ()) -> Run:
    """Return what computes, of a batch of images, outputs of a session by their names.

    Args:
        session: of onnxruntime
        names: of the outputs; none for all that are numbers
    """
    entry = session.get_inputs()[0].name
    numbers = [each.name for each in session.get_outputs() if each.type != "tensor(string)"]
    chosen = [*(names or numbers)]
    return lambda images: dict(zip(chosen, session.run(chosen, {entry: images}), strict=True))


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
