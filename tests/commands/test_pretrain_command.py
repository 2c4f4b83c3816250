"""`vitlab pretrain`: which recipe it starts from, and which options it has."""

from pathlib import Path

import pytest

import vitlab
from conftest import BRIEF, call
from vitlab.commands import pretrain
from vitlab.commands.pretrain import LABELED, Pretrain
from vitlab.commands.train import OF_LABELS, Train
from vitlab.console.leaves import all_leaves, leaves_of
from vitlab.options import options_of
from vitlab.recipes.named import RECIPES
from vitlab.recipes.pretext import Pretext
from vitlab.runs.run_folder import RunFolder

TASKED = {name: make().pretext.task for name, make in RECIPES.items() if not make().pretext.labeled}


def words_of(kind: type[Train | Pretrain]) -> set[str]:
    return {leaf.name for leaf in all_leaves(kind)}


@pytest.mark.parametrize("name", TASKED)
def test_a_task_names_its_recipe_unless_one_is_named(name: str) -> None:
    named = pretrain.build({"data": "x", "recipe": name, "model": "ViT-S/16"}).recipe
    assert named == vitlab.recipe(name, "x", model="ViT-S/16")
    first = next(each for each, task in TASKED.items() if task == TASKED[name])
    assert pretrain.build({"task": TASKED[name]}).recipe == vitlab.recipe(first)
    assert pretrain.build({"task": TASKED[name], "recipe": name}).recipe == vitlab.recipe(name)


def test_commands_have_the_options_that_can_apply() -> None:
    of_pretext = set(options_of(Pretext)) - set(OF_LABELS)
    assert {"object_queries", "query_blocks"} <= set(LABELED)
    assert not of_pretext & words_of(Train)
    assert of_pretext <= words_of(Pretrain)
    assert {"mixup", "label_smoothing", "teacher", "fold"} <= set(LABELED) <= words_of(Train)
    assert not set(LABELED) & words_of(Pretrain)
    (task,) = [leaf for leaf in leaves_of(Pretrain) if leaf.name == "task"]
    assert task.default is None
    assert "classify" not in f"{task.hint}{task.about.help}"


def test_the_help_of_a_task_shows_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(call(capsys, "pretrain", "--task", "mae", "--help")[1].split())
    assert "a Gaussian for all images. It names the recipe, if --recipe does not" in text
    assert "hidden; only with task=masked-patch, beit or mae (default: 0.75)" in text
    assert "classify" not in text


def test_a_run_goes_on_by_its_own_command(tmp_path: Path) -> None:
    begun = RunFolder(tmp_path / "mae")
    begun.start(vitlab.recipe("mae", "digits"), vitlab.Host(effort=BRIEF), "", "")
    given = {"out": str(begun.path), "resume": True}
    again = pretrain.build(given)
    assert again.resume
    assert again.recipe == vitlab.recipe("mae", "digits")


def test_the_newest_run_of_the_data_and_the_task_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"data": "digits", "resume": True, "recipe": "mae"}
    started = vitlab.recipe("mae", "digits", lr=0.5)
    RunFolder(Path("runs/digits-ViT-B-16-mae")).start(started, vitlab.Host(effort=BRIEF), "", "")
    assert pretrain.build(given).recipe == started
    assert pretrain.build(given | {"recipe": "masked-patch"}).recipe.optimizer.lr == 2e-4
