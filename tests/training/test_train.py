"""Whole runs, small ones: what they leave, what they learn on, when they end."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import vitlab
from conftest import (
    BRIEF,
    LIGHT,
    TINY,
    call,
    fewer_digits,
    photo,
    photo_folder,
)
from training.kept import CLOCKS, EACH, PLAIN, journal, resumed, weights
from vitlab.data.holdout import with_validation
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import DataError, RunError
from vitlab.recipes.recipe import Host
from vitlab.report import gather, pretext_report
from vitlab.runs.run_folder import RunFolder
from vitlab.training import ending, observer
from vitlab.training.session import Session
from vitlab.training.state import Best

FILES = {"run.toml", "metrics.jsonl", "checkpoints", "duplicates.json", "model",
         "predictions.safetensors", "report.html", ".lock"}  # fmt: skip
KEYS = {"accuracy", "top5", "nll", "ece", "images", "model", "params", "macs", *CLOCKS}
SMALL = TINY | {"epochs": 1, "batch": 16}


def test_a_run_leaves_all_it_should_and_the_model_that_was_tested(whole: vitlab.Run) -> None:
    assert {each.name for each in whole.folder.iterdir()} == FILES
    assert [line["step"] for line in journal(whole, "train")] == list(range(1, 7))
    assert [line["step"] for line in journal(whole, "test")] == [4, 6]
    lines = journal(whole)
    assert (lines[-1]["kind"], lines[-2]["accuracy"]) == ("result", whole.metrics["accuracy"])
    assert set(whole.metrics) >= KEYS
    assert whole.metrics["images"] == 73
    assert whole.metrics["params"] == sum(weight.numel() for weight in whole.model.parameters())
    loaded = vitlab.load(whole.folder)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    figures = vitlab.evaluate(loaded, "digits")
    for key in KEYS - CLOCKS:
        assert figures[key] == pytest.approx(whole.metrics[key]), key
    assert loaded.config.labels == tuple("0123456789")
    about = {"recipe": "digits", "seed": 0, "multi_label": False, "data": "digits"}
    assert whole.model.provenance | about == whole.model.provenance
    assert whole.model.provenance["epochs"] == pytest.approx(6 * 80 / 287)


@pytest.mark.workers
def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    again = vitlab.train(
        vitlab.recipe("digits", **PLAIN), tmp_path / "a", host=Host(workers=2, effort=BRIEF)
    )
    other = vitlab.train(vitlab.recipe("digits", **PLAIN | {"seed": 1}), tmp_path / "b", host=LIGHT)
    assert weights(again) == weights(whole) != weights(other)


def test_a_folder_that_holds_a_run_is_kept(whole: vitlab.Run, photos: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole.folder, tmp_path / "run")
    recipe = vitlab.recipe("digits", **PLAIN)
    again = vitlab.train(recipe, run, resume=True, host=LIGHT)
    assert again.metrics == whole.metrics | {"run": str(run), "report": str(run / "report.html")}
    with pytest.raises(ValueError, match="already contains a run: pass resume=True to continue"):
        vitlab.train(recipe, run, host=LIGHT)
    with pytest.raises(ValueError, match="was started with seed=0, not 3"):
        vitlab.train(recipe.changed(seed=3), run, resume=True, host=LIGHT)
    with pytest.raises(ValueError, match="exists and contains no run"):
        vitlab.train(recipe, photos, host=LIGHT)
    with (
        RunFolder(tmp_path / "busy").locked(),
        pytest.raises(ValueError, match="another process is training in"),
    ):
        vitlab.train(recipe, tmp_path / "busy", host=LIGHT)
    assert weights(run) == weights(whole)


def test_held_out_images_stay_held_out_and_changed_data_is_noticed(
    photos: Path, tmp_path: Path
) -> None:
    recipe = vitlab.recipe("small", str(photos), **SMALL)
    run = vitlab.train(recipe, tmp_path / "run", host=EACH)
    model, count = vitlab.load(run.folder), run.metrics["images"]
    assert 6 <= count <= 18
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    assert vitlab.evaluate(model, str(moved))["images"] == count  # known by its content
    assert vitlab.evaluate(model, str(moved), split="all")["images"] == 60
    assert vitlab.evaluate(model, str(photos), split="train")["images"] == 60 - count
    shutil.rmtree(moved / "red")
    held_out = open_to_learn(str(photos)).test
    left = sum("red" not in held_out.name(number) for number in range(count))
    assert vitlab.evaluate(model, str(moved))["images"] == left
    (photos / "red" / "007.png").unlink()
    with pytest.raises(ValueError, match=r"has changed since .* was started"):
        resumed(recipe, run.folder)


ViT = "ViT(width=32,depth=1,heads=2,mlp=64"


@pytest.mark.parametrize(
    "how",
    [
        {"model": "Axial-ResNet-(1-1)", "image_size": 32},
        {"model": f"R(1)+{ViT},branches=2)/8", "layer_scale": 1e-4, "drop_path": 0.2, "ema": 0.0},
        {"model": f"{ViT})/8", "stem": "hmlp", "stem_norm": "batch", "pool": "attention"},
        {"model": f"{ViT})/8", "positions": "rope", "registers": 2, "ffn": "swiglu"},
    ],
)
def test_every_kind_of_model_trains_saves_and_loads(
    photos: Path, tmp_path: Path, how: dict[str, object]
) -> None:
    recipe = vitlab.recipe("small", str(photos), **{"steps": 2, "batch": 16} | how)
    run = vitlab.train(recipe, tmp_path / "run", host=EACH)
    again = vitlab.evaluate(vitlab.load(run.folder), str(photos))
    assert again["nll"] == pytest.approx(run.metrics["nll"])
    assert again["macs"] == run.metrics["macs"]


def test_it_learns(photos: Path, tmp_path: Path) -> None:
    how = TINY | {"steps": 30, "batch": 16, "lr": 1e-2, "precision": "bf16"}
    run = vitlab.train(vitlab.recipe("small", str(photos), **how), tmp_path / "run", host=EACH)
    assert run.metrics["accuracy"] == 1.0
    assert run.model.config.size == (24, 32)


# Augmented and mixed images

MIXED = TINY | {
    "rand_ops": 2, "color_jitter": 0.2, "erase": 0.3, "mixup": 0.8, "cutmix": 1.0, "repeats": 3,
    "loss": "bce", "bce_threshold": 0.0, "label_smoothing": 0.0,
}  # fmt: skip


def test_mixed_batches_in_pieces_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    """Also of an odd number of images, and in pieces of an odd one."""
    recipe = vitlab.recipe("digits", **MIXED | {"steps": 3, "batch": 47, "dropout": 0.0})
    states = [
        vitlab.train(
            recipe.changed(micro_batch=micro), tmp_path / str(micro), host=LIGHT
        ).model.state_dict()
        for micro in (0, 16, 9)
    ]
    for name, tensor in states[0].items():
        for other in states[1:]:
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=2e-4)


def test_a_mixed_run_has_the_same_bits_with_any_number_of_workers(
    photos: Path, tmp_path: Path
) -> None:
    how = MIXED | {"steps": 3, "batch": 16, "dropout": 0.1, "image_size": 16, "area": 0.4}
    recipe = vitlab.recipe("small", str(photos), **how)
    runs = [
        vitlab.train(
            recipe.changed(**more),
            tmp_path / f"{workers}{more}",
            host=Host(workers=workers, effort=BRIEF),
        )
        for workers, more in ((0, {}), (2, {}), (0, {"mixup": 0.0}), (0, {"cutmix": 0.0}))
    ]
    sums = [weights(run) for run in runs]
    assert (sums[0], len(set(sums))) == (sums[1], 3)  # each way of mixing matters


# Damaged images


def test_damaged_images_are_skipped_counted_and_limited(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ["red/000.png", "green/001.png", *(f"blue/{n:03d}.png" for n in range(4))]
    for name in broken:
        (photos / name).write_bytes(b"\x89PNG no more")
    recipe = vitlab.recipe("small", str(photos), **SMALL)
    for limit, said in ((1, "1"), (0.05, '"5%"')):  # five are put up with
        words = rf"6 of 60 .* host=vitlab.Host\(max_bad={said}\) allows: .*max_bad=12\)$"
        with pytest.raises(DataError, match=words):
            vitlab.train(recipe, tmp_path / "strict", host=Host(max_bad=limit, effort=BRIEF))
        said = capsys.readouterr().err
        assert all(name in said for name in broken), "all of them at once"
        assert not (tmp_path / "strict").exists()
    followed = vitlab.train(
        recipe, tmp_path / "strict", host=Host(max_bad=12, workers=0, effort=BRIEF)
    )
    told = "\n".join(followed.metrics["notes"]), capsys.readouterr().err
    assert all(each.count(f"{name}: ") == 1 for each in told for name in broken)
    other = vitlab.train(
        recipe, tmp_path / "workers", host=Host(max_bad=0.1, workers=2, effort=BRIEF)
    )
    assert followed.metrics["damaged"] == other.metrics["damaged"] == 6
    assert weights(followed) == weights(other)


def test_a_few_damaged_of_few_are_named_before_the_first_step_and_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ["red/000.png", "green/001.png", "blue/019.png"]
    for name in broken:
        (photos / name).write_bytes((photos / name).read_bytes()[:200])
    base = vitlab.create(f"{ViT})/4", classes=3, image_size=24)
    lines: list[str] = []

    def on_line(line: dict[str, object]) -> None:
        lines.append(capsys.readouterr().err + str(line["kind"]))

    given: dict[str, Any] = {"data": str(photos), "weights": base, "out": tmp_path / "run"}
    given |= {"steps": 2, "batch": 8, "host": Host(workers=0, effort=BRIEF)}
    run = vitlab.finetune(**given, on_line=on_line)
    assert all(f"{name}: damaged" in lines[0] for name in broken)
    assert all(lines[0].count(name) == 1 and name not in "".join(lines[1:]) for name in broken)
    assert run.metrics["damaged"] == 3
    note = "no test image is a near-duplicate of a training image (3 damaged images could not"
    assert any(each.startswith(note) for each in run.metrics["notes"])
    with pytest.raises(RunError, match=r"steps=2, not 3.*change=True"):
        vitlab.finetune(**given | {"steps": 3}, resume=True)


# Patience


def test_the_best_is_the_most_accurate_and_of_equals_the_less_surprised() -> None:
    best, model = Best(), torch.nn.Linear(1, 1, bias=False)
    looks = [(0.5, 1.0), (0.6, 1.2), (0.6, 1.1), (0.6, 1.1), (0.4, 0.1)]
    for step, (accuracy, loss) in enumerate(looks, 1):
        torch.nn.init.constant_(model.weight, step)
        best.compare(step, accuracy, loss, model)
    assert (best.step, best.since) == (3, 2)
    assert [best.exhausted(patience) for patience in (0, 2, 3)] == [False, True, False]
    best.restore(model)
    assert model.weight.item() == 3


def test_a_tenth_of_each_class_is_held_out_of_training_and_never_of_testing() -> None:
    with fewer_digits(1797):
        before = open_to_learn("digits")
    after = with_validation(before)
    assert after.validation is not None
    assert len(after.train) + len(after.validation) == len(before.train) == 1438
    assert after.test is before.test
    held, of = (np.bincount(each.target.values) for each in (after.validation, before.train))
    assert 110 < held.sum() < 178  # three deviations around a tenth
    assert np.all((held > 0) & (held < 0.25 * of))
    pixels = {after.train.image(i).content() for i in range(len(after.train))}
    others = [after.validation.image(i).content() for i in range(len(after.validation))]
    assert sum(each in pixels for each in others) <= 1  # digits has a twin or two of its own
    assert with_validation(after) is after


@pytest.mark.parametrize(
    "how", [{"ema": 0.9}, {"optimizer": "schedule-free", "schedule": "constant"}], ids=str
)
def test_a_run_ends_when_patience_does_and_keeps_the_best(
    how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third look is made the best one."""
    seen: dict[int, dict[str, torch.Tensor]] = {}
    real, point = Best.compare, observer.curve_point

    def look(self: Best, step: int, *rest: Any) -> None:
        real(self, step, *rest)
        seen[step] = {n: t.clone() for n, t in rest[2].state_dict().items()}

    def falling(*given: Any) -> dict[str, float]:
        return point(*given) | {"accuracy": 1.0 - 0.1 * abs(len(seen) - 2)}

    monkeypatch.setattr(Best, "compare", look)
    monkeypatch.setattr(observer, "curve_point", falling)
    how = TINY | {"epochs": 8, "batch": 32, "patience": 2, "test_every": 0.25, "ema": 0} | how
    run = vitlab.train(vitlab.recipe("digits", **how), tmp_path / "run", host=LIGHT)
    assert len(seen) == 5
    for name, tensor in vitlab.load(run.folder).state_dict().items():
        assert torch.equal(tensor, list(seen.values())[2][name])
    assert run.metrics["images"] == 73  # the test images, all of them, and only for the figures
    assert max(line["step"] for line in journal(run) if "step" in line) == list(seen)[-1]


