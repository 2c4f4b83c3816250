"""A step that was not finite, kept and computed again: the layer that is to blame is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vitlab
from conftest import TINY, call
from steps import each_step
from vitlab.errors import DivergedError
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import plan
from vitlab.training.replay import watched
from vitlab.training.state import State
from vitlab.training.step import Trainer

HOST = Host(workers=0, check_duplicates="no", device="cpu", report="no")
WILD = TINY | {"lr": 1e30, "clip": 0.0, "warmup": 0, "steps": 6, "batch": 32, "precision": "fp32"}


def diverged(folder: Path, recipe: str = "digits", **how: Any) -> list[dict[str, Tensor]]:
    """A run whose second step is not finite; its weights before each step."""
    before: list[dict[str, Tensor]] = []

    def look(trainer: object, state: State, batch: object) -> None:
        before.append({name: t.clone() for name, t in state.checkpoint().tensors.items()})

    with each_step(before=look), pytest.raises(DivergedError):
        vitlab.train(vitlab.recipe(recipe, "digits", **WILD | how), folder, host=HOST)
    return before


def test_the_layer_and_the_images_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = diverged(tmp_path / "run")
    code, out, _ = call(capsys, "replay", str(tmp_path / "run"), "--device", "cpu", "--json")
    found = json.loads(out)
    assert (code, found["step"], found["fault"], found["what"]) == (0, 2, "loss", "output")
    assert found["layer"].startswith("blocks.0.")
    assert found["largest"] > 1e19  # squared, it is not finite
    assert 0 < len(found["images"]) <= 10
    assert found["notes"] == []
    code, out, _ = call(capsys, "replay", str(tmp_path / "run"))
    assert out.startswith(f"step 2 (loss not finite): {found['layer']} is the first layer")
    kept = load_file(RunFolder(tmp_path / "run").fault / "state.safetensors")
    assert all(torch.equal(before[1][name], kept[name]) for name in kept if "model." in name)


def test_the_kept_step_is_the_first_of_the_session(tmp_path: Path) -> None:
    diverged(tmp_path / "run")  # steps 2, 3 and 4 are not finite
    about = json.loads((tmp_path / "run" / "fault" / "fault.json").read_text())
    assert (about["step"], about["weights_after"], about["processes"]) == (2, 1, 1)


def test_a_task_without_labels_is_replayed_with_its_own_modules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/2", "mean": 0.5, "std": 0.5, "ema": 0.0}
    decoder = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
    diverged(tmp_path / "run", "mae", **own | decoder)
    code, out, _ = call(capsys, "replay", str(tmp_path / "run"), "--json")
    found = json.loads(out)
    assert (code, found["what"]) == (0, "output")
    assert found["layer"].startswith(("model.", "task."))


@pytest.mark.parametrize("what", ["finished", "nothing"])
def test_there_must_be_such_a_step(
    what: str, digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = digits_run if what == "finished" else tmp_path
    code, _, said = call(capsys, "replay", str(place))
    assert code == 2
    assert ("was finite" if what == "finished" else "contains no run") in said


@pytest.mark.parametrize("file", ["fault.json", "state.safetensors"])
def test_a_damaged_file_is_said_in_a_line(
    file: str, digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(digits_run, tmp_path / "run")
    (run / "fault").mkdir()
    (run / "fault" / "fault.json").write_text("{}" if file != "fault.json" else "{")
    (run / "fault" / "state.safetensors").write_bytes(b"no tensors")
    code, _, said = call(capsys, "replay", str(run))
    assert (code, "is damaged and cannot be replayed" in said) == (2, True)


def spoiled(folder: Path, late: bool = False, **how: Any) -> vitlab.Run:
    """A run in whose third step the pixels are not numbers."""
    handles: list[Any] = []

    def spoil(trainer: Trainer, state: State, batch: object) -> None:
        trainer.late = late
        if state.step == 2:
            hook = lambda module, args: (args[0] * torch.nan, *args[1:])  # noqa: E731
            stem = state.model.get_submodule("stem")
            handles.append(stem.register_forward_pre_hook(hook))

    with each_step(before=spoil, after=lambda *_: [each.remove() for each in handles]):
        recipe = vitlab.recipe("digits", **WILD | {"lr": 1e-3, "clip": 1.0} | how)
        run = vitlab.train(recipe, folder, host=HOST)
    assert run.metrics["skipped_steps"] == 1
    return run


def test_a_fault_that_is_not_repeated_is_said_to_be_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled(tmp_path / "run", dropout=0.1)
    code, out, said = call(capsys, "replay", str(tmp_path / "run"))
    assert (code, "step 3 (loss not finite): every value is finite" in out) == (0, True)
    assert "another device or kernel" in said


def test_weights_of_a_later_step_are_said_to_be_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "LINES", 3)
    spoiled(tmp_path / "run", late=True)  # its figures are read while the fourth step runs
    assert "the weights are those after step 4" in call(capsys, "replay", str(tmp_path / "run"))[2]


class Roots(nn.Module):
    """Roots of values, whose gradient at 0 is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


def test_a_gradient_that_is_not_finite_is_found_where_it_begins() -> None:
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), Roots(), nn.Linear(2, 1))
    nn.init.ones_(net[0].weight)  # type: ignore[arg-type]
    images = torch.tensor([[1.0, 2.0], [0.0, 0.0]])
    with watched(net) as found:
        net(images).sum().backward()
    assert (found.what, found.layer, found.rows) == ("gradient", "1", [1])
    with watched(net) as found:
        net(images[:1] * torch.inf).sum()
    assert (found.what, found.layer) == ("output", "0")
