"""What each command makes of a run that learned without labels: it works, or says what would."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from conftest import call
from vitlab.commands.push import _figures as figures_of_a_card
from vitlab.runs.run_folder import RunFolder


def an_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(pixels).save("image.png")


def other(run: Path, place: Path, *, seed: int = 1, task: str = "") -> Path:
    """Copy a run as one of another seed, with half its loss, or of another task."""
    shutil.copytree(run, place)
    text = (run / "run.toml").read_text().replace("\nseed = 0", f"\nseed = {seed}")
    if task:
        text = text.replace('task = "masked-patch"', f'task = "{task}"').replace(
            "mask_ratio = 0.5", "mask_ratio = 0.75"
        )
    (place / "run.toml").write_text(text)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["loss"] /= 2
        if line["kind"] == "result" and task:
            line["task"] = task
    (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def test_its_advice_works(
    unlabeled_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("finetune", "digits", "--from", str(unlabeled_run), "--out", str(tmp_path / "tuned"))
    code, _, err = call(capsys, *words, "--steps", "2", "--batch", "256", "--warmup-steps", "0")
    assert code == 0, err
    assert call(capsys, "evaluate", str(tmp_path / "tuned"), "digits")[0] == 0


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("export", "RUN", "--to", "timm", "--out", "timm"), "for timm"),
        (("embed", "RUN", "image.png", "--out", "features.parquet"), "16"),
        (("fewshot", "RUN", "digits", "--protocol", "knn", "--cache", "no"), "20 neighbors"),
        (("measure", "RUN"), "attention"),
    ],
)
def test_what_needs_features_alone_works(
    unlabeled_run: Path, words: tuple[str, ...], found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    an_image()
    code, out, err = call(
        capsys, *[str(unlabeled_run) if word == "RUN" else word for word in words]
    )
    assert code == 0, err
    assert found in out


def test_its_card_has_no_figures_of_a_test(unlabeled_run: Path) -> None:
    assert figures_of_a_card(str(unlabeled_run), vitlab.load(unlabeled_run)) is None


def test_runs_of_one_task_are_compared(
    unlabeled_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    second = other(unlabeled_run, tmp_path / "second")
    page = tmp_path / "page.html"
    code, out, err = call(capsys, "compare", str(unlabeled_run), str(second), "--out", str(page))
    assert code == 0
    assert err.count("\n") == 1
    assert "learned without labels, and so without a test accuracy: run, second" in err
    assert all(word in out for word in ("20-NN", "--seed", str(page)))
    found = vitlab.compare([unlabeled_run, second])
    loss = RunFolder(unlabeled_run).result()["loss"]
    assert [each["loss"] for each in found["runs"]] == [loss, loss / 2]
    assert {each["task"] for each in found["runs"]} == {"masked-patch"}
    assert found["seeds"][0]["mean"]["loss"] == pytest.approx(0.75 * loss)
    assert found["seeds"][0]["std"]["knn"] == 0
    text = page.read_text()
    assert "learned without labels, and so without a test accuracy: run, second" in text
    assert "mean and sample standard deviation over runs that differ in their seed" in text
    assert f'<span class="best">{loss / 2:.4f}</span>' in text
    assert "20-NN accuracy" in text
    for word in ("Test images", "Accuracy on held-out", "Paired tests"):
        assert word not in text


def test_losses_of_different_tasks_are_not_compared(unlabeled_run: Path, tmp_path: Path) -> None:
    second = other(unlabeled_run, tmp_path / "second", seed=0, task="mae")
    page = tmp_path / "page.html"
    found = vitlab.compare([unlabeled_run, second], page)
    assert found["notes"][1] == (
        "losses are different quantities, those of different tasks (run: masked-patch, second: mae)"
    )
    assert "--mask-ratio" in found["notes"][2]
    assert 'class="best"' not in page.read_text()


def test_a_tokenizer_can_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "dVAE(codes=12,code_width=6,width=8)/4"
    saved = vitlab.save(vitlab.create(name, image_size=8), tmp_path / "tokenizer")
    code, out, _ = call(capsys, "load-check", str(saved))
    assert (code, name in out, ".weight from " in out) == (0, True, True)