# What is not done twice, and not at all

Counted = Callable[..., tuple[vitlab.Run, int]]


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Train, and count how often whole sources are predicted beyond the points of the curve."""
    real, calls = observer.predict, list[int]()

    def count(model: Any, source: Any, *rest: Any, **options: Any) -> Any:
        calls.append(len(source))
        return real(model, source, *rest, **options)

    monkeypatch.setattr(observer, "predict", count)

    def train(name: str, data: str, **how: Any) -> tuple[vitlab.Run, int]:
        calls.clear()
        how = TINY | {"epochs": 1, "batch": 16, "test_every": 1, "image_size": 8} | how
        run = vitlab.train(vitlab.recipe("small", data=data, **how), tmp_path / name, host=LIGHT)
        return run, len(calls) - len(journal(run, "test") + journal(run, "validation"))

    return train


def test_what_was_just_predicted_is_not_predicted_again(
    counted: Counted, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert counted("whole", str(photos))[1] == 0
    assert counted("patient", str(photos), patience=2)[1] == 1  # on the test images, at the end
    lossy = photo_folder(tmp_path / "jpeg", {"a": 0, "b": 0})
    for number in range(20):  # of several times the model's 8 pixels
        for tint, name in enumerate("ab"):
            photo(number, 40, 40, tint).save(lossy / name / f"{number}.jpg")
    run, again = counted("lossy", str(lossy))
    assert again == 0
    nll = vitlab.evaluate(run.model, str(lossy))["nll"]
    assert nll == pytest.approx(run.metrics["nll"], abs=1e-9)
    real = Session.evaluate  # predictions of earlier steps are not those of the last
    monkeypatch.setattr(Session, "evaluate", lambda self: real(self) if self.state.step < 3 else [])
    run, again = counted("unmeasured", str(photos))
    assert again == 1
    assert vitlab.evaluate(run.model, str(photos))["nll"] == pytest.approx(run.metrics["nll"])


@pytest.fixture
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is done for a page alone."""

    def fail(*_: Any) -> None:
        raise AssertionError("nobody wants this page")

    for room, name in ((gather, "write_report"), (gather, "survey"), (ending, "_pictures"),
                       (pretext_report, "write_pretext_report")):  # fmt: skip
        monkeypatch.setattr(room, name, fail)


