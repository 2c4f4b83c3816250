"""Recipes as values: changed by name, checked, written down and read back."""

from dataclasses import fields
from pathlib import Path

import pytest

import vitlab
from conftest import BRIEF
from vitlab.errors import OptionError, RunError
from vitlab.recipes.model_part import PARTS, ViTPart, model_part
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder


def test_every_recipe_has_its_name_its_words_and_a_file(tmp_path: Path) -> None:
    models = ["ViT-Ti/16", "ViT-S18x2/16", "ViT-B/32", "ViT-L/16", "ViT-H/14", "R50+ViT-B/16"]
    for number, (name, made) in enumerate(RECIPES.items()):
        assert made.__doc__
        model = models[number % 6]
        recipe = vitlab.recipe(name, "here", model=model)
        assert (recipe.recipe, recipe.model.model, recipe.data.data) == (name, model, "here")
        assert recipe.model.config().name == model
        RunFolder(tmp_path / name).start(recipe, Host(effort=BRIEF), "vitlab train", "mark")
        folder = RunFolder(tmp_path / name)
        assert folder.recipe == recipe
        assert folder.tables["run"]["command"] == "vitlab train"
        assert folder.tables["optimizer"]["lr"] == recipe.optimizer.lr
        assert set(folder.tables["versions"]) >= {"vitlab", "torch", "numpy", "pillow", "python"}


def test_data_in_the_place_of_a_recipe_is_recognized(tmp_path: Path) -> None:
    for name in ("photos", "../sign-digits", "digits.csv/", str(tmp_path)):
        with pytest.raises(OptionError) as caught:
            vitlab.recipe(name)
        assert str(caught.value) == (
            f"unknown recipe {name!r}: the recipe comes first, the data second: "
            f"vitlab.recipe('small', {name!r})"
        )
    with pytest.raises(OptionError, match="unknown recipe 'digit': did you mean digits"):
        vitlab.recipe("digit", data="digits")


def test_every_field_changes_by_its_own_name() -> None:
    recipe = vitlab.recipe("small", "here", lr=0.5, epochs=3, patch=8, flip=False, seed=9)
    assert recipe.data.data == "here"
    assert (recipe.optimizer.lr, recipe.epochs, recipe.model.patch) == (0.5, 3, 8)
    assert (recipe.augment.flip, recipe.seed) == (False, 9)


def test_few_epochs_shorten_a_warm_up_that_would_take_them_all() -> None:
    recipe = vitlab.recipe("finetune", "here", epochs=3)  # 3 of 30 epochs warm up
    assert recipe.schedule.warmup == pytest.approx(0.3)
    assert recipe.changed(epochs=3) == recipe
    assert recipe.changed(epochs=20).schedule.warmup == pytest.approx(0.3)
    assert vitlab.recipe("finetune", "here", epochs=4).schedule.warmup == 3
    assert vitlab.recipe("finetune", "here", epochs=2, warmup=2).schedule.warmup == 2
    assert vitlab.recipe("finetune", "here", epochs=2, warmup_steps=9).schedule.warmup_steps == 9


def test_field_names_are_unique_so_that_flat_names_are_clear() -> None:
    flat = [key for table in Recipe().as_tables().values() for key in table]
    flat += [f.name for f in fields(ViTPart) if f.name != "model"] + [f.name for f in fields(Host)]
    assert len(flat) == len(set(flat))


def test_the_model_part_has_every_field_of_the_configuration() -> None:
    for config, part in PARTS.items():
        own = {f.name for f in fields(part)}
        assert own == {f.name for f in fields(config)} - {"labels"} | {"model"}


def test_what_the_recipe_gives_comes_before_what_the_data_needs() -> None:
    part = model_part("ViT-S/8", image_size=64, dropout=0.1)
    config = part.config(image_size=32, channels=1, classes=3)
    assert (config.image_size, config.channels, config.classes) == (64, 1, 3)
    assert (config.name, config.dropout) == ("ViT-S/8", 0.1)


def test_another_model_forgets_what_was_chosen_for_the_first() -> None:
    recipe = vitlab.recipe("small", depth=3)
    assert recipe.changed(model="ViT-S/16").model == model_part("ViT-S/16")
    assert vitlab.recipe("small", model="ViT-S/16", depth=3).model.depth == 3


def test_the_first_runs_are_read_and_damaged_files_are_named(tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", "x", epochs=3, lr=0.5)
    RunFolder(tmp_path).start(recipe, Host(effort=BRIEF), "", "")
    file, new = tmp_path / "run.toml", ("steps", "optimizer", "eps", "momentum", "timescale")
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    file.write_text("".join(each for each in lines if each.split(" =")[0] not in new))
    assert "timescale" not in file.read_text()
    assert RunFolder(tmp_path).recipe == recipe
    for old, other in (("lr = ", "speed = "), ("[schedule]", "[schedule"), ("[average]", "[x]")):
        file.write_text(text.replace(old, other))
        with pytest.raises(RunError, match=r"run.toml is damaged"):
            _ = RunFolder(tmp_path).recipe


def test_fields_of_a_resnet() -> None:
    assert vitlab.recipe("small", model="BiT-R50x1", widen=2).model.widen == 2
    assert vitlab.recipe("small", model="BiT-R50x1", attention="none").model.attention == "none"


def test_the_largest_seed() -> None:
    assert vitlab.recipe("small", seed=2**63 - 1).seed == 2**63 - 1


def test_a_length_in_steps_has_its_warm_up_in_proportion() -> None:
    recipe = vitlab.recipe("masked-patch", "here")  # 10,000 of a million steps warm up
    assert (recipe.steps, recipe.schedule.warmup_steps) == (1_000_000, 10_000)
    assert recipe.changed(steps=100_000).schedule.warmup_steps == 10_000
    few = recipe.changed(steps=2_000)
    assert (few.schedule.warmup_steps, few.changed(steps=2_000)) == (20, few)
    epochs = recipe.changed(epochs=50)
    when = epochs.schedule
    assert (epochs.steps, when.warmup_steps, when.warmup) == (0, 0, pytest.approx(0.5))
    assert epochs.changed(epochs=50) == epochs
    assert recipe.changed(steps=20, warmup_steps=7).schedule.warmup_steps == 7
    assert recipe.changed(epochs=20, warmup=7).schedule.warmup == 7
    assert vitlab.recipe("vit-imagenet", epochs=3).schedule.warmup_steps == 10_000
