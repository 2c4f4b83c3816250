"""A backbone in somebody's own module: the classifier beside it is the model's, or is told."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitlab
from vitlab.weights.load import load_check

Tensors = dict[str, Tensor]


def split(tensors: Tensors, prefix: str, head: str) -> Tensors:
    """The backbone under one prefix, its classifier under another."""
    return {
        name.replace("head.", f"{head}.") if name.startswith("head.") else prefix + name: tensor
        for name, tensor in tensors.items()
    }


@pytest.mark.parametrize(
    ("prefix", "head"),
    [("backbone.", "head"), ("encoder.", "classifier"), ("model.backbone.", "model.cls_head"),
     ("module.net.vit.", "module.net.fc"), ("backbone.", "classifier.0")],
)  # fmt: skip
def test_a_classifier_beside_the_backbone(
    prefix: str, head: str, tensors: Tensors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.save(tensors, tmp_path / "own.pth")
    torch.save({"state_dict": split(tensors, prefix, head)}, tmp_path / "wrapped.pth")
    want, choices = vitlab.load(tmp_path / "own.pth"), {"mean": 0.5, "std": 0.5}
    caplog.clear()
    with caplog.at_level(logging.WARNING, "vitlab"):
        got = vitlab.load(tmp_path / "wrapped.pth", **choices)
    assert f"{head}.bias, {head}.weight beside" in caplog.text
    assert "are read as the model's classifier" in caplog.text
    images = torch.randn(2, 3, 16, 16)
    assert torch.equal(got(images), want(images))


def test_what_is_not_the_classifier_is_told(tensors: Tensors, tmp_path: Path) -> None:
    own = {name: tensor for name, tensor in tensors.items() if not name.startswith("head.")}
    backbone = split(own, "backbone.", "")
    cases = {
        "two layers": {"fc1.weight": (8, 192), "fc1.bias": (8,), "fc2.weight": (3, 8)},
        "two classifiers": {"fc.weight": (3, 192), "fc.bias": (3,), "head.weight": (3, 192),
                            "head.bias": (3,)},
        "of other features": {"fc.weight": (3, 768), "fc.bias": (3,)},
        "without a bias": {"fc.weight": (3, 192)},
    }  # fmt: skip
    for name, shapes in cases.items():
        beside = {key: torch.zeros(shape) for key, shape in shapes.items()}
        torch.save(backbone | beside, tmp_path / "m.pth")
        found = load_check(tmp_path / "m.pth")
        assert found.config["classes"] == 0, name
        assert f"left out, outside backbone: {', '.join(shapes)}" in str(found.notes), name


def test_a_head_in_the_backbone_is_preferred(tensors: Tensors, tmp_path: Path) -> None:
    content = {f"backbone.{name}": tensor for name, tensor in tensors.items()}
    content |= {"fc.weight": torch.zeros(9, 192), "fc.bias": torch.zeros(9)}
    torch.save(content, tmp_path / "m.pth")
    found = load_check(tmp_path / "m.pth")
    assert found.config["classes"] == 3
    assert "left out, outside backbone: fc.weight, fc.bias" in str(found.notes)
