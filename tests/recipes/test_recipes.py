"""The recipes against the papers' tables."""

from pathlib import Path
from typing import Any

import pytest

import vitlab
from vitlab.commands.train import Train, build
from vitlab.console.parsing import parse
from vitlab.models.config import ResNetConfig
from vitlab.recipes.named import RECIPES
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder

PAPERS = [
    "vit-jft",
    "vit-imagenet21k",
    "vit-imagenet",
    "vit-finetune",
    "bit-finetune",
    "plain-vit",
    "three-things",
    "three-things-400",
    "deit-distilled",
    "deit3",
]
MODELS = ["ViT-Ti/16", "ViT-S18x2/16", "ViT-B/32", "ViT-L/16", "ViT-H/14", "R50+ViT-B/16"]


@pytest.mark.parametrize(
    ("name", "model"),
    [(name, (MODELS * 3)[k % 6 + m]) for k, name in enumerate(RECIPES) for m in (0, 4)],
)
def test_every_recipe_builds_for_every_model_and_comes_back(
    name: str, model: str, tmp_path: Path
) -> None:
    recipe = vitlab.recipe(name, "here", model=model)
    assert (recipe.recipe, recipe.model.model, recipe.data.data) == (name, model, "here")
    RunFolder(tmp_path).start(recipe, Host(), "", "")
    assert RunFolder(tmp_path).recipe == recipe
    assert recipe.model.config().name == model


# ViT paper, Table 3, as printed: epochs, learning rate
JFT = [
    ("ViT-B/16", {7}, 8e-4),
    ("ViT-B/32", {7}, 8e-4),
    ("ViT-L/32", {7}, 6e-4),
    ("ViT-L/16", {7, 14}, 4e-4),
    ("ViT-H/14", {14}, 3e-4),
    ("BiT-R50x1", {7}, 1e-3),
    ("BiT-R50x2", {7}, 1e-3),
    ("BiT-R101x1", {7}, 8e-4),
    ("BiT-R152x1", {7}, 6e-4),
    ("BiT-R152x2", {7}, 6e-4),
    ("R50+ViT-B/16", {7}, 8e-4),
    ("R50+ViT-B/32", {7}, 8e-4),
    ("R50+ViT-L/32", {7}, 2e-4),
    ("R50+ViT-L/16", {7, 14}, 4e-4),
]


@pytest.mark.parametrize(("model", "epochs", "lr"), JFT)
def test_vit_on_jft(model: str, epochs: set[int], lr: float) -> None:
    recipe = vitlab.recipe("vit-jft", model=model)
    how, schedule = recipe.optimizer, recipe.schedule
    assert recipe.epochs in epochs
    assert (how.optimizer, how.lr, how.weight_decay, how.betas) == ("adamw", lr, 0.1, (0.9, 0.999))
    assert (recipe.batch, schedule.schedule, schedule.warmup_steps) == (4096, "linear", 10_000)
    assert schedule.final_lr * lr == pytest.approx(1e-5)
    config = recipe.model.config()
    assert config.image_size == 224
    if isinstance(config, ResNetConfig):
        assert "dropout" not in recipe.model.chosen()
    else:
        assert (config.dropout, config.pre_logits, config.gelu) == (0.0, config.width, "tanh")


@pytest.mark.parametrize("model", ["ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32"])
def test_vit_on_imagenet21k_and_imagenet(model: str) -> None:
    larger, smaller = (vitlab.recipe(f"vit-{d}", model=model) for d in ("imagenet21k", "imagenet"))
    rows = [
        (r.epochs, r.optimizer.lr, r.schedule.schedule, r.optimizer.weight_decay, r.model.dropout)
        for r in (larger, smaller)
    ]
    assert rows == [(90, 1e-3, "linear", 0.03, 0.1), (300, 3e-3, "cosine", 0.3, 0.1)]
    assert (larger.optimizer.clip, smaller.optimizer.clip) == (0.0, 1.0)
    assert {larger.batch, smaller.batch} == {4096}


@pytest.mark.parametrize(
    ("model", "lr", "drop"),
    [
        ("ViT-Ti/16", 4e-3, 0.0),
        ("ViT-S/16", 4e-3, 0.05),
        ("ViT-S24x2/16", 4e-3, 0.05),
        ("ViT-B/16", 3e-3, 0.1),
        ("ViT-B18x2/16", 3e-3, 0.1),
        ("ViT-L/16", 3e-3, 0.4),
    ],
)
def test_three_things(model: str, lr: float, drop: float) -> None:
    for name, epochs, scale in (("three-things", 300, None), ("three-things-400", 400, 1e-4)):
        recipe = vitlab.recipe(name, model=model)
        how, part = recipe.optimizer, recipe.model
        assert (how.optimizer, how.lr, how.weight_decay) == ("lamb", lr, 0.02)
        assert (recipe.epochs, recipe.batch, recipe.schedule.warmup) == (epochs, 2048, 5)
        assert (part.drop_path, part.layer_scale, part.crop) == (drop, scale, 0.95)
        assert part.mean == (0.485, 0.456, 0.406)


@pytest.mark.parametrize(
    ("model", "lr", "drop"),
    [
        ("ViT-S/16", 4e-3, 0.05),
        ("ViT-B/16", 3e-3, 0.2),
        ("ViT-L/16", 3e-3, 0.45),
        ("ViT-H/14", 3e-3, 0.6),
    ],
)
def test_deit3(model: str, lr: float, drop: float) -> None:
    recipe = vitlab.recipe("deit3", model=model)
    how = recipe.optimizer
    assert (how.optimizer, how.lr, how.weight_decay) == ("lamb", lr, 0.05)
    assert (recipe.epochs, recipe.batch, recipe.model.drop_path) == (800, 2048, drop)
    assert (recipe.model.crop, recipe.schedule.warmup) == (1.0, 5)


