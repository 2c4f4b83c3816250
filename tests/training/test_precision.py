"""bf16 beside fp32 masters, and a compiled step, against plain forms of the same."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from conftest import BRIEF, LIGHT, TINY
from training.kept import PLAIN, weights
from vitlab.models.cost import cost
from vitlab.recipes.recipe import Host
from vitlab.training import checkpoints
from vitlab.training.precision import TrainingEngine
from vitlab.training.run import worth_compiling


@pytest.mark.parametrize(
    "how",
    [
        {"stem": "hmlp", "stem_norm": "batch", "positions": "rope", "qk_norm": True},
        {"pool": "attention", "layer_scale": 0.1, "drop_path": 0.5, "registers": 2},
        {"model": "BiT-R(1-1)x1", "image_size": 32},
    ],
)
def test_gradients_of_the_bf16_copy_reach_the_masters(how: dict[str, Any]) -> None:
    choices = {"image_size": 32} | how
    name = choices.pop("model", "ViT-Ti2/16")
    model = vitlab.create(name, classes=5, **choices).train()
    with torch.no_grad():  # a zero head would hide the rest
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():
                weight.normal_(std=0.1)
    exact, engine = copy.deepcopy(model), TrainingEngine(model, "bf16-pure")
    images, labels = torch.randn(8, 3, 32, 32), torch.arange(8) % 5
    engine.begin()
    for model_, pixels in ((engine.network, engine.images(images)), (exact, images)):
        torch.manual_seed(0)
        nn.functional.cross_entropy(model_(pixels).float(), labels).backward()
    engine.collect()
    ours = torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None])
    theirs = torch.cat([w.grad.flatten() for w in exact.parameters() if w.grad is not None])
    assert ours.dtype is torch.float32
    assert torch.cosine_similarity(ours, theirs, dim=0) > 0.98
    for (name, mine), theirs in zip(model.named_buffers(), exact.buffers(), strict=True):
        assert mine.dtype == theirs.dtype  # running statistics went into the masters' own
        torch.testing.assert_close(mine, theirs, rtol=0.05, atol=0.02, msg=name)


def test_updates_too_small_for_bf16_add_up_in_the_masters() -> None:
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    engine = TrainingEngine(model, "bf16-pure")
    with torch.no_grad():
        for _ in range(100):
            model.weight += 1e-4  # a bf16 one stays 1: its neighbor is 1 + 2^-7
    engine.begin()
    assert torch.equal(engine.network.weight, torch.full((4, 4), 1.01).bfloat16())


def test_pieces_are_added_up_in_fp32() -> None:
    model = nn.Linear(1, 1, bias=False)
    engine = TrainingEngine(model, "bf16-pure")
    for each in (1.0, 2**-9, 2**-9):
        engine.network.weight.grad = torch.tensor([[each]]).bfloat16()
        engine.collect()
    assert model.weight.grad is not None
    assert model.weight.grad.item() == 1 + 2**-8


def compiled_by(patch: pytest.MonkeyPatch, seen: list[int], fail: str = "") -> None:
    """Let `torch.compile` have a compiler that notes sizes of batches, or fails."""
    real = torch.compile

    def count(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        if fail:
            raise OSError(fail)
        seen.append(next(len(t) for t in inputs if t.ndim == 4 and t.shape[1] in (1, 3)))
        return graph.forward

    patch.setattr(torch, "compile", lambda m, dynamic: real(m, dynamic=dynamic, backend=count))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_a_compiled_step_is_compiled_once_a_size_and_changes_no_name(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = PLAIN | {"precision": precision, "ema": 0.0}
    plain = vitlab.train(vitlab.recipe("digits", **choices), tmp_path / "plain", host=LIGHT)
    seen: list[int] = []
    compiled_by(monkeypatch, seen)
    run = vitlab.train(
        vitlab.recipe("digits", **choices), tmp_path / "run", host=Host(compile="yes", effort=BRIEF)
    )
    assert sorted(seen) == [32, 48]  # 80 in pieces of 48; evaluation's sizes run as they are
    assert weights(run) == weights(plain)
    found, _ = checkpoints.load(run.folder / "checkpoints")
    before, _ = checkpoints.load(plain.folder / "checkpoints")
    assert found is not None
    assert before is not None
    assert found.tensors.keys() == before.tensors.keys()


@pytest.mark.slow
def test_batches_short_of_damaged_images_are_not_compiled(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "red" / "003.png").write_bytes(b"\x89PNG no more")
    seen: list[int] = []
    compiled_by(monkeypatch, seen)
    recipe = vitlab.recipe("small", str(photos), **TINY | {"epochs": 1, "batch": 16})
    vitlab.train(
        recipe, tmp_path / "run", host=Host(compile="yes", workers=0, max_bad=0.1, effort=BRIEF)
    )
    assert len(seen) == 1


def test_a_compiler_that_fails_is_told_of_and_done_without(
    whole: vitlab.Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compiled_by(monkeypatch, [], fail="no compiler\nand much more")
    host = Host(compile="yes", effort=BRIEF)
    run = vitlab.train(vitlab.recipe("digits", **PLAIN), tmp_path / "run", host=host)
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "torch.compile" in line)
    assert "no compiler" in line
    assert weights(run) == weights(whole)


def test_only_long_runs_on_a_gpu_are_compiled() -> None:
    batch = 32 * cost(vitlab.create("ViT-S/14", 10, 224).config).macs
    assert not worth_compiling(188, batch)  # 200 images, 30 epochs: 5 s, compiled in 31
    assert not worth_compiling(1_560, batch)
    assert worth_compiling(12_500, batch)
    assert worth_compiling(10_000, 1)
