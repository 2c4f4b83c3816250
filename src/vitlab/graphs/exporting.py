"""`vitlab.export`: a model as a file or page that runs without this package."""

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlab.data.sources.request import Given
from vitlab.errors import OptionError
from vitlab.files import SEEN
from vitlab.graphs.int8_form import keep_scales
from vitlab.graphs.narrowing_cost import check_calibration, draw
from vitlab.graphs.targets import IMAGES, MODEL, TARGETS, Precision, check_precision, check_target
from vitlab.models.model import Model
from vitlab.public_calls import public
from vitlab.weights.assembly import whole_state
from vitlab.weights.seen_file import write_seen
from vitlab.weights.state import unwrapped


@public(model=nn.Module, file=(str, Path))
def export(
    model: nn.Module,
    file: str | Path,
    to: str = "onnx",
    *,
    bare: bool = False,
    precision: Precision = "fp32",
    data: Given | None = None,
    images: int = IMAGES,
    batch: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write a model as a file that runs without ViTLab, checked against the model.

    An ONNX file takes raw images, `image`: uint8 (batch, rows, columns, channels), any number of
    them and of any size, and gives `probabilities` (batch, classes), `labels` (classes) and `label`
    (batch), the name of the likeliest; or the `features` of a model without a classifier. Its
    metadata has the key `vitlab`: JSON with classes, normalization, recipe, license and source.
    What the model has learned from lies beside a file, in `NAME.seen.npy`; a page has its number.

    A `file` without an ending is a folder: `model.onnx`, `reference.npz`, and `check.py`, which
    compares a runtime with the reference and needs none of our code: `python check.py openvino`.

    int8 changes the prediction of at most 2% of the images, or is refused; so is one whose scales
    would be of fewer than 50 images, of one class, or of images of one color. Its scales are kept
    beside the weights, in `int8.json`, for `vitlab serve --precision int8`.

    Args:
        model: any that is not fused; also in a wrapper of `torch.compile` or
            `DistributedDataParallel`
        file: new; the folder for web
        to: onnx; torch, a package for PyTorch alone, which takes and gives the same without
            `labels` and `label`; or web, a page that a browser opens from a disk or a server
        bare: leave preprocessing and probabilities out: `images`, normalized float32 (batch,
            channels, H, W), to `logits` or `features`
        precision: of the weights in an ONNX file: fp32, fp16 or int8
        data: labeled images, as `vitlab.evaluate` takes them, to measure on what fp16 or int8
            costs; int8 takes its scales from others of them
        images: at most so many of them, drawn at random
        batch: of an ONNX file: images in every batch; 0: any number
        quiet: print nothing but warnings

    Returns:
        `model`, `format`, `file` or `folder`, `bytes`, and what was compared: `batches`,
        `difference`. With `data`, `images_per_second`, `images_per_second_before` and
        `bytes_before`; of 50 images or more `accuracy` and `accuracy_before`, `agreement` (the
        share of images whose prediction is the same) and `largest_change` (of a probability).

    Raises:
        OptionError: another target or ending, preprocessing that cannot be part of a graph, or a
            precision that the target or the model does not have.
        DataError: no such data, or too little for int8.
        WeightsError: a fused model, one that cannot be exported, or one whose file would give
            other numbers; nothing is written.
        PackageError: a package is missing.
        DiskError: the file exists, or cannot be written.
    """
    path, inner = check_target(to, file), unwrapped(model)
    check_precision(to, precision, data is not None, bool(batch))
    if batch and precision == "int8":  # ONNX Runtime 1.31 fails at them
        raise OptionError("int8 files take any number of images: leave batch out, or choose fp16")
    whole_state(inner)
    whole, inner = inner, on_processor(inner)
    how: dict[str, Any] = {"precision": precision, "batch": batch}
    if data is not None:
        scales = precision == "int8"
        drawn = draw(inner, data, images, bare=bare, batch=batch or 1, scales=scales)
        how["drawn"] = drawn
        if scales:
            check_calibration(inner, drawn)
    found = TARGETS[to].write(inner, path, bare, **(how if TARGETS[to].narrow else {}))
    if precision == "fp16" and data is None:
        logging.getLogger("vitlab").warning(
            "what fp16 costs in accuracy is unmeasured: --data (data=…) measures it"
        )
    if "scales" in found:
        keep_scales(whole, found)
    written: dict[str, Any] = {"model": inner.config.name, "format": to}
    file, name = path, f"{path.stem}.{SEEN}"
    if path.is_dir():
        written["folder"] = str(path)
        file, name = path / MODEL, SEEN
    if file.is_file():  # else it is a page
        write_seen(inner.seen, file.parent, name)
        written |= {"file": str(file), "bytes": file.stat().st_size}
    return written | found


def on_processor(model: Model) -> Model:
    """Return a model in float32 on the processor, itself if it is."""
    weights = [*model.parameters()]
    if all(each.dtype == torch.float32 and each.device.type == "cpu" for each in weights):
        return model
    return copy.deepcopy(model).cpu().float()
