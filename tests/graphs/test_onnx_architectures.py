"""Every architecture as an ONNX file that gives the model's numbers at onnxruntime's defaults."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional as F

import vitlab
from models.test_architectures import CASES, a_model
from vitlab.graphs.onnx_graph import keep_padding

SMALL = {
    "branches, SwiGLU, qk norms, BEiT's bias": (
        "ViT(width=16,depth=1,heads=2,mlp=16,branches=2)/8",
        {"positions": "bias", "ffn": "swiglu", "qk_norm": True},
    ),
    "relative, LN stem, MAP, tanh layer": (
        "ViT(width=16,depth=1,heads=2,mlp=16)/8",
        {"positions": "relative", "stem_norm": "layer", "pool": "attention", "pre_logits": 8},
    ),
    "BiT": ("BiT-R(1)x1", {}),
}

COMPLETE = ("BEiT", "Axial ResNet", "BiT", "EVA-02", "Perception Encoder", "relative")


def with_noise(name: str, **choices: object) -> torch.nn.Module:
    """A model with every parameter moved, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(name, 5, 32, generator=generator, zero_head=False, **choices)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    return model.eval()


@pytest.mark.parametrize("case", SMALL)
def test_an_architecture_at_one_two_and_seven_images(case: str, tmp_path: Path) -> None:
    name, choices = SMALL[case]
    model = with_noise(name, **choices)
    found = vitlab.export(model, tmp_path / "a.onnx", bare=True)
    assert found["batches"] == [1, 2, 7]
    assert found["difference"] < 1e-5
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    session = onnxruntime.InferenceSession(found["file"])
    got = session.run(None, {"images": images.numpy()})[0]
    want = model(images).detach().numpy()
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


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


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("case", "bare"),
    [*((case, True) for case in CASES), *((case, False) for case in COMPLETE)],
)
def test_all_architectures(case: str, bare: bool, tmp_path: Path) -> None:
    found = vitlab.export(a_model(case), tmp_path / "a.onnx", bare=bare)
    assert found["batches"] == [1, 2, 7]
    print(f"{case}: {found['difference']:.1e}")
    assert found["difference"] < 5e-5
