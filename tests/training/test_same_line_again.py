"""Every recipe: it starts, on gray or on color images, and the same line goes on with --resume."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from conftest import BRIEF, call
from made_starts import make_place, words_of
from steps import asked_to_stop, each_step
from vitlab.commands import pretrain, train
from vitlab.console.parsing import parse
from vitlab.images import ImageSpec
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Host


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


def small(name: str) -> list[str]:
    """Images of 32 pixels, where the recipe has larger ones."""
    return ["--image-size", "32"] if RECIPES[name]().model.image_size else []


def interrupted(words: list[str], capsys: pytest.CaptureFixture[str]) -> ImageSpec:
    """A session that is stopped after a step; what its model takes."""
    seen = list[ImageSpec]()
    look = each_step(before=lambda trainer, state, batch: seen.append(trainer.model.config))
    with look, asked_to_stop(1):
        code, _, err = call(capsys, *words)
    assert code == 130, err
    return seen[-1]


@pytest.mark.parametrize(("number", "name"), [*enumerate(RECIPES)])
def test_the_same_line_goes_on(
    number: int, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With color and gray images and the digits in turn, the model by its name or its fields.

    To the same bits, and to the end: test_pretext_runs.py, and below.
    """
    data = ("color", "gray", "gray" if name in ("detect", "segment") else "digits")[number % 3]
    words = words_of(name, place, data, number % 2 == 0) + small(name)
    words += ["--steps", "3", "--out", "cut"]
    first = interrupted(words, capsys)
    config, own = interrupted([*words, "--resume"], capsys), RECIPES[name]().model.mean
    assert config == first
    assert config.channels == (3 if data == "color" else 1)
    if own is not None and data != "color":
        assert config.mean == (sum(own) / 3,)


@pytest.mark.parametrize("name", ["dino", "beit-finetune"])
def test_what_a_start_decided_is_no_difference(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, by the newest folder of the name, with what is `auto` and what is a share."""
    words = words_of(name, place, "digits") + small(name)
    words += ["--micro-batch", "auto", "--train-images", "50%"] * (name != "dino")
    words += ["--balance", "auto"] * (name != "dino")
    interrupted(words, capsys)
    (run,) = Path("runs").iterdir()
    shutil.copytree(run, "python")
    code, _, err = call(capsys, *words, "--resume")
    assert code == 0, err
    command: Any = train if words[0] == "train" else pretrain
    kind = train.Train if words[0] == "train" else pretrain.Pretrain
    recipe = command.build(parse(kind, words[1:])).recipe
    again = vitlab.train(
        recipe, "python", resume=True, host=Host(workers=0, effort=BRIEF)
    ).model.state_dict()
    first = vitlab.load(run).state_dict()
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
