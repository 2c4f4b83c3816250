"""Recomputed activations, and how many images fit."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import TINY
from steps import each_step, killed_before
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training.saving.state import State
from vitlab.training.step import recompute as memory
from vitlab.training.step.trainer import Trainer

QUICK = TINY | {"epochs": 1, "batch": 256}


def weights(run: vitlab.Run) -> str:
    return sha256(run.folder / "model" / "model.safetensors")


@pytest.mark.parametrize("precision", ["fp32", "bf16-pure"])
def test_recomputed_activations_give_the_same_bits_in_less_memory(
    precision: str, tmp_path: Path
) -> None:
    how = QUICK | {"dropout": 0.1, "drop_path": 0.3, "precision": precision, "depth": 4, "ema": 0.0}
    recipe, kept = vitlab.recipe("digits", **how), []

    def count(trainer: Trainer, state: State, batch: Any) -> None:
        if not state.step:
            kept.append(memory.kept_for_backward(lambda: trainer.loss(batch)))
            torch.manual_seed(5)

    with each_step(before=count):
        runs = [
            vitlab.train(recipe, tmp_path / str(on), host=Host(checkpoint_activations=on))
            for on in (False, True)
        ]
    assert weights(runs[0]) == weights(runs[1])
    assert kept[1] < 0.3 * kept[0]
    assert all("forward" not in vars(block) for block in runs[1].model.blocks)


def test_a_resnet_has_no_blocks_to_recompute(photos: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", str(photos), model="BiT-R(1-1)x1", image_size=32, epochs=1)
    with pytest.raises(ValueError, match="checkpoint_activations applies to Vision"):
        vitlab.train(recipe, tmp_path / "run", host=Host(checkpoint_activations=True))
    assert not (tmp_path / "run").exists()


def test_what_a_forward_pass_keeps_is_counted_once_and_without_weights() -> None:
    layer, inputs = torch.nn.Linear(8, 8), torch.randn(4, 8)
    kept = memory.kept_for_backward(lambda: layer(inputs).relu().relu().sum())
    assert kept == inputs.nbytes + 2 * 4 * 8 * 4  # the input, and each ReLU's own result


@pytest.mark.parametrize(("room", "size"), [(1000, 100), (99, 50), (25, 25), (12, 7), (1, 1)])
def test_the_largest_piece_that_fits(room: int, size: int) -> None:
    assert memory.largest_that_fits(100, lambda n: n <= room) == size


def test_where_nothing_fits_that_is_said() -> None:
    with pytest.raises(ValueError, match="out of memory with one image per pass"):
        memory.largest_that_fits(8, lambda n: False)


def test_pieces_chosen_by_the_machine_are_kept_and_a_run_given_them_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # room for about 70 images, and later for all: the run keeps to what it decided
    tries: list[int] = []

    def small(batch: int, fits: Any) -> int:
        tries.append(batch)
        return next(n for n in memory.pieces_to_try(batch) if n <= 70)

    recipe = vitlab.recipe("digits", **QUICK | {"micro_batch": "auto", "dropout": 0.2})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), killed_before(5):
        patch.setattr(memory, "largest_that_fits", small)
        vitlab.train(recipe, tmp_path / "auto", host=Host(checkpoint_every=0))
    run = vitlab.train(recipe, tmp_path / "auto", resume=True)
    assert tries == [256]
    assert RunFolder(run.folder).decisions.micro_batch == 64
    given = vitlab.recipe("digits", **QUICK | {"micro_batch": 64, "dropout": 0.2})
    assert weights(run) == weights(vitlab.train(given, tmp_path / "given"))


def test_with_room_for_all_the_batch_is_whole(tmp_path: Path) -> None:
    run = vitlab.train(vitlab.recipe("digits", **QUICK | {"micro_batch": "auto"}), tmp_path / "run")
    assert RunFolder(run.folder).decisions.micro_batch == 256


def test_memory_that_is_lacking_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Trainer, *inputs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nand so on")

    monkeypatch.setattr(Trainer, "forward", full)
    with pytest.raises(ValueError, match=r"out of memory.* with 256 images per pass: --micro"):
        vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "run")


def test_a_gpu_that_runs_out_tries_less(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("empty_cache", None),
        ("reset_peak_memory_stats", None),
        ("mem_get_info", (0, 1000)),
        ("max_memory_reserved", 800),
    ):
        monkeypatch.setattr(torch.cuda, name, lambda *args, value=value: value)

    def learn(size: int) -> None:
        if size > 30:
            raise torch.OutOfMemoryError

    def fits(size: int) -> bool:
        return memory.try_on_gpu(learn, size, torch.device("cpu"))

    assert memory.largest_that_fits(100, fits) == 25
