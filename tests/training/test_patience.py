"""Early stopping: what is looked at, when it ends, and what is kept."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import TINY
from steps import killed_before
from vitlab.data.holdout import with_validation
from vitlab.data.learning import open_to_learn
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.training.state import Best

QUICK = TINY | {"epochs": 8, "batch": 128, "patience": 2, "test_every": 0.5}


def test_the_best_is_the_most_accurate_and_of_equals_the_less_surprised() -> None:
    best, model = Best(), torch.nn.Linear(1, 1, bias=False)
    looks = [(0.5, 1.0), (0.6, 1.2), (0.6, 1.1), (0.6, 1.1), (0.4, 0.1)]
    for step, (accuracy, loss) in enumerate(looks, 1):
        torch.nn.init.constant_(model.weight, step)
        best.compare(step, accuracy, loss, model)
    assert (best.step, best.since) == (3, 2)
    assert best.exhausted(2)
    assert not best.exhausted(3)
    assert not best.exhausted(0)
    best.restore(model)
    assert model.weight.item() == 3


def test_a_tenth_of_each_class_is_held_out_of_training_and_never_of_testing() -> None:
    before = open_to_learn("digits")
    after = with_validation(before)
    assert after.validation is not None
    assert len(after.train) + len(after.validation) == len(before.train) == 1438
    assert after.test is before.test
    counts = [np.bincount(each.labels.values) for each in (after.validation, before.train)]
    assert 110 < counts[0].sum() < 178  # three deviations around a tenth
    assert np.all(counts[0] > 0)
    assert np.all(counts[0] < 0.25 * counts[1])
    pixels = {after.train.image(i).content() for i in range(len(after.train))}
    others = [after.validation.image(i).content() for i in range(len(after.validation))]
    assert sum(each in pixels for each in others) <= 1  # digits has a twin or two of its own
    assert with_validation(after) is after


def falling(monkeypatch: pytest.MonkeyPatch, best: int) -> None:
    """Make the look number `best` the best one."""
    from vitlab.training import observer

    real = observer.curve_point

    def point(probabilities: Any, labels: Any) -> dict[str, float]:
        values = real(probabilities, labels)
        looks.append(values["accuracy"])
        return values | {"accuracy": 1.0 - 0.1 * abs(len(looks) - best)}

    looks: list[float] = []
    monkeypatch.setattr(observer, "curve_point", point)


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_a_run_ends_when_patience_does_and_keeps_the_best(
    ema: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = vitlab.recipe("digits", **QUICK | {"ema": ema})
    seen = {}
    real = Best.compare

    def look(self: Best, step: int, *rest: Any) -> None:
        real(self, step, *rest)
        seen[step] = {n: t.clone() for n, t in rest[-1].state_dict().items()}

    monkeypatch.setattr(Best, "compare", look)
    falling(monkeypatch, best=3)
    run = vitlab.train(recipe, tmp_path / "run")
    assert len(seen) == 5
    best = list(seen)[2]
    for name, tensor in vitlab.load(run.folder).state_dict().items():
        assert torch.equal(tensor, seen[best][name])
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["images"] == 359  # the test images, all of them, and only for the figures
    assert max(line["step"] for line in lines if "step" in line) == list(seen)[-1]


def test_stopped_and_resumed_patience_ends_at_the_same_bits(
    tmp_path: Path,
) -> None:
    recipe = vitlab.recipe("digits", **QUICK | {"lr": 0.05, "epochs": 6})
    whole = vitlab.train(recipe, tmp_path / "whole")
    for at in (4, 15):  # before the first look, and after some
        with killed_before(at), pytest.raises(KeyboardInterrupt):
            host = Host(checkpoint_every=0)
            vitlab.train(recipe, tmp_path / "run", resume=True, host=host)
    run = vitlab.train(recipe, tmp_path / "run", resume=True)
    file = "model/model.safetensors"
    assert sha256(run.folder / file) == sha256(whole.folder / file)
    assert run.metrics["accuracy"] == whole.metrics["accuracy"]
