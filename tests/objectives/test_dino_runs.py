"""Whole runs of DINO: killed and resumed, on two processes, collapsed, and what they leave."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitlab
from distributed.ranks import on_ranks
from steps import killed_before
from vitlab.errors import OptionError
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder

QUICK: dict[str, Any] = {
    "model": "ViT(width=16,depth=1,heads=2,mlp=16)/2", "image_size": 8, "prototypes": 16,
    "head_width": 16, "bottleneck": 8, "local_crops": 2, "batch": 32, "steps": 6, "warmup": 0,
    "mean": 0.5, "std": 0.5, "precision": "fp32", "drop_path": 0.2, "freeze_last": 0.05,
    "test_every": 0.1,
}  # fmt: skip
MORE = {"ibot": 1.0, "koleo": 0.1, "registers": 1}


def train(folder: Path, resume: bool = False, **chosen: Any) -> Path:
    recipe = vitlab.recipe("dino", "digits", **QUICK | chosen)
    host = Host(workers=0, checkpoint_every=0, device="cpu")
    return vitlab.train(recipe, folder, resume=resume, host=host).folder


def lines(run: Path) -> list[dict[str, Any]]:
    """Those of the journal, without how long they took."""
    timed = {"seconds", "images_per_second", "peak_memory", "run", "report"}
    return [
        {key: value for key, value in line.items() if key not in timed}
        for line in RunFolder(run).journal.read()
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole") / "run", **MORE)


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path: Path, whole: Path) -> None:
    with killed_before(4), pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", **MORE)
    run = train(tmp_path / "run", resume=True, **MORE)
    assert lines(run) == lines(whole)
    newest = sorted((whole / "checkpoints").iterdir())[-1].name
    files = [file.relative_to(whole) for file in (whole / "checkpoints" / newest).rglob("*.saf*")]
    for file in (Path("model/model.safetensors"), *files):
        assert sha256(run / file) == sha256(whole / file)


def test_two_processes_learn_as_one(tmp_path: Path) -> None:
    def work() -> str:
        return str(train(tmp_path / "two", drop_path=0.0))

    for said in on_ranks(2, work, tmp_path / "ranks"):
        assert "value" in said, said.get("trace")
    alone = train(tmp_path / "one", drop_path=0.0)
    pairs = zip(lines(alone), lines(tmp_path / "two"), strict=True)
    for one, other in pairs:
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    found, wanted = (
        load_file(run / "model" / "model.safetensors") for run in (tmp_path / "two", alone)
    )
    for name, tensor in wanted.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5)


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


def test_small_crops_that_the_patch_does_not_divide_are_refused_before_training(
    tmp_path: Path,
) -> None:
    with pytest.raises(OptionError, match="local_size=5 is not a multiple of patch=2: try 4 or 6"):
        train(tmp_path / "run", local_size=5)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
