"""Runs that vary and mix their images: the same whatever the pieces and the workers."""

import json
from pathlib import Path

import pytest
import torch

import vitlab
from conftest import TINY
from vitlab.files import sha256
from vitlab.recipes.recipe import Host

MIXED = {
    "rand_ops": 2, "color_jitter": 0.2, "erase": 0.3, "mixup": 0.8, "cutmix": 1.0, "repeats": 3,
    "loss": "bce", "bce_threshold": 0.0, "label_smoothing": 0.0,
}  # fmt: skip


def test_mixed_batches_in_pieces_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    """Also of an odd number of images, and in pieces of an odd one."""
    base = TINY | MIXED | {"epochs": 0.5, "batch": 239, "dropout": 0.0}
    runs = [
        vitlab.train(
            vitlab.recipe("digits", **base | {"micro_batch": micro}), tmp_path / str(micro)
        )
        for micro in (0, 80, 33)
    ]
    states = [run.model.state_dict() for run in runs]
    for name, tensor in states[0].items():
        for other in states[1:]:
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=2e-4)


def test_a_mixed_run_has_the_same_bits_with_any_number_of_workers(
    photos: Path, tmp_path: Path
) -> None:
    base = TINY | MIXED | {"epochs": 3, "batch": 16, "dropout": 0.1, "image_size": 16, "area": 0.4}
    sums = set()
    for workers in (0, 2):
        recipe = vitlab.recipe("small", str(photos), **base)
        run = vitlab.train(recipe, tmp_path / str(workers), host=Host(workers=workers))
        sums.add(sha256(run.folder / "model" / "model.safetensors"))
    assert len(sums) == 1


def test_mixing_uses_another_share_each_step_and_changes_what_is_learned(tmp_path: Path) -> None:
    base = TINY | {"epochs": 1, "batch": 256, "dropout": 0.0}
    plain, blended, cut = (
        vitlab.train(vitlab.recipe("digits", **base | more), tmp_path / name).folder
        for name, more in (("plain", {}), ("mixup", {"mixup": 1.0}), ("cutmix", {"cutmix": 1.0}))
    )
    assert len({losses(folder) for folder in (plain, blended, cut)}) == 3


def losses(folder: Path) -> tuple[float, ...]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return tuple(line["loss"] for line in lines if line["kind"] == "train")


@pytest.mark.parametrize("loss", ["bce", "sigmoid"])
def test_each_loss_learns(loss: str, tmp_path: Path) -> None:
    choices = TINY | {"epochs": 3, "batch": 64, "loss": loss}
    run = vitlab.train(vitlab.recipe("digits", **choices), tmp_path / "run")
    seen = losses(run.folder)
    assert seen[-1] < 0.9 * seen[0]
