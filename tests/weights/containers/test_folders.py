"""Folders as libraries and people leave them: which file is read, and what is beside a backbone."""

import json
import logging
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open import open_source
from vitlab.weights.load import load_check
from weights.containers.test_wrappers import holds

Tensors = dict[str, Tensor]


def write(tensors: Tensors, file: Path) -> None:
    if file.suffix == ".safetensors":
        save_file(tensors, file)
    else:
        torch.save(tensors, file)


@pytest.mark.parametrize(
    "name",
    ["pytorch_model_fsdp.bin", "a.pt", "epoch=3-step=10.ckpt", "last.pth.tar",
     "open_clip_model.safetensors", "anything.safetensors"],
)  # fmt: skip
def test_a_folder_with_one_file_under_any_name(name: str, tensors: Tensors, tmp_path: Path) -> None:
    write(tensors, tmp_path / name)
    for other in ("optimizer.bin", "scheduler.pt", "training_args.bin", "rng_state.pth"):
        torch.save({"x": torch.zeros(1)}, tmp_path / other)
    (tmp_path / "config.json").write_text('{"architecture": "x"}')
    source = open_source(tmp_path)
    assert holds(source, tensors)
    assert source.config == {"architecture": "x"}


def test_the_configuration_of_open_clip(tensors: Tensors, tmp_path: Path) -> None:
    write(tensors, tmp_path / "open_clip_model.safetensors")
    write({"wrong": torch.zeros(2)}, tmp_path / "open_clip_pytorch_model.bin")
    content = {"model_cfg": {"embed_dim": 4}, "preprocess_cfg": {"mean": [0.5]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(content))
    for path in (tmp_path, tmp_path / "open_clip_model.safetensors"):
        source = open_source(path)
        assert holds(source, tensors)
        assert source.open_clip == content
    write(tensors, tmp_path / "mine.pth")
    assert open_source(tmp_path / "mine.pth").open_clip == {}
    (tmp_path / "open_clip_config.json").write_text("[1]")
    with pytest.raises(
        WeightsError, match=r"open_clip_config.json is damaged: it holds no object, but a list"
    ):
        open_source(tmp_path)


def test_several_files_are_listed(tensors: Tensors, tmp_path: Path) -> None:
    for name in ("b.pth", "a.pth"):
        write(tensors, tmp_path / name)
    with pytest.raises(WeightsError, match=r"\(a.pth, b.pth\): give the path of one") as caught:
        open_source(tmp_path)
    advised = str(caught.value).partition("path of one, ")[2].removesuffix(" for example")
    assert holds(open_source(Path(advised)), tensors)


def test_names_that_a_configuration_explains_are_left_alone(
    tensors: Tensors, tmp_path: Path
) -> None:
    write({f"encoder.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "m.pth")
    assert "cls_token" in open_source(tmp_path).shapes
    (tmp_path / "config.json").write_text('{"architecture": "x"}')
    assert "encoder.cls_token" in open_source(tmp_path).shapes


@pytest.mark.parametrize(
    ("wrong", "right"), [("vit.pth", "vit.safetensors"), ("pytorch_model.bin", "model.safetensors")]
)
def test_safetensors_are_preferred(
    wrong: str, right: str, tensors: Tensors, tmp_path: Path
) -> None:
    write({"wrong": torch.zeros(2)}, tmp_path / wrong)
    write(tensors, tmp_path / right)
    assert holds(open_source(tmp_path), tensors)


def test_a_folder_of_folders(tensors: Tensors, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    write(tensors, tmp_path / "run" / "checkpoints" / "epoch=1.ckpt")
    with pytest.raises(WeightsError, match=r"no weights itself, but \S*checkpoints does: give"):
        open_source(tmp_path / "run")
    assert holds(open_source(tmp_path / "run" / "checkpoints"), tensors)


def sharded(tensors: Tensors, folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Pickles in two files, as transformers wrote them."""
    names = sorted(tensors)
    files = [f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    where = {name: files[place % 2] for place, name in enumerate(names)}
    for file in files:
        torch.save({n: tensors[n] for n in names if where[n] == file}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return files, index


def test_pickles_in_shards(timm_folder: Path, tensors: Tensors, tmp_path: Path) -> None:
    sharded(tensors, tmp_path)
    (tmp_path / "config.json").write_text((timm_folder / "config.json").read_text())
    assert holds(open_source(tmp_path), tensors)
    got, want = vitlab.load(tmp_path), vitlab.load(timm_folder)
    assert got.config == want.config
    assert all(torch.equal(t, want.state_dict()[n]) for n, t in got.state_dict().items())


def test_an_index_of_pickles_that_lies(tensors: Tensors, tmp_path: Path) -> None:
    files, index = sharded(tensors, tmp_path)
    where, file = index["weight_map"], tmp_path / "pytorch_model.bin.index.json"
    name = next(iter(where))
    cases = {
        r"\.\./x.bin': shards must be .bin files": where | {name: "../x.bin"},
        "lists gone.bin, which is missing": where | {name: "gone.bin"},
        "does not contain tensor 'more'": where | {"more": files[0]},
        "which the index does not list": {n: f for n, f in where.items() if n != name},
    }
    for message, lie in cases.items():
        file.write_text(json.dumps({"weight_map": lie}))
        with pytest.raises(WeightsError, match=message):
            open_source(tmp_path)
    file.write_text(json.dumps(index))
    (tmp_path / "elsewhere.bin").write_bytes((tmp_path / files[0]).read_bytes())
    (tmp_path / files[0]).unlink()
    (tmp_path / files[0]).symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(WeightsError, match="which is a link"):
        open_source(tmp_path)


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


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_the_advice_makes_a_file_that_loads(
    timm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(timm_folder)
    tensors = {name: source.read(name) for name in source.shapes}
    dcp.save({"model": tensors, "epoch": 3}, checkpoint_id=tmp_path / "step-3")
    with pytest.raises(WeightsError, match="contains a distributed checkpoint of Py") as caught:
        vitlab.load(tmp_path / "step-3")
    words = str(caught.value).partition("python ")[2].split()
    given = {"FOLDER": str(tmp_path / "step-3"), "FILE.pth": str(tmp_path / "file.pth")}
    monkeypatch.setattr(sys, "argv", [given.get(word, word) for word in words[1:]])
    runpy.run_module(words[1], run_name="__main__")
    read = open_source(tmp_path / "file.pth")
    assert all(torch.equal(read.read(name), tensors[name]) for name in tensors)
