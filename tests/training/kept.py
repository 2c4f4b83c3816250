"""What a run keeps, and runs that are stopped and go on: for the tests of training."""

from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, TINY
from steps import asked_to_stop, killed_before
from vitlab.files import sha256
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.stop import Interrupted

# A run costs as much as its tensors and steps: a step and a checkpoint of them, 15 ms.
SMALLEST = TINY | {"model": "ViT(width=8,depth=1,heads=1,mlp=8)/4"}
PLAIN = TINY | {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/4", "steps": 6, "batch": 80}
PLAIN |= {"dropout": 0.1, "micro_batch": 48, "test_every": 1}  # tested after steps 4 and 6
CLOCKS = {"seconds", "images_per_second", "peak_memory", "run", "report"}
EACH = Host(
    workers=0, check_duplicates="no", checkpoint_every=0, effort=BRIEF
)  # a checkpoint after each step


def folder_of(run: vitlab.Run | Path) -> Path:
    return run if isinstance(run, Path) else run.folder


def weights(run: vitlab.Run | Path) -> str:
    """The checksum of its model."""
    return sha256(folder_of(run) / "model" / "model.safetensors")


def journal(run: vitlab.Run | Path, kind: str = "") -> list[dict[str, Any]]:
    """Its lines, or those of a kind, without times and places."""
    lines = RunFolder(folder_of(run)).journal.read()
    return [{key: line[key] for key in line if key not in CLOCKS}
            for line in lines if kind in ("", line["kind"])]  # fmt: skip


def outcome(run: vitlab.Run | Path) -> tuple[str, list[dict[str, Any]]]:
    """What is the same of two runs of one recipe."""
    return weights(run), journal(run)


def stopped(at: int, recipe: Recipe, folder: Path, host: Host = EACH, **how: Any) -> None:
    """Start or continue a run that gets SIGTERM after some steps."""
    with asked_to_stop(at), pytest.raises(Interrupted):
        vitlab.train(recipe, folder, resume=True, host=host, **how)


def killed(at: int, recipe: Recipe, folder: Path, host: Host = EACH, **how: Any) -> None:
    """Start or continue a run that ends unsaved before a step, counted from 0."""
    with killed_before(at), pytest.raises(KeyboardInterrupt):
        vitlab.train(recipe, folder, resume=True, host=host, **how)


def resumed(recipe: Recipe, folder: Path, host: Host = EACH, **how: Any) -> vitlab.Run:
    return vitlab.train(recipe, folder, resume=True, host=host, **how)
