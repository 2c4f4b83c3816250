"""A transform and a loss of the user's own: what they get, what a run records, what is refused."""

import functools
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import vitlab
from conftest import LIGHT, call, photo_folder
from training.kept import EACH, resumed, stopped, weights
from vitlab.errors import OptionError, RunError
from vitlab.runs.recipe_file import recipe_in
from vitlab.training.own_code import recorded

TINY = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/4", "warmup": 0.0}
STRENGTH = 2.0


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight pictures, not split."""
    counts = {"blue": 8, "green": 8, "red": 8}
    return photo_folder(tmp_path_factory.mktemp("own") / "photos", counts, 16, 16)


def recipe(few: Path, **more: Any) -> vitlab.Recipe:
    return vitlab.recipe("small", str(few), **TINY | {"steps": 3, "batch": 8} | more)


def near(one: vitlab.Run, other: vitlab.Run) -> bool:
    theirs = other.model.state_dict()
    return all(torch.allclose(t, theirs[n], atol=2e-5) for n, t in one.model.state_dict().items())


def noise(images: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers of both generators, as a transform may draw them."""
    drawn = torch.rand(images.shape, generator=generator, device=images.device)
    return (images * (drawn + torch.rand_like(drawn)) / 2).to(torch.uint8)


def kept(images: Tensor, generator: torch.Generator) -> Tensor:
    return images


def entropy(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets)


def entropy_each(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets, reduction="none")


def steep(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets, reduction="none") ** STRENGTH


def test_a_loss_gets_the_targets_that_smoothing_and_mixing_leave(few: Path, tmp_path: Path) -> None:
    """So that cross-entropy written by hand is the recipe's own, and a scalar counts as a mean."""
    options = recipe(few, label_smoothing=0.2, mixup=0.5, micro_batch=6)
    losses = {"usual": None, "each": entropy_each, "mean": entropy, "steep": steep}
    usual, *same, other = (
        vitlab.train(options, tmp_path / name, host=EACH, loss=loss)
        for name, loss in losses.items()
    )
    assert all(near(each, usual) for each in same)
    assert not near(other, usual)


def test_a_loss_is_computed_in_float32_whatever_the_precision(few: Path, tmp_path: Path) -> None:
    seen: set[Any] = set()

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        product = scores @ targets.T  # bf16 under autocast
        seen.update({scores.dtype, targets.dtype, product.dtype, tuple(targets.shape)[1]})
        return -(scores.log_softmax(-1) * targets).sum(-1)

    vitlab.train(recipe(few, precision="bf16", steps=1), tmp_path / "run", loss=loss, host=LIGHT)
    assert seen == {torch.float32, 3}


def test_a_transform_gets_the_whole_batch_before_the_augmentation(
    few: Path, tmp_path: Path
) -> None:
    seen: list[tuple[Any, ...]] = []
    seeds: list[int] = []

    def transform(images: Tensor, generator: torch.Generator) -> Tensor:
        seen.append((images.dtype, tuple(images.shape), int(images.max()) > 1, generator.device))
        seeds.append(generator.initial_seed())
        return images

    options = recipe(few, micro_batch=2, flip=True, rho=0.05)  # SAM makes two passes
    own = vitlab.train(options, tmp_path / "own", transform=transform, host=LIGHT)
    batches = [each for each in seen if each[1][0] == 8]
    assert batches[-3:] == [(torch.uint8, (8, 3, 16, 16), True, torch.device("cpu"))] * 3
    assert len(batches) in (3, 4)  # a trial before the run, and one call per step
    assert len(set(seeds[-3:])) == 3  # every step draws other numbers
    assert weights(own) == weights(vitlab.train(options, tmp_path / "usual", host=LIGHT))


def test_stopped_it_goes_on_to_the_same_bits(few: Path, tmp_path: Path) -> None:
    own = {"transform": noise, "loss": steep}
    whole = vitlab.train(recipe(few), tmp_path / "whole", host=EACH, **own)
    stopped(1, recipe(few), tmp_path / "run", **own)
    assert weights(resumed(recipe(few), tmp_path / "run", **own)) == weights(whole)


