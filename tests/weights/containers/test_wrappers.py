"""Where training scripts keep a model's tensors, and wrappers of libraries: the same model."""

import argparse
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from made_models import equal
from oracles import peers
from vitlab.errors import WeightsError
from vitlab.models.model import Model
from vitlab.weights.containers.open import open_source
from vitlab.weights.load import load_check
from vitlab.weights.source import StoredTensors

Tensors = dict[str, Tensor]


def saved(content: object, file: Path) -> Path:
    torch.save(content, file)
    return file


def prefixed(tensors: Tensors, prefix: str) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def changed(tensors: Tensors) -> Tensors:
    return {name: tensor + 1 for name, tensor in tensors.items()}


def holds(source: StoredTensors, tensors: Tensors) -> bool:
    """Whether a source has exactly these tensors, bit by bit."""
    same = {name: torch.equal(source.read(name), tensor) for name, tensor in tensors.items()}
    return set(source.shapes) == set(tensors) and all(same.values())


def optimizer_of(tensors: Tensors) -> dict[str, Any]:
    """The state of a real optimizer after a step."""
    parameters = [nn.Parameter(tensor) for tensor in tensors.values()]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters)
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize(
    "key",
    ["model_ema", "ema", "teacher", "student", "model", "model_state_dict", "state", "net",
     "params", "target_encoder", "a_key_of_its_own"],
)  # fmt: skip
def test_every_usual_key_and_any_other(key: str, tensors: Tensors, tmp_path: Path) -> None:
    content = {
        "epoch": 3,
        "optimizer": optimizer_of(tensors),
        "optimizer_by_names": {"exp_avg": changed(tensors)},
        "loss": {"center": torch.zeros(1, 4)},
        key: tensors,
        "scaler": {"scale": 1.0},
    }
    source = open_source(saved(content, tmp_path / "c.pth"))
    assert holds(source, tensors)
    assert source.notes == ()


@pytest.mark.parametrize(
    "prefix",
    ["module.", "_orig_mod.", "_fsdp_wrapped_module.", "net.", "model._orig_mod.module.",
     "state_dict.model.backbone."],
)  # fmt: skip
def test_prefixes_of_training_are_removed(prefix: str, tensors: Tensors, tmp_path: Path) -> None:
    for name in ("c.pth", "c.safetensors"):
        file = tmp_path / name
        content = prefixed(tensors, prefix)
        save_file(content, file) if file.suffix != ".pth" else torch.save(content, file)
        source = open_source(file)
        assert holds(source, tensors)
        assert source.stored["cls_token"] == f"{prefix}cls_token"


def test_engines_within_names(tensors: Tensors, tmp_path: Path) -> None:
    """FSDP, checkpointing and torch.compile wrap blocks as well; averages count their updates."""
    content: dict[str, Any] = {
        name.replace("blocks.0.", "blocks.0._fsdp_wrapped_module._checkpoint_wrapped_module."): each
        for name, each in tensors.items()
    }
    content = {"state_dict": prefixed(content, "module.") | {"n_averaged": torch.tensor(7)}}
    source = open_source(saved(content, tmp_path / "c.pth"))
    assert set(source.shapes) >= set(tensors)
    content["state_dict"] = {n: t for n, t in content["state_dict"].items() if n != "n_averaged"}
    assert holds(open_source(saved(content, tmp_path / "d.pth")), tensors)


def test_the_module_of_averaged_weights(tensors: Tensors, tmp_path: Path) -> None:
    """`torch.optim.swa_utils.AveragedModel`: a counter beside `module.`."""

    class Averaged(nn.Module):
        n_averaged: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("n_averaged", torch.tensor(7))

    content = Averaged().state_dict() | prefixed(tensors, "module.")
    save_file(content, tmp_path / "c.safetensors")
    for file in (saved(content, tmp_path / "c.pth"), tmp_path / "c.safetensors"):
        found = load_check(file)
        assert found.left_out == {"n_averaged": "a counter"}
        assert all(name.startswith("module.") for each in found.tensors for name in each.theirs)


