"""Images with several labels each: from a list of paths to a trained, tested, saved model."""

import json
from pathlib import Path

import numpy as np
import pytest

import vitlab
from conftest import photo

TINY = {"model": "ViT(width=16,depth=2,heads=2,mlp=32)/4", "image_size": 16, "batch": 32}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Sixty pictures with a tint each, named by it, and every third one by its size as well."""
    lines = []
    for number in range(60):
        tint = number % 3
        file = tmp_path / f"{number:03d}.png"
        photo(number, 24, 32, tint).save(file)
        labels = [("red", "green", "blue")[tint], *(["third"] if number % 3 == 0 else [])]
        split = "test" if number >= 45 else "train"
        lines.append(json.dumps({"path": file.name, "labels": labels, "split": split}))
    (tmp_path / "list.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "list.jsonl"


@pytest.mark.parametrize("loss", ["bce", "sigmoid"])
def test_from_a_list_to_a_model(listed: Path, loss: str, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", data=str(listed), loss=loss, epochs=30, lr=3e-3, **TINY)
    run = vitlab.train(recipe, tmp_path / "run")
    assert run.metrics["map"] > 0.9
    assert "accuracy" not in run.metrics
    assert Path(run.metrics["report"]).is_file()
    again = vitlab.evaluate(vitlab.load(run.folder), str(listed))
    assert again["map"] == pytest.approx(run.metrics["map"])
    answers = vitlab.classify(vitlab.load(run.folder), [str(listed.parent / "048.png")], top=2)
    assert {name for name, _ in answers[0].classes} == {"red", "third"}
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    curve = [line["map"] for line in lines if line["kind"] == "test"]
    assert np.mean(curve[-3:]) > curve[0]


def test_mixed_images_have_the_labels_of_both(listed: Path, tmp_path: Path) -> None:
    how = TINY | {"epochs": 2, "mixup": 0.5, "cutmix": 1.0}
    recipe = vitlab.recipe("small", data=str(listed), loss="bce", **how)
    assert vitlab.train(recipe, tmp_path / "run").metrics["map"] > 0


def test_one_class_an_image_is_no_loss_for_them(listed: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", data=str(listed), **TINY)
    with pytest.raises(vitlab.UserError, match="loss") as caught:
        vitlab.train(recipe, tmp_path / "run")
    assert "\n" not in str(caught.value)
