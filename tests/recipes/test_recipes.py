"""The recipes against the papers' tables."""

import numpy as np
import pytest

import vitlab
from vitlab.commands.train import Train, build
from vitlab.console.parsing import parse
from vitlab.data.augment.policy import Op, argument
from vitlab.models.config import ResNetConfig
from vitlab.recipes.recipe import Recipe

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


def test_vit_on_jft() -> None:
    for model, epochs, lr in JFT:
        recipe = vitlab.recipe("vit-jft", model=model)
        how, schedule, config = recipe.optimizer, recipe.schedule, recipe.model.config()
        assert recipe.epochs in epochs
        chosen = (how.optimizer, how.lr, how.weight_decay, how.betas)
        assert chosen == ("adamw", lr, 0.1, (0.9, 0.999)), model
        assert (recipe.batch, schedule.schedule, schedule.warmup_steps) == (4096, "linear", 10_000)
        assert schedule.final_lr * lr == pytest.approx(1e-5)
        assert config.image_size == 224
        if isinstance(config, ResNetConfig):
            assert "dropout" not in recipe.model.chosen()
        else:
            assert (config.dropout, config.pre_logits, config.gelu) == (0.0, config.width, "tanh")


def test_vit_on_imagenet21k_and_imagenet() -> None:
    for model in ("ViT-B/16", "ViT-L/32"):
        for data, row in (
            ("imagenet21k", (90, 4096, 1e-3, 0.03, 0.0, "linear", 0.1)),
            ("imagenet", (300, 4096, 3e-3, 0.3, 1.0, "cosine", 0.1)),
        ):
            recipe = vitlab.recipe(f"vit-{data}", model=model)
            how, schedule = recipe.optimizer, recipe.schedule.schedule
            chosen = (recipe.epochs, recipe.batch, how.lr, how.weight_decay, how.clip, schedule)
            assert (*chosen, recipe.model.dropout) == row


# learning rate, stochastic depth, pixels
THREE = {
    "ViT-Ti/16": (4e-3, 0.0, 224),
    "ViT-S/16": (4e-3, 0.05, 224),
    "ViT-S24x2/16": (4e-3, 0.05, 224),
    "ViT-B/16": (3e-3, 0.1, 224),
    "ViT-B18x2/16": (3e-3, 0.1, 224),
    "ViT-L/16": (3e-3, 0.4, 224),
}
DEIT3 = {
    "ViT-S/16": (4e-3, 0.05, 224),
    "ViT-B/16": (3e-3, 0.2, 192),
    "ViT-L/16": (3e-3, 0.45, 192),
    "ViT-H/14": (3e-3, 0.6, 154),  # 160, of which 11 x 14 are seen
}


@pytest.mark.parametrize(
    ("name", "rows", "row"),
    [
        ("three-things", THREE, (0.02, 300, None, 0.95)),
        ("three-things-400", THREE, (0.02, 400, 1e-4, 0.95)),
        ("deit3", DEIT3, (0.05, 800, 1e-4, 1.0)),
    ],
)
def test_three_things_and_deit3(
    name: str, rows: dict[str, tuple[float, float, int]], row: tuple[float | None, ...]
) -> None:
    for model, (lr, drop, size) in rows.items():
        recipe = vitlab.recipe(name, model=model)
        how, part = recipe.optimizer, recipe.model
        assert (how.optimizer, how.lr, part.drop_path) == ("lamb", lr, drop), model
        assert (part.image_size, recipe.augment.repeats) == (size, 3), model
        assert (how.weight_decay, recipe.epochs, part.layer_scale, part.crop) == row
        assert (recipe.batch, recipe.schedule.warmup) == (2048, 5)
        assert part.mean == (0.485, 0.456, 0.406)


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
    ops = np.array([Op.POSTERIZE, Op.SOLARIZE, Op.COLOR])  # big_vision/pp/autoaugment.py
    level, way = np.full(3, recipe.augment.rand_magnitude / 10), np.ones(3)
    found = argument(ops, level, way, recipe.augment.rand_increasing)
    assert found.tolist() == pytest.approx([4, 256, 1.9])  # bits kept, nothing solarized


def test_masked_patches() -> None:
    """ViT paper, B.1.2: clipping is for ImageNet from scratch alone (Table 3's caption)."""
    recipe = vitlab.recipe("masked-patch")
    how, schedule = recipe.optimizer, recipe.schedule
    assert (how.optimizer, how.lr, how.clip, recipe.batch) == ("adam", 2e-4, 0, 4096)
    assert (recipe.steps, schedule.warmup_steps, schedule.schedule) == (10**6, 10_000, "cosine")
    assert (recipe.pretext.mask_ratio, recipe.pretext.target) == (0.5, "mean-color")


def from_words(words: list[str]) -> Recipe:
    """The recipe that `vitlab train` understands."""
    return build(parse(Train, words)).recipe


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
    sgd = vitlab.recipe("vit-imagenet", "x", lr=0.5, optimizer="sgd", epochs=3, batch=7)
    assert (sgd.optimizer.optimizer, sgd.epochs, sgd.steps, sgd.batch) == ("sgd", 3, 0, 7)
