"""A state dict of our own model, by torch.save or by Lightning, without its config.json."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from made_models import noisy, pixels
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check

SMALL = "ViT(width=192,depth=2,heads=3,mlp=96)/8"
CHOICES: dict[str, dict[str, Any]] = {
    "features": {"classes": 0, "pre_logits": 16},
    "both": {"pool": "both", "registers": 2, "layer_scale": 0.1},
    "attention": {"pool": "attention", "qkv_bias": False},
    "gated": {"ffn": "swiglu", "norm": "rms", "qk_norm": True, "bias": False},
    "clip": {"pre_norm": True, "stem_bias": False, "norm_inner_mlp": True},
    "hmlp": {"stem": "hmlp", "stem_norm": "batch"},
    "parallel": {"branches": 2, "layer_scale": 0.1},
}


def a_model(**choices: Any) -> Any:
    return noisy(vitlab.create(SMALL, **({"classes": 3} | choices), image_size=32))


def same(back: Any, model: Any) -> None:
    with torch.inference_mode():
        assert torch.equal(back(pixels(32)), model(pixels(32)))


@pytest.mark.parametrize(("number", "case"), [*enumerate(CHOICES)])
def test_our_own_tensors_alone(number: int, case: str, tmp_path: Path) -> None:
    model, prefix = a_model(**CHOICES[case]), ("", "model.", "lightning.net.")[number % 3]
    state = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    content = {"state_dict": state | {"loss.weight": torch.ones(7)}} if prefix else state
    torch.save(content, tmp_path / "own.ckpt")
    back = vitlab.load(tmp_path / "own.ckpt")
    same(back, model)
    origins = load_check(tmp_path / "own.ckpt").origins
    assert {origins[name] for name in ("heads", "gelu", "norm_eps", "mean")} <= {
        "assumed", "tensors",
    }  # fmt: skip


def test_what_tensors_do_not_show_is_said_and_settled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = a_model(gelu="tanh", norm_eps=0.1, mean=0.25)
    torch.save(model.state_dict(), tmp_path / "own.pth")
    with caplog.at_level(logging.WARNING, "vitlab"):
        vitlab.load(tmp_path / "own.pth")
    assert all(f" {each}," in caplog.text for each in ("heads 3", "gelu exact", "norm_eps 1e-06"))
    back = vitlab.load(tmp_path / "own.pth", name=SMALL, gelu="tanh", norm_eps=0.1, mean=0.25)
    same(back, model)
    assert back.config.mean == (0.25,) * 3


def test_a_configuration_beside_the_file_says_all(tmp_path: Path) -> None:
    model = a_model(gelu="tanh", positions="2d", registers=1, pool="prefix")
    vitlab.save(model, tmp_path / "saved")
    shutil.copy(tmp_path / "saved" / "config.json", tmp_path)
    with torch.no_grad():
        model.head.classify.bias.add_(1.0)  # trained further, so that checksums are of others
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "last.ckpt")
    back = vitlab.load(tmp_path / "last.ckpt")
    assert back.config == model.config
    same(back, model)
    assert set(load_check(tmp_path / "last.ckpt").origins.values()) == {"file"}


@pytest.mark.parametrize("choices", [{"positions": "2d"}, {"stem": "resnet", "stages": (1,)}])
def test_what_cannot_be_read_names_what_works(choices: dict[str, Any], tmp_path: Path) -> None:
    model: Any = vitlab.create("ViT-Ti1/16", 3, 32, **choices)
    torch.save(model.state_dict(), tmp_path / "own.pth")
    advice = r"save the model with vitlab\.save\(model, FOL"
    with pytest.raises(WeightsError, match=advice) as caught:
        vitlab.load(tmp_path / "own.pth")
    assert len(str(caught.value).replace(str(tmp_path), "")) < 200


def test_a_whole_model_of_ours_names_what_works(tmp_path: Path) -> None:
    model = a_model()
    torch.save(model, tmp_path / "whole.pth")
    with pytest.raises(WeightsError, match=r"vitlab\.save\(model, FOLDER\)"):
        vitlab.load(tmp_path / "whole.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "other.pth")
    with pytest.raises(WeightsError, match=r"torch\.save\(model\.state_dict\(\), FILE\)"):
        vitlab.load(tmp_path / "other.pth")
