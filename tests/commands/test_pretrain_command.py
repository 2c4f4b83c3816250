"""`vitlab pretrain`: which recipe it starts from, and which options it has."""

from pathlib import Path

import pytest

import vitlab
from conftest import BRIEF, call
from vitlab.commands import pretrain, train
from vitlab.commands.pretrain import LABELED, Pretrain
from vitlab.commands.train import OF_LABELS, Train
from vitlab.console.leaves import all_leaves, leaves_of
from vitlab.errors import OptionError
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


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("pretrain digits", "name what to learn with --task: masked-patch, tokenizer"),
        ("pretrain digits --task classify", "task must be masked-patch, tokenizer"),
        ("pretrain digits --task mae --recipe masked-patch", "task=mae, but recipe masked-patch"),
        ("pretrain digits --recipe small", "recipe small learns from labels: use vitlab train"),
        ("pretrain digits --task mae --mixup 0.8", "--mixup needs labels: use vitlab train or vit"),
        ("pretrain digits --task mae --no-distill-token", "--distill-token needs labels"),
        ("pretrain digits --task mae --seeds 3", "unknown option 'seeds': did you mean seed?"),
        ("pretrain digits --task mae --target pixels", "applies only with task=masked-patch"),
        ("train digits --task mae", "--task is for learning without labels: use vitlab pretrain"),
        ("finetune digits --no-normalize-pixels", "--normalize-pixels is for learning without"),
        ("train digits --recipe mae", "recipe mae learns without labels (task=mae): use vitlab p"),
    ],
)
def test_a_line_of_the_other_command_says_which_to_use(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *line.split())
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_the_help_of_a_task_shows_its_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(call(capsys, "pretrain", "--task", "mae", "--help")[1].split())
    assert "a Gaussian for all images. It names the recipe, if --recipe does not" in text
    assert "hidden; only with task=masked-patch, beit or mae (default: 0.75)" in text
    assert "classify" not in text


def test_a_run_goes_on_by_its_own_command(tmp_path: Path) -> None:
    for name in ("mae", "small"):
        RunFolder(tmp_path / name).start(
            vitlab.recipe(name, "digits"), vitlab.Host(effort=BRIEF), "", ""
        )
    given = {"out": str(tmp_path / "mae"), "resume": True}
    again = pretrain.build(given)
    assert again.resume
    assert again.recipe == vitlab.recipe("mae", "digits")
    with pytest.raises(OptionError, match=r"mae learns without labels .task=mae.: use vitlab pre"):
        train.build(given)
    with pytest.raises(OptionError, match=r"task=dino, but .*/mae is for task=mae"):
        pretrain.build(given | {"task": "dino"})
    with pytest.raises(OptionError, match="small learns from labels: use vitlab train"):
        pretrain.build({"out": str(tmp_path / "small"), "resume": True})


def test_the_newest_run_of_the_data_and_the_task_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"data": "digits", "resume": True, "recipe": "mae"}
    started = vitlab.recipe("mae", "digits", lr=0.5)
    RunFolder(Path("runs/digits-ViT-B-16-mae")).start(started, vitlab.Host(effort=BRIEF), "", "")
    assert pretrain.build(given).recipe == started
    assert pretrain.build(given | {"recipe": "masked-patch"}).recipe.optimizer.lr == 2e-4
