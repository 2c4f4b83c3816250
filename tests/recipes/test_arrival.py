"""Recipes arrive whole: what each sets is in run.toml, with weights and without, by each door."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, call, photo_folder
from made_starts import (
    TOKENIZER,
    TOKENIZER_OPTIONS,
    VIT,
    VIT_OPTIONS,
    make_place,
    weights_for,
    words_without_model,
)
from vitlab.recipes.named import FROM_WEIGHTS, RECIPES
from vitlab.recipes.recipe import Host, Recipe

# The weights': what they have learned with.
THEIRS = {
    "mean", "std", "positions", "positions_at", "bias_locality", "class_token", "pool", "norm_at",
    "layer_scale", "gelu", "pre_logits",
}  # fmt: skip
# What the command line here says itself, and what the data and the machine decide.
SAID = {
    "recipe", "data", "batch", "micro_batch", "steps", "epochs", "precision", "model", "weights",
    "teacher", "tokenizer", "targets", "query_blocks", "object_queries", "prototypes", "head_width",
    "bottleneck", "local_crops", "decoder_width", "decoder_depth", "decoder_heads", "balance",
}  # fmt: skip
CONTINUED = {"lr", "head_lr", "head_first", "layer_decay", "anchor"}  # of a task from weights
# The size of a recipe's usual model alone, which no other model gets.
OF_ITS_MODEL = {"digits", "detect", "regress"}
HOST = Host(workers=0, report="no", check_duplicates="no", effort=BRIEF)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_place(tmp_path_factory.mktemp("place"))


def flat(recipe: Recipe) -> dict[str, Any]:
    """All options of a recipe by name; those that are None are left out."""
    return {key: value for table in recipe.as_tables().values() for key, value in table.items()}


def set_by(name: str, model: str | None) -> dict[str, Any]:
    """What a recipe sets for a model: all that differs from the defaults."""
    made = RECIPES[name]() if model is None else RECIPES[name](model)
    usual, own = flat(Recipe()), flat(made.changed(steps=2))
    return {k: v for k, v in own.items() if k not in SAID and (k not in usual or usual[k] != v)}


def arrived(folder: str | Path) -> dict[str, Any]:
    """All options in the file of a run."""
    tables = tomllib.loads((Path(folder) / "run.toml").read_text())
    return {key: value for table in tables.values() for key, value in table.items()}


def lost(want: dict[str, Any], have: dict[str, Any]) -> dict[str, Any]:
    """What should have arrived, and what did."""
    return {k: (v, have.get(k)) for k, v in want.items() if have.get(k) != pytest.approx(v)}


@pytest.mark.parametrize("how", ["random", "random, named", "weights", "weights, named"])
@pytest.mark.parametrize("name", RECIPES)
def test_everything_that_a_recipe_sets_is_in_the_run(
    name: str, how: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if (name in FROM_WEIGHTS and "random" in how) or (name == "segment" and "named" in how):
        pytest.skip("starts from trained weights alone")
    task = RECIPES[name]().pretext.task
    usual = TOKENIZER if task == "tokenizer" else VIT
    model = usual if "named" in how else None
    words = words_without_model(name, place, "color")
    # with any but its own model, the recipe of the digits has another rate and length
    want = set_by(name, usual if name == "digits" and "weights" in how else model)
    if "weights" in how:
        words += ["--from", weights_for(name, place, "color")]
        ours = task not in ("classify", "segment", "tokenizer")
        left = THEIRS | (CONTINUED if ours else set())
        left |= {"image_size"} if name in OF_ITS_MODEL else set()
        want = {key: value for key, value in want.items() if key not in left}
    elif model is None:
        words += TOKENIZER_OPTIONS if task == "tokenizer" else VIT_OPTIONS
    words += ["--model", model] if model else []
    code, _, err = call(capsys, *words, "--out", "run")
    assert code == 0, err
    assert not lost(want, arrived("run"))


def started(folder: Path, data: Path, weights: Any, name: str, **choices: Any) -> dict[str, Any]:
    """What arrives of a recipe that starts from weights or a model in hand."""
    few: dict[str, Any] = {"steps": 1, "batch": 4, "warmup_steps": 0, "recipe": name, "host": HOST}
    vitlab.finetune(str(data), weights, folder, **few | choices, quiet=True)
    return arrived(folder)


@pytest.mark.parametrize("name", ["vit-finetune", "bit-finetune", "three-things", "vit-imagenet"])
def test_a_model_in_hand_is_trained_as_its_weights_are(
    name: str, place: Path, tmp_path: Path
) -> None:
    file = place / "vit-color"
    first = started(tmp_path / "a", place / "color", file, name)
    second = started(tmp_path / "b", place / "color", vitlab.load(file), name)
    different = {k for k in {*first, *second} if first.get(k) != second.get(k)}
    assert different <= {"started", "command", "weights"}, different


OF_OTHERS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "patch of 14": ("vit-finetune", {"image_size": 28}, {}, {"image_size": 518}),
    "patch of 14, BiT's": ("bit-finetune", {"image_size": 28}, {}, {"image_size": 518}),
    "patch of 14, 224": ("three-things", {"image_size": 28}, {}, {"image_size": 224}),
    "the user's own": ("vit-finetune", {"image_size": 28}, {"image_size": 42}, {"image_size": 42}),
    "one size": ("vit-finetune", {"positions": "relative"}, {}, {"image_size": 28}),
    "rectangles": ("vit-finetune", {"image_size": (28, 42)}, {}, {"image_size": [28, 42]}),
    "native": ("vit-finetune", {"fit": "native", "tokens": 9}, {}, {"image_size": 28, "tokens": 9}),
    "native, squashed": (
        "bit-finetune", {"fit": "native", "tokens": 9}, {}, {"image_size": 518, "fit": "squash"},
    ),
    "native, by the user": (
        "vit-finetune", {"fit": "native", "tokens": 9}, {"fit": "crop"}, {"image_size": 518},
    ),
    "pixels of the weights": (
        "three-things", {"mean": (0.1,), "crop": 0.9}, {}, {"mean": [0.1, 0.1, 0.1], "crop": 0.95},
    ),
    "pixels of the user": ("three-things", {}, {"mean": (0.2,)}, {"mean": [0.2, 0.2, 0.2]}),
    "the crop of the user": ("bit-finetune", {}, {"crop": 0.5, "fit": "crop"}, {"crop": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("which", OF_OTHERS)
def test_weights_of_other_sizes_and_what_the_user_says(
    which: str, place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, fields, choices, want = OF_OTHERS[which]
    model = vitlab.create(VIT.replace("/16", "/14"), 2, **{"image_size": 28} | fields)
    vitlab.save(model, tmp_path / "weights")
    have = started(tmp_path / "run", place / "color", tmp_path / "weights", name, **choices)
    assert not lost(want, have)
    own = RECIPES[name]().model.image_size
    if have["image_size"] != own and "image_size" not in choices:
        assert f"not {own} as in {name}" in caplog.text or f", as {name} has for" in caplog.text


def test_a_new_classifier_starts_where_the_recipe_says(place: Path, tmp_path: Path) -> None:
    """Also from weights whose own began elsewhere."""
    other = photo_folder(tmp_path / "other", {"a": 4, "b": 4, "c": 4})
    starts = (("vit-imagenet", place / "color", -10.0), ("vit-finetune", other, 0.0))
    weights = place / "vit-color"
    for name, data, bias in starts:
        run = tmp_path / name
        told = started(run, data, weights, name, image_size=32, lr=1e-9, head_start="zero")
        assert told["head_bias"] == bias
        learned = vitlab.load(run).state_dict()["head.classify.bias"]
        assert learned.tolist() == pytest.approx([bias] * len(learned), abs=1e-6)
        weights = run


def test_a_run_as_a_recipe_keeps_its_own_for_another_model(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    color, other = str(place / "color"), VIT.replace("width=8", "width=4")
    same = ["--workers", "0", "--check-duplicates", "no"]
    first = ["--recipe", "three-things", "--model", VIT, "--steps", "1", "--batch", "4"]
    code, _, err = call(capsys, "train", color, *first, *same, "--out", "first")
    assert code == 0, err
    want = set_by("three-things", VIT)
    random = ["--model", other]
    trained = ["--from", str(place / "vit-color"), "--model", ""]
    for words, left in ((random, set()), (trained, THEIRS)):
        out = words[0].strip("-")
        code, _, err = call(
            capsys, "train", color, "--recipe", "first", *words, *same, "--out", out
        )
        assert code == 0, err
        assert not lost({k: v for k, v in want.items() if k not in left}, arrived(out))
