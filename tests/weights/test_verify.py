"""`vitlab load-check`, `export` and `delta`; published models against their libraries."""

import importlib
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitlab
from conftest import call
from docs.pages import ROOT
from oracles import peers
from oracles.hub import Hub
from vitlab.errors import WeightsError
from weights.test_hub import files, unreachable


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
    monkeypatch.setenv("COLUMNS", "100")
    _, out, _ = call(capsys, *named)
    origins = "option|file|tensors|name|family|assumed"
    fields = {*re.findall(rf"^ +(\w+) .* ({origins}) *$", out, re.MULTILINE)}
    assert {("width", "tensors"), ("gelu", "name"), ("crop", "name")} < fields
    assert not {"queries", "labels", "dropout"} & {name for name, _ in fields}
    assert f"{len(seen['config']) - len(fields)} further fields have their defaults" in out
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
    words = (*words[:-1], str(tmp_path / "again.safetensors"))
    code, out, _ = call(capsys, "delta", *words)
    assert (code, "again.safetensors: 12 bytes, < 0.1% of the whole model" in out) == (0, True)
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


TIMM, VIT = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "google/vit-base-patch16-224"
CLIP, PLAIN = "openai/clip-vit-base-patch32", "facebook/dino-vits16"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("published")


Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def asked(tool: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """The script, as it is run with these words: its exit status, output and errors."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["published.py", *words])
        code = 0
        try:
            tool.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def of_timm(folder: Path) -> dict[str, bytes]:
    timm = peers.timm()
    torch.manual_seed(0)
    arguments = {"depth": 2, "img_size": 32}
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, **arguments)
    timm.models.save_for_hf(model, folder, model_args=arguments)
    return files(folder)


def of_transformers(folder: Path) -> dict[str, bytes]:
    library = peers.transformers()
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 8,
             "intermediate_size": 64, "image_size": 32}  # fmt: skip
    library.ViTModel(library.ViTConfig(**sizes)).save_pretrained(folder)
    return files(folder)


def test_forty_published_models_are_listed_and_none_was_measured_yet(tool: Any) -> None:
    models = tool.published()
    assert len(models) == 40
    assert {each.library for each in models.values()} == {"timm", "transformers"}
    for each in models.values():
        assert bool(each.outputs) == bool(each.commit)
        assert (each.library == "timm") == each.name.startswith("timm/")


def test_a_model_of_transformers(hub: Hub, tmp_path: Path, tool: Any) -> None:
    hub.add(PLAIN, of_transformers(tmp_path / "m"))
    (found,) = tool.verify(PLAIN)
    assert (found.agrees, found.compared) == (True, "tokens")
    assert found.difference < 1e-5


def test_a_model_of_timm_and_another_result(
    hub: Hub, tmp_path: Path, tool: Any, monkeypatch: pytest.MonkeyPatch, asked: Call
) -> None:
    commit = hub.add(TIMM, of_timm(tmp_path / "m"))
    code, out, _ = asked(TIMM, "--json")
    (first,) = json.loads(out)
    assert (first["agrees"], first["compared"], first["commit"]) == (True, "logits", commit)
    assert first["difference"] < 1e-5
    assert first["recorded"] is None
    assert len(first["outputs"]) == 8
    assert first["format"].startswith("timm")
    out = asked(TIMM)[1]
    assert "| agrees |" in out
    assert "outputs of 1 were never recorded" in out
    (right,) = tool.verify(TIMM)
    listed = {TIMM: tool.Published(TIMM, "timm", right.outputs, right.commit)}
    monkeypatch.setattr(tool, "published", lambda: listed)
    assert tool.verify(TIMM)[0].recorded
    real = tool.load
    monkeypatch.setattr(tool, "load", lambda folder: real(folder, gelu="quick", norm_eps=0.1))
    (found,) = tool.verify(TIMM)
    assert not found.agrees
    assert found.difference is not None
    assert found.difference > tool.CLOSE
    assert found.recorded is False
    code, out, _ = asked(TIMM)
    assert code == 0
    assert "DIFFERS" in out
    assert "not the outputs that were recorded" in out


def test_of_all_those_that_cannot_be_compared_say_why(
    hub: Hub, tmp_path: Path, tool: Any, monkeypatch: pytest.MonkeyPatch, asked: Call
) -> None:
    hub.add(TIMM, of_timm(tmp_path / "m"))
    hub.add(VIT, files(vitlab.save(vitlab.create("ViT-Ti1/16", 3, 32), tmp_path / "own")))
    names = (TIMM, VIT, CLIP)
    listed = {name: tool.published()[name] for name in names}
    monkeypatch.setattr(tool, "published", lambda: listed)
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    code, out, _ = asked("all", "--json")
    found = json.loads(out)
    assert code == 0
    assert [each["name"] for each in found] == list(names)
    assert found[0]["agrees"]
    assert "pip install transformers" in found[1]["problem"]
    assert "not found here or on the Hub" in found[2]["problem"]
    assert asked("all")[1].count("not compared") == 2
    unreachable(monkeypatch)
    code, out, err = asked(CLIP)
    assert (code, out) == (2, "")
    assert f"a network is needed to fetch {CLIP} (" in err


def test_the_picture_is_the_same_everywhere_and_a_part_of_a_larger_one(
    tool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tool.picture
    assert np.array_equal(picture(300, 400)[:64, :80], picture(64, 80))
    assert picture(64, 64).std() > 50
    model = vitlab.create("ViT-Ti1/16", 3, (32, 48), mean=0.25, std=0.5)
    images = tool.picture_for(model)
    assert images.shape == (1, 3, 32, 48)
    first = (picture(1, 1)[0, 0, 0] / 255 - 0.25) / 0.5
    assert images[0, 0, 0, 0] == pytest.approx(first)
    monkeypatch.setattr(tool, "PICTURE", "other")
    with pytest.raises(WeightsError, match="the picture has the checksum"):
        tool.picture_for(model)
