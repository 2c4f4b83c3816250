"""Every option through its four faces: constructor, `vitlab.recipe`, `run.toml`, command line.

All of them refuse the same values in the same words.
"""

import functools
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tomli_w

import vitlab
from conftest import BRIEF
from vitlab.commands import pretrain
from vitlab.commands.pretrain import Pretrain
from vitlab.commands.train import Train, build
from vitlab.console.leaves import Leaf, leaves_of
from vitlab.console.parsing import parse
from vitlab.errors import OptionError, RunError
from vitlab.options import owners
from vitlab.recipes.model_part import ModelPart, model_part
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder

MODELS = {"vit": "ViT-Ti/16", "resnet": "BiT-R50x1", "tokenizer": "dVAE/8"}
OF_VIT = {leaf.name for leaf in leaves_of(vitlab.recipe("small", model=MODELS["vit"]))}
LEAVES = {
    f"{kind}-{leaf.name}": (model, leaf)
    for kind, model in MODELS.items()
    for leaf in leaves_of(vitlab.recipe("small", model=model))
    if kind == "vit" or leaf.name not in OF_VIT
}
HOST = {leaf.name: leaf for leaf in leaves_of(Host(effort=BRIEF))}
TEXT = {
    "recipe": "smal",
    "model": "ViT-Q/4",
    "budget": "soon",
    "fold": "6/5",
}  # text that is not any text


def values(leaf: Leaf) -> list[Any]:
    """A value of a wrong type, and a number beyond every bound, if there is any."""
    if leaf.hint == tuple[str, ...]:
        return [5]
    if leaf.hint is str:
        return [5, TEXT[leaf.name]] if leaf.name in TEXT else [5]
    several = _several(leaf.hint)
    wrong: list[Any] = [["nonsense"] * several or "nonsense"]
    for number in (-1, 0, 2, 2**63):
        if leaf.about.bounds and not all(bound.holds(number) for bound in leaf.about.bounds):
            return [*wrong, [number] * several or number]
    assert not leaf.about.bounds, f"{leaf.name}: no number is beyond its bounds"
    return wrong


def _several(hint: Any) -> int:
    """How many values an option of a fixed number takes; 0 for one, or any number."""
    parts = get_args(hint) if get_origin(hint) is tuple else ()
    return 0 if ... in parts else len(parts)


def refused(call: Any) -> str:
    with pytest.raises(OptionError) as caught:
        call()
    return str(caught.value)


def constructed(model: str, leaf: Leaf, value: Any) -> Any:
    """The group of options, made with one of them."""
    owner = owners(vitlab.recipe("small", model=model))[leaf.name]
    if issubclass(owner, ModelPart):
        return model_part(**{"model": model} | {leaf.name: value})
    return owner(**{leaf.name: value})


@functools.cache
def run_file(model: str) -> str:
    """What a run with this model writes into its run.toml."""
    with tempfile.TemporaryDirectory() as folder:
        RunFolder(folder).start(
            vitlab.recipe("small", "x", model=model), Host(effort=BRIEF), "", ""
        )
        return (Path(folder) / "run.toml").read_text()


def from_file(folder: Path, model: str, leaf: Leaf, value: Any) -> Recipe:
    """The recipe in a run.toml that somebody edited."""
    tables = tomllib.loads(run_file(model))
    recipe = Recipe()
    part = next(
        (
            name
            for name in recipe.as_tables()
            if name != "recipe"
            and leaf.name in owners(model_part(model) if name == "model" else getattr(recipe, name))
        ),
        "recipe",
    )
    tables[part][leaf.name] = value
    (folder / "run.toml").write_text(tomli_w.dumps(tables))
    return build({"out": str(folder), "resume": True}).recipe


def pretrained(line: list[str]) -> Pretrain:
    return pretrain.build(parse(Pretrain, line))


def typed(value: Any) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


@pytest.mark.parametrize("case", LEAVES)
def test_four_faces_refuse_the_same_in_the_same_words(case: str, tmp_path: Path) -> None:
    model, leaf = LEAVES[case]
    for value in values(leaf)[-1:]:
        if leaf.name == "recipe" and isinstance(value, str):
            continue  # a run may have any name, but there must be a recipe to start from
        words = refused(lambda value=value: constructed(model, leaf, value))
        chosen = {"model": model} | {leaf.name: value}
        if leaf.name != "recipe":
            assert refused(lambda chosen=chosen: vitlab.recipe("small", **chosen)) == words
        with pytest.raises(RunError) as caught:
            from_file(tmp_path, model, leaf, value)
        assert f"({words})" in str(caught.value)
        if leaf.hint in (str, tuple[str, ...]) and not isinstance(value, str):
            continue  # every word is text
        if leaf.is_flag:
            continue  # --flag and --no-flag cannot be wrong
        line = ["x", "--model", model, f"--{leaf.word.replace('_', '-')}", *typed(value)]
        if leaf.name not in Train.ELSEWHERE:
            line += ["--recipe", "small"]
            assert refused(lambda line=line: build(parse(Train, line))) == words
        elif leaf.name != "task":  # its command knows no classes
            line += ["--recipe", "mae"]
            assert refused(lambda line=line: pretrained(line)) == words


