"""Recipes as values: changed by name, checked, written down and read back."""

import math
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import vitlab
from vitlab.errors import OptionError
from vitlab.recipes.model_part import PARTS, ViTPart, model_part
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_has_its_name_its_words_and_a_file(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]()
    assert recipe.recipe == name
    assert RECIPES[name].__doc__
    folder = RunFolder(tmp_path)
    folder.start(recipe, Host(), "vitlab train", "mark")
    about = RunFolder(tmp_path).tables
    assert RunFolder(tmp_path).recipe == recipe
    assert about["run"]["command"] == "vitlab train"
    assert set(about["versions"]) >= {"vitlab", "torch", "numpy", "pillow", "python"}
    tables = tomllib.loads((tmp_path / "run.toml").read_text())
    assert tables["optimizer"]["lr"] == recipe.optimizer.lr


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


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"lrr": 3}, "unknown option 'lrr': did you mean lr?"),
        ({"epochs": 0}, "epochs must be above 0, not 0"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1, not 1.0"),
        ({"area": 0.0}, "area must be above 0 and at most 1, not 0.0"),
        ({"test_fraction": 1.0}, "test_fraction must be above 0 and below 1, not 1.0"),
        ({"seed": -1}, "seed must be at least 0 and below 2^63, not -1"),
        ({"rand_ops": -1}, "rand_ops must be at least 0 and at most 15, not -1"),
        ({"rand_std": math.inf}, "rand_std must be a number at least 0, not inf"),
        ({"rand_probability": 2.0}, "rand_probability must be at least 0 and at most 1, not"),
        ({"three_augment": True, "rand_ops": 2}, "rand_ops and three_augment exclude each other"),
        ({"color_jitter": -0.1}, "color_jitter must be at least 0, not -0.1"),
        ({"hue_jitter": 0.6}, "hue_jitter must be at least 0 and at most 0.5"),
        ({"erase": 1.5}, "erase must be at least 0 and at most 1"),
        ({"mixup": -1.0}, "mixup must be at least 0"),
        ({"mix_switch": 1.1}, "mix_switch must be at least 0 and at most 1"),
        ({"mix_switch": 0.3}, "mix_switch=0.3 applies only with both mixup and cutmix"),
        ({"repeats": 0}, "repeats must be at least 1"),
        (
            {"cutmix": 1.0, "micro_batch": 1},
            "micro_batch must be at least 2 with mixup or cutmix, not 1",
        ),
        ({"bce_threshold": 0.0}, "bce_threshold=0.0 applies only with loss=bce or sigmoid"),
        (
            {"bce_threshold": 1.0, "loss": "bce"},
            "bce_threshold must be at least 0 and below 1, not 1.0",
        ),
        (
            {"bce_threshold": 0.0, "loss": "bce", "label_smoothing": 0.1},
            "label_smoothing=0.1 applies only without bce_threshold",
        ),
        ({"model": "ViT-Q/4"}, "unknown model 'ViT-Q/4': did you mean ViT-S/4?"),
        ({"heads": 7}, "heads=7 does not divide width=192"),
    ],
)
def test_values_that_cannot_be(choices: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError) as caught:  # the message is compared below
        vitlab.recipe("small", **choices)
    assert str(caught.value).startswith(says)


def test_the_nearest_recipe_is_suggested() -> None:
    with pytest.raises(ValueError, match="unknown recipe 'cifar': did you mean cifar10"):
        vitlab.recipe("cifar")


def test_a_damaged_run_file_is_named(tmp_path: Path) -> None:
    RunFolder(tmp_path).start(RECIPES["digits"](), Host(), "", "")
    file = tmp_path / "run.toml"
    for old, new in (("lr = ", "speed = "), ("[schedule]", "[schedule"), ("[average]", "[x]")):
        text = file.read_text()
        file.write_text(text.replace(old, new))
        with pytest.raises(ValueError, match=r"run.toml is damaged or from another version"):
            _ = RunFolder(tmp_path).recipe
        file.write_text(text)


def test_fields_of_another_kind_of_model_are_refused_with_its_name() -> None:
    for model, field, words in (
        ("BiT-R50x1", "patch", "unknown BiT-R50x1 option 'patch': choose from model, image_size"),
        ("ViT-Ti/16", "widen", "unknown ViT-Ti/16 option 'widen': did you mean width?"),
    ):
        with pytest.raises(OptionError) as caught:
            vitlab.recipe("small", model=model, **{field: 2})
        assert str(caught.value).startswith(words)
    assert vitlab.recipe("small", model="BiT-R50x1", widen=2).model.widen == 2
    assert vitlab.recipe("small", model="BiT-R50x1", attention="none").model.attention == "none"


def test_the_largest_seed() -> None:
    assert vitlab.recipe("small", seed=2**63 - 1).seed == 2**63 - 1
    with pytest.raises(OptionError, match=r"below 2\^63, not 9223372036854775808"):
        vitlab.recipe("small", seed=2**63)
