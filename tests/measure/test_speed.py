"""Speed and its figures, and a model that is left as it was."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import call
from vitlab.errors import OptionError
from vitlab.measure.summary import measure

NAME = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def test_speed_is_the_median_of_enough_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only forward passes move, each by its own time."""
    model = vitlab.create(NAME, 3, 8).train()
    now, passes, shapes = [0.0], iter([9.0, 9.0, 1.0, 5.0, 2.0, 1.5, 8.0, 8.0]), []

    def work(module: Any, args: tuple[torch.Tensor, ...]) -> None:
        now[0] += next(passes)
        shapes.append(tuple(args[0].shape))
        assert not model.training
        assert torch.is_inference_mode_enabled()

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    hook = model.register_forward_pre_hook(work)
    found = vitlab.measure.speed(model, batch=4, device="cpu", seconds=9.0)
    hook.remove()
    # two to warm up; then 1, 5, 2 are three, 9.5 s after 1.5 more are enough
    assert shapes == [(4, 3, 8, 8)] * 7  # the last one counts the memory
    assert (found.batch, found.latency, found.images_per_second) == (4, 1.75, 4 / 1.75)
    assert found.peak_memory > 4 * 3 * 8 * 8 * 4


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    model = vitlab.create(NAME, 3, 8).train()
    model.stem.eval()
    before = [module.training for module in model.modules()]

    def fail(*_: Any) -> None:
        raise RuntimeError("in the middle")

    if fails:
        model.head.register_forward_hook(fail)
        for look in (
            lambda: vitlab.measure.speed(model, device="cpu", seconds=0),
            lambda: vitlab.inspect.rollout(model, torch.randn(1, 3, 9, 8)),
        ):
            with pytest.raises((RuntimeError, OptionError)):
                look()
    else:
        vitlab.measure.speed(model, device="cpu", seconds=0)
        vitlab.inspect.rollout(model, torch.randn(1, 3, 8, 8))
        vitlab.measure.cost(model)
    assert [module.training for module in model.modules()] == before
    model.encode(torch.randn(2, 3, 8, 8)).sum().backward()  # no inference tensors among its weights


@pytest.mark.parametrize("fused", [False, True])
def test_figures_of_a_name_and_of_a_folder(fused: bool, tmp_path: Path) -> None:
    figures = measure(NAME, classes=3, image_size=8, timed=True, fused=fused, batch=2, seconds=0.2)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["model"] == NAME
    assert figures["image_size"] == 8
    assert figures["batch"] == 2
    assert figures["images_per_second"] == pytest.approx(2 / figures["latency"])
    model = vitlab.create(NAME, 3, 8)
    assert figures["params"] == sum(weight.numel() for weight in model.parameters())
    assert figures["params"] == sum(part["params"] for part in figures["parts"])
    assert figures["macs"] == sum(part["macs"] for part in figures["parts"])
    folder = vitlab.save(model, tmp_path / "saved")
    saved = measure(str(folder))
    assert saved == {key: figures[key] for key in saved}
    assert measure(str(folder), image_size=16)["image_size"] == 16
    with pytest.raises(OptionError, match="classes applies only to a model given by name"):
        measure(str(folder), classes=4)


def test_of_several_models_it_is_said_which_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "measure", NAME, "ViT-Ti/16", "--json")
    assert (code, len(json.loads(out)["models"])) == (0, 2)
    assert err.splitlines() == [f"model 1 of 2: {NAME}", "model 2 of 2: ViT-Ti/16"]
    assert not call(capsys, "measure", NAME, "--json")[2]
