"""Masks, boxes and numbers as ONNX files: the answers of runs with heads, of normalized images."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.graphs.about import about
from vitlab.graphs.agreement import UNITS, Units, check
from vitlab.graphs.certificate import LIMITS, CertifiedParts, certify
from vitlab.graphs.complete import BATCH, Traceable
from vitlab.graphs.onnx_file import OPSET, staged, traced
from vitlab.graphs.reference_images import make_normalized_images, normal_noise
from vitlab.graphs.targets import MODEL, check_target
from vitlab.models.heads.detect import Detector
from vitlab.models.heads.regress import Estimating
from vitlab.models.heads.segment import Segmenter
from vitlab.weights.detector import load_detector
from vitlab.weights.regressor import load_regressor
from vitlab.weights.segmenter import load_segmenter


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
    path = check_target("onnx", file)
    answering = answering_with(kind, run)
    model = answering.module.model
    units = {**UNITS, **answering.units}
    example = normal_noise(model, BATCH)
    form = Traceable(
        answering, torch.from_numpy(example), {0: "batch"}, "images", answering.outputs,
        answering.inner,
    )  # fmt: skip
    proto, blocks = traced(model, form)
    facts = about(model) | asdict(answering.module.about)
    proto.metadata_props.add(key="vitlab", value=json.dumps(facts))

    def own(images: Tensor) -> dict[str, NDArray[Any]]:
        with torch.inference_mode():
            return {name: each.numpy() for name, each in answering.answers(images).items()}

    with staged(path) as draft:
        draft.write_bytes(proto.SerializeToString())
        found = check(draft, model, form, own=own, units=units)
        if not path.suffix:
            images = [*make_normalized_images(model, (BATCH,))]
            certify(draft, form, images, CertifiedParts(blocks, LIMITS["fp32"], units))
    made, folder = (path, {}) if path.suffix else (path / MODEL, {"folder": str(path)})
    return {
        "model": model.config.name, "format": "onnx", "file": str(made), "opset": OPSET,
        "bytes": made.stat().st_size, **folder, **found,
    }  # fmt: skip


class Answering(nn.Module):
    """A run's module with the names of its answers, and of what they are made of.

    Args:
        module: from normalized images
        outputs: names of the answers
        inner: names of what they are made of, which is compared beside them
        units: of answers that have one of their own
    """

    def __init__(
        self,
        module: Segmenter | Detector | Estimating,
        outputs: tuple[str, ...],
        inner: tuple[str, ...],
        units: Units | None = None,
    ) -> None:
        super().__init__()
        self.module = module
        self.outputs = outputs
        self.inner = inner
        self.units = units or {}

    def answers(self, images: Tensor) -> dict[str, Tensor]:
        """Compute all of them in one pass."""
        inner = self.module.evidence(images)
        found = self.module.conclude(images, *inner)
        answers = found if isinstance(found, tuple) else (found,)
        return dict(zip(self.outputs + self.inner, (*answers, *inner), strict=True))


def answering_with(kind: str, run: str | Path) -> Answering:
    """Load what a run answers with.

    Raises:
        WeightsError: no such head is there.
    """
    if kind == "masks":
        segmenter = load_segmenter(run)
        linear = not segmenter.about.queries
        return Answering(segmenter, ("mask",), ("patches",) if linear else ("scores", "shapes"))
    if kind == "numbers":
        estimating = Estimating(load_regressor(run))
        names = ("values", "deviations")[: 1 + estimating.about.spread]
        unit = estimating.scale[1].numpy()  # columns have units of their own
        return Answering(estimating, names, ("features", "outputs"), dict.fromkeys(names, unit))
    return Answering(load_detector(run), ("probabilities", "boxes"), ("scores", "places"))
