"""`vitlab load-check`, `export` and `delta` as a user meets them."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitlab
from conftest import call
from oracles import peers


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with timm's names, and with a tensor that is of no use."""
    other = peers.timm().create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=3)
    tensors = dict(other.state_dict()) | {"mask_token": torch.zeros(1, 1, 192)}
    save_file(tensors, tmp_path / "vit_tiny_patch16_224.safetensors")
    return tmp_path / "vit_tiny_patch16_224.safetensors"


def test_load_check_tells_all(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = ("load-check", str(file), "--name", "vit_tiny_patch16_224")
    code, out, err = call(capsys, *named, "--json")
    assert (code, err) == (0, "")
    seen = json.loads(out)
    assert seen["format"] == "timm, vit_tiny_patch16_224"
    assert seen["model"] == "ViT-Ti1/16"
    assert seen["config"]["image_size"] == 32
    assert seen["left_out"] == {"mask_token": "for pre-training alone"}
    ours = {name for each in seen["tensors"] for name in each["ours"]}
    assert ours == set(vitlab.load(file).state_dict())
    table = {each["ours"][0]: each for each in seen["tensors"]}
    assert table["blocks.0.attention.0.body.qkv.weight"]["theirs"] == ["blocks.0.attn.qkv.weight"]
    assert table["head.classify.bias"]["shapes"] == [[3]]
    monkeypatch.setenv("COLUMNS", "40")
    code, out, _ = call(capsys, *named)
    assert code == 0
    assert "blocks.0.attention.0.body.qkv.weight from blocks.0.attn.qkv.weight (576, 192)" in out
    assert "timm, vit_tiny_patch16_224" in out
    assert "mask_token is left out: for pre-training alone" in out


def test_load_check_of_what_does_not_load(
    capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(file.read_bytes()[:-5])
    for source in (broken, tmp_path / "nothing.npz", tmp_path):
        code, out, err = call(capsys, "load-check", str(source))
        assert (code, out) == (2, "")
        assert err.startswith("vitlab load-check: ")
        assert err.count("\n") == 1


def test_export_and_delta(capsys: pytest.CaptureFixture[str], file: Path, tmp_path: Path) -> None:
    out_folder = str(tmp_path / "hf")
    code, out, _ = call(capsys, "export", str(file), "--to", "transformers", "--out", out_folder)
    assert code == 0
    assert "preprocessor_config.json" in out
    model = vitlab.load(out_folder)
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(model(images), vitlab.load(file)(images))
    with torch.no_grad():
        model.head.classify.bias += 1
    vitlab.save(model, tmp_path / "tuned")
    words = (str(tmp_path / "tuned"), out_folder, "--out", str(tmp_path / "d.safetensors"))
    code, out, _ = call(capsys, "delta", *words, "--json")
    assert code == 0
    assert json.loads(out)["bytes"] == 3 * 4
    assert torch.equal(vitlab.load(tmp_path / "d.safetensors")(images), model(images))
    code, _, err = call(capsys, "export", str(file), "--to", "google", "--out", str(tmp_path / "g"))
    assert code == 2
    assert "google cannot represent gelu='exact'" in err


def test_no_classifier_no_prediction(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    vitlab.save(vitlab.create("ViT-Ti1/8", 0, 16), tmp_path / "m")
    for command in ("predict", "evaluate"):
        code, _, err = call(capsys, command, str(tmp_path / "m"), str(photos))
        assert code == 2
        assert "has no classifier" in err
