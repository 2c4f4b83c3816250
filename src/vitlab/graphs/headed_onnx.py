"""Segmenters as ONNX files: normalized images to `mask`, class scores of every pixel."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitlab.errors import WeightsError
from vitlab.files import staged_file
from vitlab.graphs.about import about
from vitlab.graphs.agreement import COUNTS, TOLERANCE, normal_noise
from vitlab.graphs.complete import BATCH, Traceable
from vitlab.graphs.onnx_check import opened, runs
from vitlab.graphs.onnx_file import OPSET, traced
from vitlab.graphs.onnx_graph import strip
from vitlab.graphs.targets import check_target
from vitlab.weights.segmenter import load_segmenter


def export_segmenter(run: str | Path, file: str | Path) -> dict[str, Any]:
    """Write a run's segmenter as an ONNX file, and compare it with PyTorch in onnxruntime.

    It takes `images`, normalized float32 (batch, channels, H, W) of the model's input size, and
    gives `mask`, scores (batch, classes, H, W). Its metadata has the key `vitlab`: JSON with the
    classes, their numbers in masks, layers, scale and normalization.

    Raises:
        OptionError: the file exists, or its name does not end in .onnx.
        WeightsError: no segmenter is there, or the file gives other numbers; nothing is written.
        PackageError: a package is missing.
        DiskError: the file cannot be written.
    """
    path, segmenter = check_target("onnx", file), load_segmenter(run)
    model, worst = segmenter.model, 0.0
    example = torch.from_numpy(normal_noise(model, BATCH, 0))
    form = Traceable(segmenter, example, {0: "batch"}, "images", ("mask",))
    proto = traced(model, form)
    strip(proto)
    facts = about(model) | asdict(segmenter.about)
    proto.metadata_props.add(key="vitlab", value=json.dumps(facts))
    with staged_file(path) as draft:
        draft.write_bytes(proto.SerializeToString())
        session = opened(draft)
        for count in COUNTS:
            images = normal_noise(model, count, 0)
            with torch.inference_mode():
                own = segmenter(torch.from_numpy(images)).numpy()
            gap = np.abs(runs(session)(images)[0] - own).max() / np.abs(own).max()
            worst = max(worst, float(gap))
        if not worst <= TOLERANCE:
            raise WeightsError(f"onnxruntime gives other scores than {run}: they differ by {worst}")
    shapes = {"inputs": session.get_inputs(), "outputs": session.get_outputs()}
    about_file = {
        "model": model.config.name, "format": "onnx", "file": str(path), "opset": OPSET,
        "bytes": path.stat().st_size, "batches": list(COUNTS), "difference": worst,
    }  # fmt: skip
    return about_file | {
        kind: {each.name: list(each.shape) for each in own} for kind, own in shapes.items()
    }
