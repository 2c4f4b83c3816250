"""Training runs on a GPU that is not there: after its first step, no step waits for the GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import TINY, photo_folder
from on_gpu.a_gpu_there import a_gpu
from on_gpu.stand_in import StandIn
from steps import each_step
from vitlab.optim.optimizers import build
from vitlab.recipes.choices import Optimization
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Host, Recipe
from vitlab.training.state import State
from vitlab.training.step import Trainer

ON_GPU = Host(device="cuda", workers=0, compile="no")
SMALL = {"model": TINY["model"], "image_size": 16, "batch": 8, "steps": 3}
QUICK = TINY | {"batch": 16, "steps": 3}
# of optimizers that cannot tell by themselves, on the GPU, that a step must not be taken
PERMISSION = {
    "_local_scalar_dense at vitlab/training/guard.py",
    "copy of (3,) from the GPU at vitlab/training/guard.py",
}
FEW = ("three-things", "deit3", "lejepa", "mae", "masked-patch")
# need a tokenizer, a teacher, minutes, boxes (whose matching is the host's), numbers, a fitted head
ELSEWHERE = {"beit", "dino", "tokenizer", "deit-distilled", "detect", "regress", "segment"}
OTHERS = [e for e in RECIPES if e not in {*ELSEWHERE, *FEW} and not e.endswith("finetune")]
DECODER = {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
CHOICES: dict[str, dict[str, Any]] = {
    "bf16, RandAugment": {
        "precision": "bf16", "dropout": 0.1, "drop_path": 0.5, "rand_ops": 2, "erase": 0.9,
        "balance": "focal", "stem_norm": "batch",
    },
    "bf16-pure, jitter": {
        "precision": "bf16-pure", "color_jitter": 0.3, "hue_jitter": 0.1, "grayscale": 0.2,
        "blur": 0.5, "layer_decay": 0.7, "layer_scale": 0.1, "clip": 0.0, "loss": "sigmoid",
    },
    "pieces, 3-Augment": {
        "micro_batch": 5, "mixup": 0.3, "cutmix": 0.5, "three_augment": True, "loss": "bce",
        "bce_threshold": 0.2, "label_smoothing": 0.0,
    },
    "SAM, bicubic": {
        "rho": 0.05, "rotate": 20.0, "augment_interpolation": "bicubic", "balance": "weights",
    },
    "Adam": {"optimizer": "adam", "micro_batch": "auto"},
}  # fmt: skip
OPTIMIZERS = ("sgd", "adafactor", "lamb", "lars", "shampoo", "soap", "muon", "schedule-free")


@contextmanager
def steps_noted(gpu: StandIn) -> Iterator[list[str]]:
    """Within the context, the list has what steps wait for, but for the first of a run."""
    found: list[str] = []
    before: list[int] = []

    def begin(trainer: Trainer, *_: object) -> None:
        assert trainer.device.type == "cuda"
        before.append(len(gpu.waits))

    def end(trainer: Trainer, state: State, _: object) -> None:
        if state.step > 1:
            found.extend(gpu.waits[before[-1] :])

    with each_step(begin, end):
        yield found


def trained(recipe: Recipe, folder: Path) -> list[str]:
    """Train on a GPU that is not there; return what its steps have waited for."""
    with a_gpu() as gpu, steps_noted(gpu) as waits:
        vitlab.train(recipe, folder, host=ON_GPU)
    return waits


@pytest.fixture(scope="module")
def few_photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(photo_folder(tmp_path_factory.mktemp("few") / "photos", {"a": 8, "b": 8, "c": 8}))


@pytest.mark.parametrize(
    "name", [*FEW, *(pytest.param(e, marks=pytest.mark.campaign) for e in OTHERS)]
)
def test_no_step_of_a_recipe_waits_but_for_permission(
    name: str, few_photos: str, tmp_path: Path
) -> None:
    recipe = vitlab.recipe(name, few_photos, **SMALL | (DECODER if name == "mae" else {}))
    waits = trained(recipe, tmp_path / "run")
    asks = recipe.optimizer.optimizer not in ("adam", "adamw")
    assert {wait.split(":")[0] for wait in waits} == (PERMISSION if asks else set())


@pytest.mark.parametrize("choice", CHOICES)
def test_no_step_with_a_choice_waits(choice: str, tmp_path: Path) -> None:
    assert trained(vitlab.recipe("digits", **QUICK | CHOICES[choice]), tmp_path / "run") == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_steps(name: str) -> None:
    own = {"precondition_every": 1} if name in ("shampoo", "soap") else {}
    model = vitlab.create(TINY["model"], 10, 8, channels=1)
    with a_gpu():
        model = model.to("cuda")
        optimizer = build(model, Optimization(optimizer=name, **own))
        for _ in range(2):
            model(torch.ones(2, 1, 8, 8, device="cuda")).square().sum().backward()
            optimizer.step()
        assert {each.device.type for each in model.parameters()} == {"cuda"}


def test_a_run_is_that_of_a_cpu(tmp_path: Path) -> None:
    """Masks, mixing, draws and order are the host's: a GPU may only round differently."""
    more = {"mixup": 0.3, "erase": 0.5, "rand_ops": 1, "precision": "fp32"}
    recipe = vitlab.recipe("digits", **QUICK | more)
    want = vitlab.train(recipe, tmp_path / "cpu", host=Host(device="cpu", workers=0))
    with a_gpu():
        run = vitlab.train(recipe, tmp_path / "gpu", host=ON_GPU)
        got = [weight.detach().cpu() for weight in run.model.parameters()]
    for mine, theirs in zip(got, want.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-3, atol=1e-5)
