"""Whole runs of DINO: collapsed, refused, and what they leave."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitlab
from vitlab.recipes.recipe import Host

QUICK: dict[str, Any] = {
    "model": "ViT(width=16,depth=1,heads=2,mlp=16)/2", "image_size": 8, "prototypes": 16,
    "head_width": 16, "bottleneck": 8, "local_crops": 2, "batch": 32, "steps": 6, "warmup": 0,
    "mean": 0.5, "std": 0.5, "precision": "fp32", "drop_path": 0.2, "freeze_last": 0.05,
    "test_every": 0.1,
}  # fmt: skip
MORE = {"registers": 1}


def train(folder: Path, **chosen: Any) -> Path:
    recipe = vitlab.recipe("dino", "digits", **QUICK | chosen)
    host = Host(workers=0, checkpoint_every=0, device="cpu")
    return vitlab.train(recipe, folder, host=host).folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run", **MORE)


def test_the_teacher_is_saved_and_nothing_beside_it(whole: Path) -> None:
    model = vitlab.load(whole)
    assert model.config.classes == 0
    assert model.provenance["task"] == "dino"
    (newest,) = sorted((whole / "checkpoints").iterdir())[-1:]
    tensors = {k: v for file in newest.rglob("*.safetensors") for k, v in load_file(file).items()}
    for name, tensor in model.state_dict().items():
        (kept,) = (v for k, v in tensors.items() if k.endswith(f"teacher.{name}"))
        assert torch.equal(kept, tensor)


def test_a_collapsed_run_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", steps=1, teacher_temperature=(50.0, 50.0))  # nearly uniform answers
    said = capsys.readouterr()
    assert "the teacher has collapsed to uniform answers" in said.out + said.err
