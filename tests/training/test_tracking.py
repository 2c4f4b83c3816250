"""Trackers see the journal's numbers, and cannot hurt a run."""

import builtins
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, LIGHT
from docs import pages
from training.kept import PLAIN, weights
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder


class Fake(ModuleType):
    """Stands in for wandb and trackio, which share these three functions."""

    def __init__(self, name: str, fail: str = "") -> None:
        super().__init__(name)
        self.started: dict[str, Any] = {}
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.fail, self.finished = fail, False

    def init(self, **how: Any) -> None:
        if self.fail == "init":
            raise ConnectionError("nobody there\nmore of it")
        self.started = how

    def log(self, numbers: dict[str, float], step: int) -> None:
        if self.fail == "log":
            raise SystemExit(3)
        self.lines.append((step, numbers))

    def finish(self) -> None:
        self.finished = True


def test_a_tracker_is_told_recipe_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake("trackio")
    monkeypatch.setitem(sys.modules, "trackio", fake)
    vitlab.train(
        vitlab.recipe("digits", **PLAIN), tmp_path / "run", host=Host(track="trackio", effort=BRIEF)
    )
    assert fake.started["config"]["optimizer"]["lr"] == 2e-3
    assert fake.started["name"].startswith("run-")
    assert [step for step, line in fake.lines if "train/loss" in line] == list(range(1, 7))
    assert "test/accuracy" in fake.lines[-1][1]
    assert fake.finished


def test_tensorboard_gets_event_files_that_it_can_read(whole: vitlab.Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    host = Host(track="tensorboard", effort=BRIEF)
    run = vitlab.train(vitlab.recipe("digits", **PLAIN), tmp_path / "run", host=host)
    events = EventAccumulator(str(run.folder / "tensorboard"))
    events.Reload()
    assert [each.step for each in events.Scalars("train/loss")] == list(range(1, 7))
    assert events.Scalars("test/accuracy")[-1].value == pytest.approx(run.metrics["accuracy"])
    assert weights(run) == weights(whole)


FAILING = {
    "init": "wandb failed, continuing without it: nobody there",
    "log": "wandb failed, continuing without it: 3",
}


@pytest.mark.parametrize("fail", FAILING)
def test_a_tracker_that_fails_is_told_of_once_and_the_run_goes_on(
    fail: str,
    whole: vitlab.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", Fake("wandb", fail))
    run = vitlab.train(
        vitlab.recipe("digits", **PLAIN), tmp_path / "run", host=Host(track="wandb", effort=BRIEF)
    )
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("wandb "))
    assert said.startswith(FAILING[fail])
    assert weights(run) == weights(whole)


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio"])
def test_a_missing_package_is_named_before_anything_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(module: str, *rest: Any) -> Any:
        if module.split(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(module, *rest)

    for module in [each for each in sys.modules if name in each.split(".")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=rf'track="{name}".* needs .*: pip install {name}$'):
        vitlab.train(
            vitlab.recipe("digits", **PLAIN),
            tmp_path / "run",
            host=Host(track=name, effort=BRIEF),  # type: ignore[arg-type]
        )
    assert not (tmp_path / "run").exists()


def test_a_function_gets_every_line_and_may_end_a_run_that_can_be_resumed(tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", model="ViT(width=8,depth=1,heads=1,mlp=8)/4", steps=2)
    seen: list[dict[str, Any]] = []
    run = vitlab.train(recipe, tmp_path / "run", on_line=seen.append, host=LIGHT)
    assert seen == RunFolder(run.folder).journal.read()
    assert {line["kind"] for line in seen} == {"train", "test", "result"}

    def stop(line: dict[str, Any]) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        vitlab.train(recipe, tmp_path / "cut", on_line=stop, host=LIGHT)
    resumed = vitlab.train(recipe, tmp_path / "cut", resume=True, host=LIGHT)
    assert resumed.metrics["nll"] == run.metrics["nll"]


def test_the_page_on_training_passes_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run(pages.ROOT / "docs" / "training.md", BRIEF)
    code = RunFolder(tmp_path / "runs" / "own").code
    assert [code["transform"], code["loss"]] == [
        "__main__.grayscale_sometimes",
        "__main__.squared_error",
    ]
