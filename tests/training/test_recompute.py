"""Recomputed activations, and how many images fit."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import vitlab
from conftest import LIGHT, TINY
from steps import first_peaks
from training.kept import EACH, killed, resumed, weights
from vitlab.runs.run_folder import RunFolder
from vitlab.training import trial_steps
from vitlab.training.step import Trainer

QUICK = TINY | {"epochs": 1, "batch": 256}
RECOMPUTE = replace(EACH, checkpoint_activations=True)


def test_recomputed_activations_give_the_same_bits_in_less_memory(tmp_path: Path) -> None:
    """In plain fp32: test_pretext_runs.py."""
    how = QUICK | {"dropout": 0.1, "drop_path": 0.3, "precision": "bf16-pure", "depth": 4}
    recipe = vitlab.recipe("digits", **how)
    with first_peaks() as peaks:
        runs = [vitlab.train(recipe, tmp_path / str(h), host=h) for h in (EACH, RECOMPUTE)]
    assert weights(runs[0]) == weights(runs[1])
    assert peaks[1] < 0.6 * peaks[0]
    assert all("forward" not in vars(block) for block in runs[1].model.blocks)


@pytest.mark.parametrize("name", ["small", "tokenizer"])
def test_models_without_blocks_have_none_to_recompute(name: str, tmp_path: Path) -> None:
    how = {"model": "BiT-R(1-1)x1"} if name == "small" else {"steps": 1}
    recipe = vitlab.recipe(name, "digits", **how)
    with pytest.raises(ValueError, match="checkpoint_activations applies to Vision Transformers"):
        vitlab.train(recipe, tmp_path / "run", host=RECOMPUTE)
    assert not (tmp_path / "run").exists()


def test_the_peak_is_that_of_tensors_that_work_makes() -> None:
    inputs, cpu = torch.randn(4, 8), torch.device("cpu")

    def work() -> None:
        inputs.exp().exp()

    assert trial_steps.peak_beside(work, cpu, 1000) == 2 * inputs.nbytes
    with pytest.raises(MemoryError):
        trial_steps.peak_beside(work, cpu, 2 * inputs.nbytes - 1)


def test_pieces_chosen_by_the_machine_are_kept_and_a_run_given_them_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # room for 70 images, and later for all: the run keeps to what it decided
    recipe = vitlab.recipe("digits", **QUICK | {"micro_batch": "auto", "dropout": 0.2})
    with monkeypatch.context() as patch:
        room = trial_steps.BESIDE + 70 * 1e6 * trial_steps.KEPT
        patch.setattr(trial_steps, "free_memory", lambda device: room / trial_steps.SHARE)
        patch.setattr(trial_steps, "PER_MAC", 10**9)
        patch.setattr(trial_steps, "_needed", lambda session, whole: (0.0, 1e6))
        killed(1, recipe, tmp_path / "auto")
    assert "64 of 256 images per pass, which may change the result" in capsys.readouterr().err
    run = resumed(recipe, tmp_path / "auto")
    assert RunFolder(run.folder).decisions.micro_batch == 64
    given = recipe.changed(micro_batch=64)
    assert weights(run) == weights(vitlab.train(given, tmp_path / "given", host=EACH))


def test_with_room_for_all_the_batch_is_whole_and_what_was_measured_leaves_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = vitlab.recipe("digits", **QUICK | {"dropout": 0.2, "rho": 0.05})
    whole = vitlab.train(recipe.changed(micro_batch=0), tmp_path / "whole", host=LIGHT)
    monkeypatch.setattr(trial_steps, "PER_MAC", 10**9)
    measured = vitlab.train(recipe, tmp_path / "measured", host=LIGHT)
    assert RunFolder(measured.folder).decisions.micro_batch == 256
    assert weights(measured) == weights(whole)


def test_memory_that_is_lacking_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = vitlab.recipe("digits", **QUICK)
    with monkeypatch.context() as patch:
        patch.setattr(trial_steps, "free_memory", lambda device: 10_000)
        with pytest.raises(ValueError, match="out of memory with one image per pass: choose"):
            vitlab.train(recipe, tmp_path / "run", host=LIGHT)
    with monkeypatch.context() as patch:  # room for one image, and two are mixed
        room = trial_steps.BESIDE + 1.5e6 * trial_steps.KEPT
        patch.setattr(trial_steps, "free_memory", lambda device: room / trial_steps.SHARE)
        patch.setattr(trial_steps, "PER_MAC", 10**9)
        patch.setattr(trial_steps, "_needed", lambda session, whole: (0.0, 1e6))
        with pytest.raises(ValueError, match="out of memory"):
            vitlab.train(recipe.changed(mixup=0.5), tmp_path / "run", host=LIGHT)
    assert not (tmp_path / "run").exists()

    def full(self: Trainer, *inputs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nand so on")

    monkeypatch.setattr(Trainer, "forward", full)
    with pytest.raises(ValueError, match=r"out of memory.* with 256 images per pass: micro") as e:
        vitlab.train(recipe, tmp_path / "run", host=LIGHT)
    assert "\n" not in str(e.value)
