"""`head_start`: where a new classifier starts, and which of two classifiers a run keeps."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import vitlab
from conftest import BRIEF, call, fewer_digits, photo_folder
from steps import each_step
from training.kept import journal, stopped
from vitlab.data.loading.batch import Batch
from vitlab.data.open_splits import open_to_learn
from vitlab.evaluation.answers import answers_of
from vitlab.evaluation.calibration import validation_of
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import features_in_memory
from vitlab.evaluation.infer import predict
from vitlab.evaluation.paired_tests import pairs_of
from vitlab.evaluation.run_predictions import reopened
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import observer
from vitlab.training.model_choice import ModelChoice
from vitlab.training.session import Session
from vitlab.training.state import RunState
from vitlab.training.step import Trainer
from vitlab.training.stop import Interrupted

HOST = Host(workers=0, report="no", effort=BRIEF)
QUICK: dict[str, Any] = {"steps": 3, "batch": 16, "ema": 0.5}


@pytest.fixture(autouse=True, scope="module")
def _few_digits() -> Iterator[None]:
    """As many as have some held out for a choice and for a temperature."""
    with fewer_digits(1300):
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A saved model of another task."""
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create("ViT(width=32,depth=2,heads=2,mlp=64)/4", 7, 8, generator=generator)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return str(vitlab.save(model, tmp_path_factory.mktemp("weights") / "model"))


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("data") / "photos"
    return str(photo_folder(folder, {"blue": 12, "green": 12, "red": 12}))


