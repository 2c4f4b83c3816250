"""Every architecture as an ONNX file that gives the model's numbers at onnxruntime's defaults."""

from pathlib import Path

import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

import vitlab
from models.test_architectures import CASES, a_model
from vitlab.graphs.onnx_graph import keep_padding

COMPLETE = ("BEiT", "Axial ResNet", "BiT", "EVA-02", "Perception Encoder", "relative")


def test_padding_before_a_maximum_is_kept() -> None:
    """Without the change to the graph, onnxruntime's defaults lose the zeros of BiT's root."""
    pads, value = [0, 0, 1, 1, 0, 0, 1, 1], 0.0
    graph = helper.make_graph(
        [
            helper.make_node("Pad", ["images", "pads", "value"], ["padded"]),
            helper.make_node("MaxPool", ["padded"], ["out"], kernel_shape=[3, 3], strides=[2, 2]),
        ],
        "root",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 2, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 2, 4, 4])],
        [
            helper.make_tensor("pads", TensorProto.INT64, [8], pads),
            helper.make_tensor("value", TensorProto.FLOAT, [], [value]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    images = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0)) - 3
    want = F.max_pool2d(F.pad(images, (1, 1, 1, 1)), 3, 2)

    def difference() -> float:
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        return float((found - want).abs().max())

    before = difference()
    keep_padding(proto)
    assert difference() == 0
    assert before > 1, "onnxruntime is right by itself: keep_padding is no longer needed"


FEW = (("BiT", True), ("relative", True), ("BEiT", True))  # with a tanh layer, say, in others


@pytest.mark.parametrize(
    ("case", "bare"),
    [*FEW, *(pytest.param(case, bare, marks=pytest.mark.campaign) for bare, cases in
             ((True, CASES), (False, COMPLETE)) for case in cases)],
)  # fmt: skip
def test_an_architecture_at_one_two_and_seven_images(case: str, bare: bool, tmp_path: Path) -> None:
    shallow = {"depth": 1} if "ViT" in CASES[case][0] else {}
    found = vitlab.export(a_model(case, **shallow), tmp_path / "a.onnx", bare=bare)
    assert found["batches"] == [1, 2, 7]
    assert found["difference"] < 5e-5