def test_a_run_records_them_and_goes_on_with_no_others(
    few: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    out = tmp_path / "run"
    run = vitlab.train(recipe(few), out, transform=kept, loss=steep, host=LIGHT)
    code = tomllib.loads((out / "run.toml").read_text())["code"]
    assert code["loss"] == f"{steep.__module__}.steep"
    assert code["transform"] == f"{kept.__module__}.kept"
    assert len(code["loss_sha256"]) == 64
    again = functools.partial(vitlab.train, recipe(few), out, resume=True)
    assert again(transform=kept, loss=steep).metrics == run.metrics
    with pytest.raises(RunError, match=r"was started with transform=.*kept: continue it in Python"):
        again(loss=steep)
    with pytest.raises(RunError, match=r"source of loss=.*entropy has changed .* choose another"):
        again(transform=kept, loss=entropy)
    monkeypatch.setattr(f"{__name__}.STRENGTH", 3.0)
    with pytest.raises(RunError, match=r"source of loss=.*steep has changed"):
        again(transform=kept, loss=steep)
    status, _, err = call(capsys, "train", "--out", str(out), "--resume")
    assert status == 2
    assert "vitlab.train(..., transform=kept, resume=True)" in err.splitlines()[-1]
    caplog.clear()
    assert recipe_in(out) is not None
    assert "which a recipe does not have" in caplog.text
    plain = tmp_path / "plain"
    stopped(1, recipe(few), plain)
    assert "[code]" not in (plain / "run.toml").read_text()
    with pytest.raises(RunError, match=r"source of loss=.*steep has changed"):
        vitlab.train(recipe(few), plain, resume=True, loss=steep, host=LIGHT)


def test_the_digest_is_of_all_that_a_function_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(factor: Any, more: Any = 1.0) -> dict[str, str]:
        def loss(scores: Tensor, targets: Tensor, power: float = more) -> Tensor:
            return (factor * entropy_each(scores, targets)) ** power

        return recorded("loss", loss)

    def inside(factor: Any) -> dict[str, str]:
        def loss(scores: Tensor, targets: Tensor) -> Tensor:
            return sum(STRENGTH * factor * each for each in entropy_each(scores, targets))

        return recorded("loss", loss)

    first = made(2.0)
    assert first == made(2.0)
    before = inside(2.0)
    monkeypatch.setitem(globals(), "STRENGTH", 3.0)
    assert before != inside(2.0) != inside(3.0)
    others = [made(3.0), made(2.0, 2.0), made(torch.ones(3)), made(torch.zeros(3)), made((2.0, 1))]
    assert len({each["loss_sha256"] for each in [first, *others]}) == 6
    assert made([1]) == made([2])  # what may change while a run goes on
    assert recorded("loss", torch.no_grad()(entropy)) == recorded("loss", entropy)


# Refusals


def typed() -> Any:
    space: dict[str, Any] = {}
    exec("def typed(scores, targets):\n    return scores.sum()", space)
    return space["typed"]


def shape(scores: Tensor, targets: Tensor) -> Tensor:
    return scores * targets


def detached(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.detach(), targets)


def infinite(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores.abs() / targets.floor()).mean()


def steep_at_zero(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores.pow(2).sum(-1)).sqrt()


def missing(scores: Tensor) -> Tensor:
    return scores.sum()


def number(scores: Tensor, targets: Tensor) -> Any:
    return float(scores.detach().sum())


def floats(images: Tensor, generator: torch.Generator) -> Tensor:
    return images / 255


def nothing(images: Tensor, generator: torch.Generator) -> Any:
    images.zero_()


LOSSES: list[tuple[Any, str]] = [
    (lambda scores, targets: scores.sum(), "a function that is written with def .*<lambda>"),
    (functools.partial(entropy), "a function that is written with def .* not functools.partial"),
    (math.sin, "a function that is written with def .* not <built-in"),
    ("bce", "source, not 'bce'; options of a recipe are set there"),
    (typed(), "in a file or a notebook, since a run records its source, not <function typed"),
    (shape, r"each image, float32 \(8,\), or their mean, not float32 \(8, 3\)$"),
    (detached, "does not depend on the scores: nothing is learned$"),
    (infinite, "loss=infinite gives a loss that is not finite for scores of about 1: avoid"),
    (steep_at_zero, "gives a gradient that is not finite for scores of 0: avoid"),
    (missing, "loss=missing fails on a trial batch: TypeError: .* positional argument"),
    (number, "loss must return a tensor, not a float$"),
]
TRANSFORMS: list[tuple[Any, str]] = [
    (floats, r"uint8 \(8, 3, 16, 16\) on cpu, not float32 \(8, 3, 16, 16\) on cpu$"),
    (nothing, "transform must return a tensor, not a NoneType$"),
    (entropy, "transform=entropy fails on a trial batch: "),
]
TOGETHER: list[tuple[dict[str, Any], dict[str, Any], str]] = [  # options, functions
    ({"balance": "weights"}, {"loss": entropy}, "balance=weights changes the recipe's loss"),
    ({"fit": "native", "tokens": 16}, {"transform": kept}, "transform needs images of one size"),
    (
        {"task": "mae", "patch": 8, "label_smoothing": 0.0, "balance": "none"},
        {"loss": entropy},
        "takes labels, but task=mae has none: leave",
    ),
]


@pytest.mark.parametrize(
    ("options", "own", "match"),
    [
        *(({}, {"loss": loss}, match) for loss, match in LOSSES),
        *(({}, {"transform": transform}, match) for transform, match in TRANSFORMS),
        *TOGETHER,
    ],
)
def test_what_cannot_serve_is_refused_before_anything_is_written(
    options: dict[str, Any], own: dict[str, Any], match: str, few: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=match) as caught:
        vitlab.train(recipe(few, **options), tmp_path / "run", **own, host=LIGHT)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_finetune_and_campaigns_pass_them_on(few: Path, tmp_path: Path) -> None:
    base = vitlab.create(TINY["model"], classes=2, image_size=16)
    lines: list[dict[str, Any]] = []
    options = {"steps": 1, "batch": 8, "warmup": 0.0, "on_line": lines.append}
    vitlab.finetune(
        str(few), base, tmp_path / "named", loss="bce", head_start="zero", **options, host=LIGHT
    )
    assert lines[-1]["kind"] == "result"
    each = {
        "tuned": functools.partial(vitlab.finetune, str(few), base),
        "folds": functools.partial(vitlab.cross_validate, recipe(few)),
        "swept": functools.partial(vitlab.sweep, recipe(few), grid=[0.01]),
    }
    for name, start in each.items():
        for own in ({"transform": floats}, {"loss": number}):
            with pytest.raises(OptionError, match="must return"):
                start(out=tmp_path / name, **own)
        assert not (tmp_path / name).exists()


def test_several_labels_need_no_sigmoid_of_the_recipe(few: Path, tmp_path: Path) -> None:
    files = sorted(few.rglob("*.png"))
    table = few.parent / "several.csv"
    table.write_text("path,labels\n" + "".join(f"{f},{f.parent.name}|any\n" for f in files))

    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        assert set(targets.unique().tolist()) <= {0.0, 1.0}
        return F.binary_cross_entropy_with_logits(scores, targets)

    options = vitlab.recipe("small", str(table), **TINY, steps=1, batch=8, label_smoothing=0.0)
    with pytest.raises(OptionError, match='need loss="bce"'):
        vitlab.train(options, tmp_path / "run", host=LIGHT)
    assert 0 <= vitlab.train(options, tmp_path / "run", loss=loss, host=LIGHT).metrics["map"] <= 1