@pytest.mark.parametrize("name", HOST)
def test_the_host_too(name: str) -> None:
    leaf = HOST[name]
    for value in values(leaf):
        words = refused(lambda value=value: Host(**{name: value}, effort=BRIEF))
        if leaf.hint is not str and not leaf.is_flag:
            line = ["digits", f"--{name.replace('_', '-')}", *typed(value)]
            assert refused(lambda line=line: build(parse(Train, line))) == words


def test_every_kind_of_option_was_tried() -> None:
    kinds = {get_origin(leaf.hint) or leaf.hint for _, leaf in LEAVES.values()}
    assert {int, float, bool, str, Literal} <= kinds
    assert len(LEAVES) > 90


IDLE: list[tuple[dict[str, Any], str]] = [
    ({"optimizer": "adamw", "momentum": 0.1}, "momentum=0.1 applies only with optimizer=sgd, la"),
    (
        {"momentum": 0.9},
        "momentum=0.9 applies only with optimizer=sgd, lars or muon",
    ),  # its default
    ({"precondition_every": 3}, "precondition_every=3 applies only with optimizer=shampoo or soap"),
    ({"optimizer": "sgd", "betas": (0.9, 0.999)}, "betas=(0.9, 0.999) applies only with optim"),
    ({"optimizer": "adafactor", "eps": 1e-8}, "eps=1e-08 applies only with optimizer=adam, ad"),
    ({"timescale": 7}, "timescale=7 applies only with schedule=rsqrt"),
    ({"mix_switch": 0.5}, "mix_switch=0.5 applies only with both mixup and cutmix"),
    ({"rand_magnitude": 9.0}, "rand_magnitude=9.0 applies only with rand_ops"),
    ({"ema": 0.0, "ema_warmup": True}, "ema_warmup=True applies only with ema"),
    ({"schedule": "constant", "final_lr": 0.1}, "final_lr=0.1 applies only with a schedule other"),
    ({"warmup_steps": 5, "warmup": 1}, "warmup=1.0 applies only with warmup_steps=0"),
    ({"steps": 5, "epochs": 100.0}, "epochs=100.0 applies only with steps=0"),
    ({"bce_threshold": 0.5}, "bce_threshold=0.5 applies only with loss=bce or sigmoid"),
    ({"stem": "hmlp", "stem_act": "none"}, "stem_act=none applies only with stem=linear"),
]


@pytest.mark.parametrize(("choices", "words"), IDLE)
def test_an_option_that_would_do_nothing_is_refused(choices: dict[str, Any], words: str) -> None:
    """Also where it equals the default: on the command line, named means that it was typed."""
    assert refused(lambda: vitlab.recipe("small", **choices)).startswith(words)
    line = ["x", "--recipe", "small"]
    for name, value in choices.items():
        if isinstance(value, bool):
            line.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        else:
            line += [
                f"--{name.replace('_', '-')}",
                *typed(list(value) if name == "betas" else value),
            ]
    assert refused(lambda: build(parse(Train, line))).startswith(words)


def test_what_the_recipe_chose_and_no_longer_applies_goes_back_to_its_default() -> None:
    recipe = vitlab.recipe("three-things", optimizer="sgd")  # its lamb has eps=1e-6
    assert (recipe.optimizer.eps, recipe.optimizer.lr) == (1e-8, 4e-3)
    assert vitlab.recipe("three-things", rand_ops=0).augment.rand_magnitude == 9.0
    assert vitlab.recipe("small", bce_threshold=0.0, loss="bce").objective.label_smoothing == 0
    assert vitlab.recipe("small", warmup_steps=7).schedule.warmup == 0
    assert vitlab.recipe("digits", steps=7).epochs == 100
    part = vitlab.recipe("small", stem_act="gelu", depth=3).changed(stem="hmlp").model
    assert (part.stem_act, part.stem, part.depth) == (None, "hmlp", 3)
