"""Masks, boxes and numbers as ONNX files: the answers of runs with heads, of normalized images."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.graphs.about import about
from vitlab.graphs.agreement import ONE, check, normal_noise
from vitlab.graphs.certificate import LIMITS, certify
from vitlab.graphs.complete import BATCH, Traceable
from vitlab.graphs.onnx_file import OPSET, staged, traced
from vitlab.graphs.targets import MODEL, check_target
from vitlab.weights.detector import Detector, load_detector
from vitlab.weights.regressor import Estimating, load_regressor
from vitlab.weights.segmenter import Segmenter, load_segmenter


def export_headed(run: str | Path, file: str | Path, kind: str) -> dict[str, Any]:
    """Write what a run answers with as an ONNX file, and compare it with PyTorch.

    It takes `images`, normalized float32 (batch, channels, H, W) of the model's input size. A
    segmenter gives `mask`, scores (batch, classes, H, W); a detector `probabilities` (batch,
    queries, classes) and `boxes` (batch, queries, 4): left, top, right, bottom in shares of the
    image's sides; a regressor `values` and, with a spread, `deviations` (batch, targets). The
    metadata has the key `vitlab`: JSON with classes, normalization and what else the head is. A
    folder has the file, and what checks it elsewhere.

    Args:
        run: its folder
        file: new
        kind: what the run answers with: masks, boxes or numbers

    Raises:
        OptionError: the file exists, or its name has another ending than .onnx.
        WeightsError: no such head is there, or the file gives other numbers; nothing is written.
        PackageError: a package is missing.
        DiskError: the file cannot be written.
    """
    path, unit = check_target("onnx", file), ONE
    names: tuple[str, ...] = ("mask",)
    module: Segmenter | Detector | Estimating
    if kind == "masks":
        module = load_segmenter(run)
    elif kind == "numbers":
        module = Estimating(load_regressor(run))
        names = ("values", "deviations")[: 1 + module.about.spread]
        unit = module.scale[1].numpy()  # columns have units of their own
    else:
        module, names = load_detector(run), ("probabilities", "boxes")
    model = module.model
    example = normal_noise(model, BATCH)
    form = Traceable(module, torch.from_numpy(example), {0: "batch"}, "images", names)
    proto, blocks = traced(model, form)
    facts = about(model) | asdict(module.about)
    proto.metadata_props.add(key="vitlab", value=json.dumps(facts))

    def own(images: Tensor) -> list[NDArray[Any]]:
        with torch.inference_mode():
            found = module(images)
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]

    with staged(path) as draft:
        draft.write_bytes(proto.SerializeToString())
        found = check(draft, model, bare=True, own=own, unit=unit)
        if not path.suffix:
            certify(draft, form, example, blocks, LIMITS["fp32"], unit)
    made, folder = (path, {}) if path.suffix else (path / MODEL, {"folder": str(path)})
    return {
        "model": model.config.name, "format": "onnx", "file": str(made), "opset": OPSET,
        "bytes": made.stat().st_size, **folder, **found,
    }  # fmt: skip
