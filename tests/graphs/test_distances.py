"""The distance from the training images, an output of its own."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import vitlab
from graphs.conftest import CLASSES
from vitlab.graphs.complete import Complete
from vitlab.graphs.onnx_check import opened
from vitlab.models.model import Model


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_the_file_gives_the_distances_of_classify(
    precision: str, model: Model, tmp_path: Path
) -> None:
    levels = np.arange(0, 240, 2, dtype=np.uint8)[:, None, None, None]  # 120 gray images
    grays = [*np.broadcast_to(levels, (120, 32, 32, 3))]
    with torch.inference_mode():
        labels = [CLASSES[k] for k in model(vitlab.preprocess(model)(grays)).argmax(1)]
    data = {"data": list(zip(grays, labels, strict=True))} if precision == "int8" else {}
    found = vitlab.export(model, tmp_path / "model.onnx", precision=precision, **data)  # type: ignore[arg-type]
    assert found["outputs"]["distance"] == ["batch"]
    images = np.random.default_rng(1).integers(0, 256, (5, 40, 50, 3), np.uint8)
    session = opened(tmp_path / "model.onnx")
    (far,) = session.run(["distance"], {"image": images})
    want = [each.distance for each in vitlab.classify(model, [*images])]
    limit = {"fp32": 1e-3, "fp16": 0.05, "int8": 0.5}[precision]
    np.testing.assert_allclose(far, want, rtol=limit, atol=limit)
    assert max(want) > 0
    (entry,) = onnx.load(tmp_path / "model.onnx").metadata_props
    assert json.loads(entry.value)["unlike"] == "distance > 1"


def test_a_program_of_pytorch_gets_both(model: Model) -> None:
    images = np.zeros((2, 32, 32, 3), np.uint8)
    chances, far = Complete(model).eval()(torch.from_numpy(images))
    answers = vitlab.classify(model, [*images])
    assert far.tolist() == pytest.approx([each.distance for each in answers], rel=1e-4)
    assert chances.max(1).values.tolist() == pytest.approx([e.classes[0][1] for e in answers])
