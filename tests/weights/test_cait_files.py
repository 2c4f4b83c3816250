"""CaiT in the layouts of its releases, with random numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.oracles import peers
from torch import Tensor

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check

CLOSE = {"rtol": 0, "atol": 1e-5}
SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2,
                         "num_heads": 3, "mlp_ratio": 2, "mlp_ratio_token_only": 2}  # fmt: skip


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def cait(**changed: Any) -> Any:
    torch.manual_seed(0)
    model = peers.timm().create_model("cait_xxs24_224", **SMALL | changed, num_classes=5)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model.eval()


@torch.inference_mode()
def test_its_own_file_gives_its_logits(tmp_path: Path) -> None:
    theirs = cait()
    state = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"model": state}, tmp_path / "S24_224.pth")
    ours = vitlab.load(tmp_path / "S24_224.pth")
    assert (ours.config.heads, ours.config.class_blocks, ours.config.talking_heads) == (3, 2, True)
    torch.testing.assert_close(ours(images()), theirs(images()), **CLOSE)
    torch.testing.assert_close(ours.encode(images()), theirs.forward_features(images()), **CLOSE)
    found = load_check(tmp_path / "S24_224.pth")
    assert found.origins["heads"] == "tensors"
    assert found.notes == ()


def folder_of(folder: Path, model: Any, arguments: dict[str, Any]) -> Path:
    prepared = {"mean": [0.4, 0.4, 0.4], "std": [0.2, 0.2, 0.2], "crop_pct": 0.9}
    content = {"architecture": "cait_xxs24_224", "num_classes": 5, "model_args": arguments,
               "pretrained_cfg": prepared}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(content))
    save_file(model.state_dict(), folder / "model.safetensors")
    return folder


@torch.inference_mode()
def test_timms_folder_gives_timms_logits(tmp_path: Path) -> None:
    theirs = cait(global_pool="avg")
    ours = vitlab.load(folder_of(tmp_path, theirs, SMALL | {"global_pool": "avg"}))
    assert (ours.config.pool, ours.config.crop, ours.config.mean) == ("mean", 0.9, (0.4,) * 3)
    torch.testing.assert_close(ours(images()), theirs(images()), **CLOSE)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"num_heads": 4}, "model_args num_heads=4"),
    ({"depth_token_only": 3}, "depth_token_only=3"),
    ({"mlp_ratio_token_only": 4.0}, "mlp_ratio_token_only=4.0"),
    ({"act_layer": "relu"}, "model_args act_layer='relu'"),
    ({"attn_block": "x"}, "model_args attn_block='x'"),
])  # fmt: skip
def test_arguments_are_represented_or_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        vitlab.load(folder_of(tmp_path, cait(), SMALL | arguments))


def test_damage_is_named(tmp_path: Path) -> None:
    state = cait().state_dict()
    without = {name: tensor for name, tensor in state.items() if "proj_" not in name}
    save_file(without, tmp_path / "plain.safetensors")
    with pytest.raises(
        WeightsError, match="does not say how many heads a width of 24 has: give --heads"
    ):
        vitlab.load(tmp_path / "plain.safetensors")
    assert not vitlab.load(tmp_path / "plain.safetensors", heads=3).config.talking_heads
    del state["blocks_token_only.1.attn.k.weight"]
    save_file(state, tmp_path / "damaged.safetensors")
    with pytest.raises(WeightsError, match=r"blocks_token_only\.1\.attn\.k\.weight is missing"):
        vitlab.load(tmp_path / "damaged.safetensors")


def test_other_formats_refuse_to_write_it(tmp_path: Path) -> None:
    model = vitlab.load(folder_of(tmp_path, cait(), SMALL))
    for to in ("timm", "transformers", "google"):
        with pytest.raises(WeightsError):
            vitlab.save(model, tmp_path / to, to=to)
    again = vitlab.load(vitlab.save(model, tmp_path / "own"))
    assert torch.equal(again(images()), model(images()))