@pytest.mark.usefixtures("_no_page")
@pytest.mark.parametrize("name", ["digits", "mae"])
def test_without_a_report_no_page_is_made_and_none_is_named(
    name: str, tmp_path: Path, photos: Path
) -> None:
    host = Host(report="no", check_duplicates="no", workers=0, effort=BRIEF)
    recipe = vitlab.recipe(name, data=str(photos) if name == "mae" else "digits", **SMALL)
    run = vitlab.train(recipe, tmp_path / "run", host=host)
    folder = RunFolder(run.folder)
    assert not folder.report.exists()
    for found in (run.metrics, folder.result(), folder.journal.read()[-1]):
        assert found is not None
        assert found["run"] == str(run.folder)
        assert "report" not in found
    assert vitlab.train(recipe, run.folder, host=host, resume=True).metrics == folder.result()


def test_all_but_the_page_is_the_same(
    whole: vitlab.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = shutil.copytree(whole.folder, tmp_path / "with")
    host = Host(report="no", effort=BRIEF)
    other = vitlab.train(vitlab.recipe("digits", **PLAIN), tmp_path / "without", host=host).folder
    assert FILES - {each.name for each in other.iterdir()} == {"report.html"}
    assert (weights(one), journal(one)) == (weights(other), journal(other))
    answers = [load_file(each / "predictions.safetensors") for each in (one, other)]
    assert all((answers[0][name] == answers[1][name]).all() for name in answers[0])
    page = tmp_path / "compare.html"
    assert not call(capsys, "compare", str(one), str(other), "--out", str(page))[0]
    assert "with/report.html" in page.read_text()
    assert "without/report.html" not in page.read_text()
    line = ("train", "digits", "--report", "no", "--out", str(other), "--resume")
    code, out, err = call(capsys, *line)
    assert (code, "report.html" in out + err) == (0, False)
    (one / "report.html").unlink()  # what was removed by hand is not named either
    assert "report" not in (RunFolder(one).result() or {})
