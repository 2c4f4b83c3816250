"""Runs that learn from a teacher: what they keep, resumed, shared by processes, and refused."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitlab
from conftest import TINY
from distributed.ranks import on_ranks
from training.kept import EACH, journal, killed, outcome, resumed
from vitlab.errors import RunError
from vitlab.models.config import ViTConfig
from vitlab.runs.run_folder import RunFolder

STEPS: dict[str, Any] = TINY | {"steps": 3, "batch": 24, "warmup": 0.0, "lr": 3e-3}
STILL = {"rotate": 0, "shift": 0, "zoom": 0, "shear": 0}
DIGITS = tuple("0123456789")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights that know the digits in another order, at another size and width."""
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(
        "ViT(width=24,depth=1,heads=2,mlp=32)/4", 10, 12, channels=1, labels=DIGITS[::-1],
        mean=0.3, std=0.4, generator=generator,
    )  # fmt: skip
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    return vitlab.save(model, tmp_path_factory.mktemp("teacher") / "model")


def run(folder: Path, teacher: Path, **options: Any) -> Any:
    recipe = vitlab.recipe("digits", **STEPS | {"teacher": str(teacher)} | options)
    return vitlab.train(recipe, folder, resume=True, host=EACH)


WAYS: dict[str, dict[str, Any]] = {
    "token": {"distill": "hard", "distill_token": True} | STILL,
    "soft": {"distill": "soft", "mixup": 0.4},
}


@pytest.fixture(scope="module", params=WAYS)
def whole(
    request: pytest.FixtureRequest, teacher: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run in each of the ways, never interrupted; its folder has the name of the way."""
    folder = tmp_path_factory.mktemp("whole") / request.param
    run(folder, teacher, **WAYS[request.param])
    return folder


def test_killed_and_resumed_with_the_same_bits(whole: Path, teacher: Path, tmp_path: Path) -> None:
    recipe = RunFolder(whole).recipe
    killed(2, recipe, tmp_path / "cut")
    assert not (tmp_path / "cut" / "model").exists()
    assert outcome(resumed(recipe, tmp_path / "cut")) == outcome(whole)


def shared(folder: Path, teacher: Path, way: str) -> float:
    return float(run(folder, teacher, **WAYS[way]).metrics["nll"])


def test_two_processes_learn_what_one_does(whole: Path, teacher: Path, tmp_path: Path) -> None:
    """They go on with the run's copy of the teacher, whatever became of the teacher."""
    folder, own = RunFolder(tmp_path / "two"), Path(shutil.copytree(teacher, tmp_path / "teacher"))
    for _ in range(2):
        for said in on_ranks(2, partial(shared, folder.path, own, whole.name), tmp_path):
            assert "value" in said, said.get("trace", said)
        lines = folder.journal.file.read_text().splitlines(keepends=True)
        folder.journal.file.write_text("".join(lines[:-1]))
        shutil.rmtree(own, ignore_errors=True)
    one, two = (vitlab.load(each).state_dict() for each in (whole, tmp_path / "two"))
    for name, tensor in two.items():
        torch.testing.assert_close(tensor, one[name], rtol=0, atol=5e-4)


def test_what_is_learned_beside_the_model_is_in_checkpoints_alone(
    teacher: Path, tmp_path: Path
) -> None:
    done = run(tmp_path / "run", teacher, distill_token=True)
    config = done.model.config
    assert isinstance(config, ViTConfig)
    assert (config.pool, config.registers, config.has_token) == ("prefix", 1, True)
    files = sorted((tmp_path / "run" / "checkpoints").rglob("*.safetensors"))
    own = {name: t for name, t in load_file(files[-1]).items() if name.startswith("task")}
    assert {tuple(tensor.shape) for tensor in own.values()} == {(10,)}
    assert all(tensor.any() for tensor in own.values())
    assert not any("difference" in name or "task" in name for name in done.model.state_dict())
    assert {"accuracy", "agreed", "loss"} <= journal(done)[0].keys()
    assert done.model.provenance["teacher"] == str(teacher)
    guide, own = vitlab.load(RunFolder(done.folder).guide), vitlab.load(teacher).state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in guide.state_dict().items())


def test_another_teacher_is_no_way_to_go_on(whole: Path, tmp_path: Path) -> None:
    """The run has a copy of it, which may not change."""
    folder = RunFolder(Path(shutil.copytree(whole, tmp_path / "run")))
    lines = folder.journal.file.read_text().splitlines(keepends=True)
    folder.journal.file.write_text("".join(lines[:-1]))
    model = vitlab.load(folder.guide)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    vitlab.save(model, folder.guide)
    with pytest.raises(RunError, match="the tokenizer or teacher has changed since"):
        resumed(folder.recipe, folder.path)