@pytest.fixture(scope="module")
def digits(weights: str, tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A run whose rate destroys what it starts from."""
    out = tmp_path_factory.mktemp("digits") / "run"
    return vitlab.finetune("digits", weights, out, host=HOST, **QUICK | {"lr": 1.0})


def same(one: Any, other: Any) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(t, theirs[name]) for name, t in one.state_dict().items())


def test_the_fitted_head_is_scikit_learns(weights: str, digits: vitlab.Run) -> None:
    fitted = vitlab.load(digits.folder / "head-start.safetensors")
    splits, recipe = reopened(RunFolder(digits.folder)), digits.metrics["head_start"]
    learn = splits.train
    assert len(learn) == recipe["images"]
    x, y = features_in_memory(fitted, learn, Compute()).values, learn.target.values
    center, scale = x.mean(0, np.float64), x.std(0, np.float64) + 1e-5
    oracle = LogisticRegression(C=1 / (recipe["l2"] * len(x)), max_iter=5000, tol=1e-8)
    oracle.fit((x - center) / scale, y)
    test = features_in_memory(fitted, splits.test, Compute()).values
    ours = test @ fitted.head.classify.weight.detach().numpy().T
    ours += fitted.head.classify.bias.detach().numpy()
    assert (ours.argmax(1) == oracle.predict((test - center) / scale)).mean() > 0.99


def test_the_better_of_both_is_kept_by_validation(digits: vitlab.Run) -> None:
    fitted = vitlab.load(digits.folder / "head-start.safetensors")
    assert same(digits.model, fitted)
    assert digits.metrics["accuracy"] == digits.metrics["head_start"]["accuracy"] > 0.5
    assert any("between the fitted classifier and" in each for each in digits.metrics["notes"])
    assert "calibration" not in digits.metrics  # it has been, by cross-validation
    evaluated = vitlab.evaluate(digits.model, "digits")
    assert evaluated["accuracy"] == digits.metrics["accuracy"]


def predicted(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Notes how often so many images are predicted."""
    real, calls = observer.predict, list[int]()

    def note(model: Any, source: Any, *rest: Any, **options: Any) -> Any:
        if len(source) == count:
            calls.append(len(source))
        return real(model, source, *rest, **options)

    monkeypatch.setattr(observer, "predict", note)
    return calls


@pytest.mark.parametrize(("lr", "tests"), [(1.0, 1), (2e-3, 2)])
def test_a_classifier_that_is_kept_is_tested_once(
    weights: str, lr: float, tests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = predicted(monkeypatch, len(open_to_learn("digits").test))
    run = vitlab.finetune("digits", weights, tmp_path / "run", host=HOST, **QUICK | {"lr": lr})
    assert len(calls) == tests
    about = run.metrics["head_start"]
    line = next(each for each in run.metrics["notes"] if each.startswith("kept: "))
    assert about["kept"] == ("fitted" if tests == 1 else "fine-tuned")
    assert about["by"] == "validation"
    assert ("gain" in about) == (tests == 2)
    scores = [about["validation_accuracy"], about["validation_accuracy_tuned"]]
    first, trained = (f"{100 * each:.1f}% (" for each in scores)
    held = f"on the {about['validation_images']} validation images ("
    low, high = about["accuracy_interval"]
    assert low < about["accuracy"] < high
    mine = f"{100 * about['accuracy']:.1f}% ({100 * low:.1f} to {100 * high:.1f})"
    start = "the classifier fitted before training"
    if tests == 1:
        assert scores[0] > scores[1]
        assert line.startswith(f"kept: {start}, the better {held}the fine-tuned model {trained}")
        assert f", {start} {first}" in line
        assert line.endswith(f"; on the 260 test images it has {mine}")
    else:
        gain = run.metrics["accuracy"] - about["accuracy"]
        assert about["gain"] == pytest.approx(gain)
        low, high = about["gain_interval"]
        assert low <= gain <= high
        assert line.startswith("kept: the fine-tuned model, ")
        assert held in line
        assert f", {start} {mine}: " in line
        assert ("too few images to tell" in line) == (low <= 0 <= high)


def test_the_interval_of_the_gain_is_that_of_compare(
    weights: str, photos: str, tmp_path: Path
) -> None:
    run = vitlab.finetune(photos, weights, tmp_path / "run", host=HOST, **QUICK | {"lr": 0.03})
    splits = reopened(RunFolder(run.folder))
    start = vitlab.load(run.folder / "head-start.safetensors")
    both = []
    for model in (start, run.model):
        done = predict(model, splits.test, Compute("cpu", engine="plain", workers=0))
        both.append(answers_of(done.probabilities, done.labels))
    want = pairs_of(both, BRIEF.resamples)[0].differences["accuracy"]
    found = run.metrics["head_start"]
    assert found["gain"] == want.value
    assert found["gain_interval"] == pytest.approx(want.interval)
    assert found["by"] == "few images"
    line = run.metrics["notes"][-1]
    assert line.startswith("kept: the fine-tuned model (with fewer than 500 training images ")
    assert line.endswith("too few images to tell which is better")
    assert "validation_accuracy" not in found


def test_a_person_learns_what_to_do_with_the_better_head(
    weights: str, photos: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a run"
    how = QUICK | {"lr": 1.0, "warmup_steps": 0}
    run = vitlab.finetune(photos, weights, out, host=HOST, **how)
    about = run.metrics["head_start"]
    assert about["gain"] < 0
    err = capsys.readouterr().err
    line, advice = run.metrics["notes"][-2:]
    assert line.startswith("kept: the fine-tuned model")
    assert line in err
    assert advice in err
    commands = [
        each.split("vitlab ")[1] for each in re.findall("vitlab [^…]*? (?:IMAGE|DATA)", advice)
    ]
    assert len(commands) == 2
    image = str(next(Path(photos).rglob("*.png"), None) or next(Path(photos).rglob("*.jpg")))
    for each in commands:
        words = [{"IMAGE": image, "DATA": photos}.get(word, word) for word in shlex.split(each)]
        code, said, err = call(capsys, *words, "--json")
        assert code == 0, err
        if words[0] == "evaluate":
            assert json.loads(said)["accuracy"] == about["accuracy"]


def test_the_temperature_is_fitted_to_what_was_held_out(
    weights: str, tmp_path: Path, photos: str
) -> None:
    run = vitlab.finetune("digits", weights, tmp_path / "run", host=HOST, **QUICK | {"lr": 1e-3})
    kept, found = vitlab.load(run.folder), run.metrics["calibration"]
    assert kept.temperature == run.model.temperature == found["temperature"] != 1
    assert found["images"] == len(validation_of(kept, "digits"))
    assert vitlab.calibrate(kept, "digits", workers=0).temperature == pytest.approx(
        found["temperature"], rel=1e-4
    )
    assert found["after"]["nll"] == run.metrics["nll"] != found["before"]["nll"]
    assert vitlab.evaluate(run.model, "digits")["nll"] == pytest.approx(run.metrics["nll"])
    few = vitlab.finetune(photos, weights, tmp_path / "few", host=HOST, **QUICK, patience=3)
    assert few.model.temperature == 1  # three validation images
    assert "calibration" not in few.metrics


def test_a_run_that_is_stopped_leaves_a_classifier_and_goes_on_to_the_same_bits(
    weights: str, photos: str, tmp_path: Path
) -> None:
    whole = vitlab.finetune(photos, weights, tmp_path / "whole", host=HOST, **QUICK)
    recipe = vitlab.recipe("finetune", photos, weights=weights, **QUICK)
    stopped(1, recipe, tmp_path / "run", HOST)
    left = vitlab.load(tmp_path / "run")
    assert left.config.labels == ("blue", "green", "red")
    found = vitlab.evaluate(left, photos)
    assert found["accuracy"] == whole.metrics["head_start"]["accuracy"] == 1.0
    run = vitlab.train(recipe, tmp_path / "run", resume=True, host=HOST)
    assert same(run.model, whole.model)
    assert not same(run.model, left)
    assert run.metrics["head_start"] == whole.metrics["head_start"]


def test_a_stop_before_the_first_step_is_no_evaluation_without_a_gain(
    weights: str, tmp_path: Path
) -> None:
    how = QUICK | {"lr": 1e-4, "patience": 1}
    recipe, real = vitlab.recipe("finetune", "digits", weights=weights, **how), Session.batches

    def stopping(self: Session, last: int) -> Any:
        self.stop.asked = True
        return real(self, last)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted, match="step 0 of 3"):
        patch.setattr(Session, "batches", stopping)
        vitlab.train(recipe, tmp_path / "run", host=HOST)
    run = vitlab.train(recipe, tmp_path / "run", host=HOST, resume=True)
    assert journal(run, "validation")[-1]["step"] == 3


def test_back_at_its_start_a_run_still_keeps_the_better_of_both(
    weights: str, tmp_path: Path
) -> None:
    def broken(trainer: Trainer, state: RunState, batch: Batch) -> None:
        if state.step == 1:  # three steps are not finite
            next(state.model.parameters()).data.fill_(torch.nan)

    how = QUICK | {"lr": 1.0, "steps": 10}
    with each_step(broken):
        run = vitlab.finetune("digits", weights, tmp_path / "run", host=HOST, **how)
    assert run.metrics["rollbacks"] == 1
    assert same(run.model, vitlab.load(run.folder / "head-start.safetensors"))


def test_zero_and_random_heads(weights: str, photos: str, tmp_path: Path) -> None:
    still = QUICK | {"steps": 1, "lr": 1e-30, "ema": 0.0}
    heads = {}
    for kind in ("zero", "random", "probe"):
        fields: Any = still | {"head_start": kind}
        run = vitlab.finetune(photos, weights, tmp_path / kind, host=HOST, **fields)
        heads[kind] = run.model.head.classify.weight.detach()
        assert ("head_start" in run.metrics) == (kind == "probe")
        assert (run.folder / "head-start.safetensors").exists() == (kind == "probe")
    assert heads["zero"].abs().max() < 1e-20
    assert 0.01 < heads["random"].std() < 0.03
    same_classes = {"data": photos, "weights": str(tmp_path / "random")}
    on = vitlab.finetune(**same_classes, out=tmp_path / "on", host=HOST, **still)
    assert "head_start" not in on.metrics  # it goes on
    assert torch.allclose(on.model.head.classify.weight, heads["random"])


def test_few_images_start_somewhere(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photo_folder(tmp_path / "few", {"a": 1, "b": 3})
    words = ["--steps", "1", "--workers", "0", "--report", "no", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, "finetune", str(data), "--from", weights, *words)
    assert code == 0, err
    assert "the classifier starts " in err


def test_a_head_is_fitted_to_a_share_of_very_many_images(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.training.first_state.MOST", 100)
    run = vitlab.finetune("digits", weights, tmp_path / "run", host=HOST, **QUICK)
    assert run.metrics["head_start"]["images"] == 100
    assert run.metrics["head_start"]["accuracy"] > 0.5


def choice(**changed: Any) -> ModelChoice:
    """A choice of a run of few images, whose test images cannot tell the two models apart."""
    about: dict[str, Any] = {
        "keeps_fitted": False, "held": 0, "held_fitted": -1.0, "held_tuned": -1.0, "images": 46,
        "fitted": 37 / 46, "gain": -5 / 46, "ends": (-0.246, 0.038),
        "file": Path("runs/a run/head-start.safetensors"),
    }  # fmt: skip
    return ModelChoice(**about | changed)


FILE = "'runs/a run/head-start.safetensors'"
FITTED = "the classifier fitted before training"


@pytest.mark.parametrize(
    ("changed", "by", "lines"),
    [
        (
            {},
            "few images",
            [
                "kept: the fine-tuned model (with fewer than 500 training images always: none are "
                "held out to choose by); on the 46 test images it has 69.6% (55.2 to 80.9), "
                f"{FITTED} 80.4% (66.8 to 89.3): −10.9 (−24.6 to 3.8) points, too few images to "
                "tell which is better",
                f"{FITTED}, the better one on these test images, is a model of its own: vitlab "
                f"predict {FILE} IMAGE… uses it, vitlab evaluate {FILE} DATA tests it on other "
                "images",
            ],
        ),
        (
            {"held": 148, "held_fitted": 138 / 148, "held_tuned": 141 / 148, "images": 409,
             "fitted": 0.8, "gain": 0.1, "ends": (0.05, 0.15)},
            "validation",
            [
                "kept: the fine-tuned model, the better on the 148 validation images (the "
                f"fine-tuned model 95.3% (90.6 to 97.7), {FITTED} 93.2% (88.0 to 96.3)); on the "
                f"409 test images it has 90.0% (86.7 to 92.5), {FITTED} 80.0% (75.9 to 83.6): "
                "+10.0 (5.0 to 15.0) points",
            ],
        ),
        (  # a checkpoint of an older version says which are the best weights alone
            {"keeps_fitted": True, "held": 40, "gain": None, "images": 3, "fitted": 2 / 3},
            "validation",
            [f"kept: {FITTED}, the better on the 40 validation images; on the 3 test images it has "
             "66.7%"],
        ),
        (
            {"keeps_fitted": True, "held": 9, "held_fitted": 1.0, "held_tuned": 1.0, "gain": None,
             "images": 4, "fitted": 0.5},
            "validation",
            [f"kept: {FITTED}, equally accurate, but of lower loss, on the 9 validation images "
             f"(the fine-tuned model 100.0% (70.1 to 100.0), {FITTED} 100.0% (70.1 to 100.0)); on "
             "the 4 test images it has 50.0%"],
        ),
        (
            {"keeps_fitted": True, "gain": None, "images": 4, "fitted": 0.5},
            "few steps",
            [f"kept: {FITTED}, since hardly any steps were taken; on the 4 test images it has "
             "50.0%"],
        ),
    ],
)  # fmt: skip
def test_a_sentence_says_which_model_is_kept_and_by_what(
    changed: dict[str, Any], by: str, lines: list[str]
) -> None:
    found = choice(**changed)
    assert found.by == found.as_table()["by"] == by
    assert found.lines() == lines