def test_deit_distilled() -> None:
    """DeiT's Table 9."""
    recipe = vitlab.recipe("deit-distilled")
    how, augment, taught = recipe.optimizer, recipe.augment, recipe.distill
    assert (recipe.model.model, recipe.epochs, recipe.batch) == ("ViT-Ti/16", 300, 1024)
    assert (how.optimizer, how.lr, how.weight_decay, how.clip) == ("adamw", 5e-4 * 2, 0.05, 0)
    assert (recipe.schedule.warmup, recipe.objective.label_smoothing) == (5, 0.1)
    assert (augment.rand_ops, augment.rand_magnitude, augment.repeats) == (2, 9, 3)
    assert (augment.mixup, augment.cutmix, augment.erase) == (0.8, 1.0, 0.25)
    assert (taught.distill, taught.distill_token, taught.distill_weight) == ("hard", True, 0.5)
    alone = vitlab.recipe("deit-distilled", teacher="")
    assert not alone.distill.distill_token


def test_better_plain_vit() -> None:
    recipe = vitlab.recipe("plain-vit")
    how = recipe.optimizer
    assert recipe.model.model == "ViT-S/16"
    assert (recipe.epochs, recipe.batch, recipe.model.pool) == (90, 1024, "mean")
    assert (how.lr, how.lr * how.weight_decay, how.clip) == (1e-3, pytest.approx(1e-4), 1.0)
    assert recipe.schedule.warmup_steps == 10_000


@pytest.mark.parametrize("name", ["plain-vit", "three-things", "deit-distilled", "deit3"])
def test_resnets_have_no_place_in_recipes_for_vits(name: str) -> None:
    with pytest.raises(vitlab.UserError, match=f"{name.split('-400')[0]} trains Vision Transform"):
        vitlab.recipe(name, model="BiT-R50x1")


def from_words(words: list[str]) -> Recipe:
    """The recipe that `vitlab train` understands."""
    return build(parse(Train, words, "vitlab train")).recipe


def test_the_command_line_chooses_the_row_of_its_model() -> None:
    words = ["here", "--recipe", "three-things-400", "--model", "ViT-L/16"]
    recipe = from_words(words)
    assert (recipe.optimizer.lr, recipe.model.drop_path, recipe.model.layer_scale) == (
        3e-3,
        0.4,
        1e-4,
    )
    changed = from_words([*words, "--lr", "1e-3", "--drop-path", "0.2", "--optimizer", "soap"])
    how = changed.optimizer
    assert (how.lr, changed.model.drop_path, how.optimizer) == (1e-3, 0.2, "soap")
    digits = from_words(["digits", "--model", "ViT-Ti/4"])
    assert (digits.model.model, digits.model.pool) == ("ViT-Ti/4", None)


@pytest.mark.parametrize("name", PAPERS)
def test_every_field_can_be_overridden(name: str) -> None:
    recipe = vitlab.recipe(name, "x", lr=0.5, optimizer="sgd", epochs=3, image_size=224, batch=7)
    assert (recipe.optimizer.lr, recipe.optimizer.optimizer) == (0.5, "sgd")
    assert (recipe.epochs, recipe.steps, recipe.batch) == (3, 0, 7)
    assert recipe.model.image_size == 224


def test_the_first_runs_are_read_with_the_fields_they_had(tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", "x", epochs=3, lr=0.5)
    RunFolder(tmp_path).start(recipe, Host(), "", "")
    file, new = tmp_path / "run.toml", ("steps", "optimizer", "eps", "momentum", "timescale")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(each for each in lines if each.split(" =")[0] not in new))
    assert "timescale" not in file.read_text()
    assert RunFolder(tmp_path).recipe == recipe


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"optimizer": "adan"}, "optimizer must be one of sgd, adam, adamw, adafactor"),
        ({"schedule": "wave"}, "schedule must be one of cosine, linear"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, not 1.0"),
        ({"betas": (0.9, 1.0)}, "betas must be at least 0 and below 1, not (0.9, 1.0)"),
        ({"rho": -1}, "rho must be at least 0, not -1"),
        ({"layer_decay": 0.0}, "layer_decay must be above 0 and at most 1, not 0.0"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, not -0.1"),
        ({"precondition_every": 0}, "precondition_every must be at least 1"),
        (
            {"optimizer": "schedule-free"},
            "schedule-free replaces the schedule: set schedule=constant and coold",
        ),
        (
            {"optimizer": "schedule-free", "schedule": "constant"},
            "schedule-free averages the weights itself: set ema=0",
        ),
        (
            {"optimizer": "schedule-free", "schedule": "constant", "cooldown": 2},
            "schedule-free replaces the schedule: set schedule=constant and cooldown=0",
        ),
        (
            {"optimizer": "schedule-free", "schedule": "constant", "ema": 0, "betas": (0, 0.9)},
            "schedule-free needs betas[0] above 0, such as 0.9",
        ),
        ({"steps": -1}, "steps must be at least 0, not -1"),
        ({"timescale": 0}, "timescale must be above 0"),
    ],
)
def test_what_cannot_be(choices: dict[str, Any], says: str) -> None:
    with pytest.raises(vitlab.UserError) as caught:
        vitlab.recipe("small", **choices)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