@pytest.mark.parametrize(
    ("usual", "other"),
    [("model_ema", "model"), ("teacher", "student"), ("target_encoder", "encoder"),
     ("model", "student"), ("backbone", "momentum")],
)  # fmt: skip
def test_several_models_are_told_and_chosen(
    usual: str, other: str, tensors: Tensors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = saved({other: changed(tensors), usual: tensors}, tmp_path / "c.pth")
    source = open_source(file)
    assert holds(source, tensors)
    assert f"several models ({usual}, {other})" in source.notes[0]
    assert f"{usual} was read; --part {other} reads another" in source.notes[0]
    assert holds(open_source(file, other), changed(tensors))
    with caplog.at_level(logging.WARNING, "vitlab"):
        model = vitlab.load(file, part=other)
    assert f"was read; --part {usual} reads another" in caplog.text
    assert not torch.equal(model.state_dict()["positions.0.table"], tensors["pos_embed"])
    assert any("several models" in note for note in load_check(file).notes)


def test_lightnings_averages_win_over_the_weights_in_training(
    tensors: Tensors, tmp_path: Path
) -> None:
    """Its `WeightAveraging` keeps the averages in `state_dict`."""
    content = {
        "state_dict": prefixed(tensors, "model."), "averaging_state": {"n_averaged": 3},
        "current_model_state": prefixed(changed(tensors), "model."), "epoch": 3,
    }  # fmt: skip
    file = saved(content, tmp_path / "last.ckpt")
    source = open_source(file)
    assert holds(source, tensors)
    assert "state_dict was read; --part current_model_state reads another" in source.notes[0]
    assert holds(open_source(file, "current_model_state"), changed(tensors))


@pytest.mark.parametrize(
    ("prefixes", "read"),
    [
        (("teacher.backbone.", "student.backbone."), "teacher"),
        (("student_backbone.", "teacher_backbone."), "teacher_backbone"),
        (("module.base_encoder.", "module.momentum_encoder."), "base_encoder"),
    ],
)
def test_two_models_in_one_dictionary(
    prefixes: tuple[str, str], read: str, tensors: Tensors, tmp_path: Path
) -> None:
    """DINO's and lightly's checkpoints, and MoCo-v3's; one of each is of another size."""
    usual = next(prefix for prefix in prefixes if read in prefix)
    other = next(prefix for prefix in prefixes if prefix != usual)
    larger = {name: torch.cat([tensor, tensor], -1) for name, tensor in tensors.items()}
    content = {"loss.center": torch.zeros(3)} | prefixed(larger, other) | prefixed(tensors, usual)
    source = open_source(saved({"state_dict": content}, tmp_path / "c.pth"))
    assert holds(source, tensors)
    assert "several models" in source.notes[0]
    assert source.notes[0].endswith("left out, outside of them: loss.center")
    chosen = open_source(tmp_path / "c.pth", other.removeprefix("module.").split(".")[0])
    assert holds(chosen, larger)


def test_models_without_usual_names_are_listed(tensors: Tensors, tmp_path: Path) -> None:
    file = saved({"left": tensors, "right": changed(tensors)}, tmp_path / "c.pth")
    with pytest.raises(WeightsError, match=r"several models \(left, right\): choose one with --pa"):
        open_source(file)
    assert holds(open_source(file, "right"), changed(tensors))
    with pytest.raises(WeightsError, match="has no part 'middle': its parts are left, right"):
        open_source(file, "middle")
    with pytest.raises(WeightsError, match="has no part 'left': it contains one model"):
        open_source(saved(tensors, tmp_path / "c.pth"), "left")
    file = saved({"student": tensors, "right": changed(tensors)}, tmp_path / "c.pth")
    with pytest.raises(WeightsError, match=r"several models \(student, right\): choose one with"):
        open_source(file)
    flat = prefixed(tensors, "a.model.") | prefixed(tensors, "b.model.")
    with pytest.raises(WeightsError, match=r"several models \(a, b\)"):
        open_source(saved(flat, tmp_path / "d.pth"))


def test_a_model_is_not_taken_for_two(tmp_path: Path) -> None:
    """Kernels of a ResNet, or of stem and decoder, end alike within one model."""
    kernel = torch.zeros(2, 2, 3, 3)
    blocks = ["stages.0.blocks.0.conv.weight", "stages.0.blocks.1.conv.weight"]
    sides = ["left.proj.weight", "left.blocks.0.x", "right.proj.weight", "right.layers.0.y"]
    for names in (["stem.conv.weight", "body.conv.weight", "decoder.conv.weight", *blocks], sides):
        content = dict.fromkeys(names, kernel)
        assert set(open_source(saved(content, tmp_path / "c.pth")).shapes) == set(names)


def test_a_model_within_or_beside_another(tensors: Tensors, tmp_path: Path) -> None:
    """One of two has no prefix; and a name that occurs with and without one keeps it."""
    nested = {"model": {"state_dict": tensors, "arch": "vit_tiny"}, "arch": "other", "epoch": 1}
    source = open_source(saved(nested, tmp_path / "n.pth"))
    assert holds(source, tensors)
    assert source.record == {"arch": "vit_tiny"}
    file = saved(tensors | {"more": changed(tensors)}, tmp_path / "m.pth")
    assert holds(open_source(file), tensors)
    assert "several models (model, more)" in open_source(file).notes[0]
    assert holds(open_source(file, "more"), changed(tensors))
    file = saved(prefixed(tensors, "ema.") | changed(tensors), tmp_path / "c.pth")
    assert "several models (ema, model)" in open_source(file).notes[0]
    assert holds(open_source(file), tensors)
    assert holds(open_source(file, "model"), changed(tensors))
    names = {"module.a.0", "a.0", "b.1", "c.2"}
    twice = saved(dict.fromkeys(names, torch.zeros(1)), tmp_path / "d.pth")
    assert set(open_source(twice).shapes) == names


def test_names_that_would_take_long_are_quick(tmp_path: Path) -> None:
    """Without limits they take minutes."""
    pairs = [f"{side}.x{n}.0.y" for n in range(4_000) for side in ("a", "b")]
    for names in ([".".join(["a"] * 50_000), "a.0.b", "b.0.b"], pairs):
        with pytest.raises(WeightsError):
            vitlab.load(saved(dict.fromkeys(names, torch.zeros(1, 1, 1, 1)), tmp_path / "m.pth"))


def test_the_keys_are_in_the_message(tmp_path: Path) -> None:
    content = {"epoch": 3, "args": argparse.Namespace(arch="x"), "history": [1, 2]}
    with pytest.raises(WeightsError, match="contains no tensors; its entries are epoch, args, his"):
        open_source(saved(content, tmp_path / "c.pth"))
    many = {f"k{number}": 0 for number in range(20)}
    with pytest.raises(WeightsError, match="k7 and 12 more"):
        open_source(saved(many, tmp_path / "c.pth"))
    with pytest.raises(WeightsError, match="contains a list, not a dictionary of tensors"):
        open_source(saved([torch.zeros(2)], tmp_path / "c.pth"))


def test_superfluous_tensors_are_dropped_by_name(
    tensors: Tensors, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"head_aux.0.weight": torch.zeros(3, 8), "head_aux.0.bias": torch.zeros(3),
             "fc.weight": torch.zeros(2, 2)}  # fmt: skip
    file = saved({"state_dict": prefixed(tensors | extra, "module.")}, tmp_path / "c.pth")
    with pytest.raises(
        WeightsError,
        match=r"leave it out with --drop fc.weight \(in training --weights-drop, in Python drop=",
    ):
        vitlab.load(file)
    with caplog.at_level(logging.WARNING, "vitlab"):
        model = vitlab.load(file, drop=["fc.weight", "head_aux.*"])
    assert "left out as asked: fc.weight, head_aux.0.bias, head_aux.0.weight" in caplog.text
    assert torch.equal(model.state_dict()["positions.0.table"], tensors["pos_embed"])
    assert "left out as asked: fc.weight" in str(load_check(file, drop=["fc.*", "module.head_a*"]))
    with pytest.raises(WeightsError, match=r"no tensor .fd.weight. to leave out"):
        vitlab.load(file, drop=["fd.weight"])


def test_a_training_checkpoint_of_timm(tmp_path: Path) -> None:
    """Written by timm's own code: with arguments, optimizer, scaler and averaged weights."""
    timm = peers.timm()
    from timm.utils import CheckpointSaver, ModelEmaV3

    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=32, num_classes=3)
    model.pretrained_cfg["architecture"] = "vit_tiny_patch16_224"
    optimizer = torch.optim.AdamW(model.parameters())
    args = argparse.Namespace(model="vit_tiny_patch16_224", num_classes=3, opt="adamw", lr=1e-3)
    average = ModelEmaV3(model)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(1)
    saver = CheckpointSaver(model, optimizer, args, average, checkpoint_dir=str(tmp_path))
    saver.save_checkpoint(0, metric=0.5)
    source = open_source(tmp_path / "last.pth.tar")
    assert holds(source, average.module.state_dict())
    assert "several models (state_dict_ema, state_dict)" in source.notes[0]
    assert source.record["arch"] == "vit_tiny_patch16_224"
    assert source.record["args"]["lr"] == 1e-3
    assert holds(open_source(tmp_path / "last.pth.tar", "state_dict"), model.state_dict())


@pytest.fixture
def model() -> Model:
    generator = torch.Generator().manual_seed(0)
    return vitlab.create("ViT-Ti1/16", classes=3, image_size=32, generator=generator)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
def test_wrappers_are_taken_off(model: Model, tmp_path: Path) -> None:
    wrapped = torch.compile(nn.DataParallel(model))
    assert equal(vitlab.load(vitlab.save(wrapped, tmp_path / "m")), model)


def test_adapters_are_merged_first(model: Model, tmp_path: Path) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["qkv"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    with pytest.raises(WeightsError, match=r"pass model\.merge_and_unload"):
        vitlab.save(adapted, tmp_path / "a")
    with pytest.raises(WeightsError, match="merge them first"):
        vitlab.save(model, tmp_path / "a")  # peft put its layers into it
    merged = adapted.merge_and_unload()
    images = torch.zeros(1, 3, 32, 32)
    assert torch.equal(
        vitlab.load(vitlab.save(merged, tmp_path / "a"))(images), merged.eval()(images)
    )


def test_what_is_no_model_of_ours(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="a Linear is not a model of ViTLab"):
        vitlab.save(nn.Linear(2, 2), tmp_path / "a")
