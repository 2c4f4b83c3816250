"""Masks, boxes and numbers as ONNX files: the answers of runs with heads, of normalized images."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.errors import WeightsError
from vitlab.graphs.about import about
from vitlab.graphs.agreement import COUNTS, TOLERANCE, normal_noise
from vitlab.graphs.certificate import LIMITS, certify
from vitlab.graphs.check import difference
from vitlab.graphs.complete import BATCH, Traceable
from vitlab.graphs.onnx_check import opened, runs, shapes_of
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
    path, worst, unit = check_target("onnx", file), 0.0, np.ones(())
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
    example = torch.from_numpy(normal_noise(model, BATCH))
    proto, blocks = traced(model, Traceable(module, example, {0: "batch"}, "images", names))
    facts = about(model) | asdict(module.about)
    proto.metadata_props.add(key="vitlab", value=json.dumps(facts))
    with staged(path) as draft:
        draft.write_bytes(proto.SerializeToString())
        session = opened(draft)
        for count in COUNTS:
            images = normal_noise(model, count)
            with torch.inference_mode():
                own = module(torch.from_numpy(images))
            every = own if isinstance(own, tuple) else (own,)
            for found, exact in zip(runs(session)(images), every, strict=True):
                gap = difference(found, exact.numpy(), unit)
                worst = float(np.maximum(worst, gap))  # NaN stays
        if not worst <= TOLERANCE:
            raise WeightsError(f"onnxruntime gives other numbers than {run}: off by {worst}")
        if not path.suffix:
            certify(draft, "images", example.numpy(), [*names], blocks, LIMITS["fp32"], unit)
    made, folder = (path, {}) if path.suffix else (path / MODEL, {"folder": str(path)})
    return {
        "model": model.config.name, "format": "onnx", "file": str(made), "opset": OPSET,
        "bytes": made.stat().st_size, "batches": list(COUNTS), "difference": worst, **folder,
        **shapes_of(session),
    }  # fmt: skip
