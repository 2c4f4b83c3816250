"""Learning without labels from trained weights: it does not ruin them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import BRIEF, LIGHT, call, fewer_digits
from steps import asked_to_stop
from training.kept import journal, outcome
from vitlab.evaluation.probes.probing import Probe
from vitlab.optim.optimizers import build
from vitlab.recipes.optimization import Optimization
from vitlab.recipes.recipe import Host
from vitlab.training.stop import Interrupted

HOST = Host(
    workers=0, report="no", probe="digits", probe_by="knn", checkpoint_every=0, effort=BRIEF
)
QUICK: dict[str, Any] = {
    "steps": 6, "batch": 64, "warmup": 0, "test_every": 0.4, "precision": "fp32",
    "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2,
}  # fmt: skip
RUINOUS = {"lr": 0.3, "head_lr": 0.3, "head_first": 0.0, "layer_decay": 1.0, "clip": 0.0}


@pytest.fixture(scope="module")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that know digits a little."""
    how = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/4", "steps": 30, "batch": 64, "ema": 0}
    with fewer_digits():
        run = vitlab.train(
            vitlab.recipe("digits", **how), tmp_path_factory.mktemp("base") / "run", host=LIGHT
        )
    model = vitlab.load(run.folder)
    model.seen = model.seen[:0]  # else these digits would be no measure
    return vitlab.save(model, tmp_path_factory.mktemp("base") / "model")


def go_on(start: Path, out: Path, host: Host = HOST, **chosen: Any) -> vitlab.Run:
    recipe = vitlab.recipe("mae", "digits", weights=str(start), **QUICK | chosen)
    return vitlab.train(recipe, out, host=host, resume=True)


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def same(a: Path, b: Path) -> bool:
    first, second = (vitlab.load(each).state_dict() for each in (a, b))
    shared = [key for key in first if key in second]
    assert len(shared) > 10
    return all(torch.equal(first[key], second[key]) for key in shared)


def test_what_would_ruin_features_ends_and_keeps_those_of_the_start(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = go_on(digits_run, tmp_path / "run", **RUINOUS)
    said = capsys.readouterr().err
    assert "the features got worse: 20-NN accuracy" in said
    assert "the best weights are those that the run started with" in said
    assert same(digits_run, run.folder)
    lines = journal(run)
    curve = [line["knn"] for line in lines if line["kind"] == "held-out"]
    assert run.metrics["knn"] == curve[0] > max(curve[1:]) + 0.05
    assert f"{curve[0]:.1%} at the start, {curve[0]:.1%} of" in run.metrics["notes"][-1]
    assert max(line["step"] for line in lines if "step" in line) < QUICK["steps"]


def test_killed_before_its_report_it_is_not_trained_on(
    digits_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("vitlab.training.run.conclude", interrupted)
        go_on(digits_run, tmp_path / "run", **RUINOUS)
    before = journal(tmp_path / "run")
    assert journal(go_on(digits_run, tmp_path / "run", **RUINOUS))[:-1] == before


def test_stopped_and_resumed_it_ends_at_the_same_bits(digits_run: Path, tmp_path: Path) -> None:
    """It has the best of its weights."""
    whole = go_on(digits_run, tmp_path / "whole")
    curve = [line["knn"] for line in journal(whole, "held-out")]
    assert len(curve) > 2
    assert whole.metrics["knn"] >= max(curve)
    with asked_to_stop(3), pytest.raises(Interrupted):
        go_on(digits_run, tmp_path / "parts")
    assert outcome(go_on(digits_run, tmp_path / "parts")) == outcome(whole)


def test_a_run_that_is_watched_from_its_middle_on_ends(digits_run: Path, tmp_path: Path) -> None:
    alone = replace(HOST, probe="", probe_by="fewshot")
    with asked_to_stop(3), pytest.raises(Interrupted):
        go_on(digits_run, tmp_path / "run", alone)
    run = go_on(digits_run, tmp_path / "run")
    assert "of the weights that are kept" in run.metrics["notes"][-1]
    assert "at the start" not in run.metrics["notes"][-1]


def test_a_small_fall_from_all_right_may_be_chance() -> None:
    with fewer_digits(1797):
        probe = Probe.of("digits", 1, "knn")
    low, images = probe.least(1.0), len(probe.test)
    assert 1 - 4 / images < low < 1 - 1 / images
    assert probe.least(0.5) == pytest.approx(0.5 - 1.96 * (0.25 / images) ** 0.5, abs=0.001)


def test_trained_weights_learn_more_slowly_than_what_begins_anew(digits_run: Path) -> None:
    fresh, later = vitlab.recipe("dino"), vitlab.recipe("dino", weights=str(digits_run))
    assert later.optimizer.lr == fresh.optimizer.lr / 20
    assert (later.optimizer.head_lr, later.optimizer.layer_decay) == (fresh.optimizer.lr, 0.75)
    assert (later.optimizer.head_first, later.pretext.anchor) == (0.2, 2.0)
    for task in ("lejepa", "mae"):
        assert vitlab.recipe(task, weights=str(digits_run)).pretext.anchor == 0
    own = vitlab.recipe("dino", weights=str(digits_run), lr=1e-5).optimizer
    assert (own.lr, own.head_lr) == (1e-5, fresh.optimizer.lr)
    model, beside = vitlab.load(digits_run), torch.nn.Linear(2, 2)
    how = Optimization(lr=0.1, head_lr=1.0, layer_decay=0.5)
    scales = {
        id(weight): group["lr_scale"]
        for group in build(model, how, beside).param_groups
        for weight in group["params"]
    }
    assert scales[id(beside.weight)] == scales[id(beside.bias)] == 10
    assert scales[id(model.get_parameter("blocks.0.attention.0.body.qkv.weight"))] == 0.5


def test_what_begins_anew_learns_first_alone(digits_run: Path, tmp_path: Path) -> None:
    host = replace(HOST, probe="", probe_by="fewshot")
    run = go_on(digits_run, tmp_path / "head", host, steps=4, head_first=0.9)
    assert same(digits_run, run.folder)
    later = go_on(digits_run, tmp_path / "all", host, steps=4, head_first=0.5)
    assert not same(digits_run, later.folder)


def test_a_run_that_nothing_watches_says_so(
    digits_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        f"--from {digits_run} --out {tmp_path / 'run'} --steps 1 --batch 8 --report no --workers 0 "
    )
    words += "--decoder-width 16 --decoder-depth 1 --decoder-heads 1"
    _, _, err = call(capsys, "pretrain", "digits", "--task", "mae", *words.split())
    assert "pass --probe LABELED to measure them at each test" in err
