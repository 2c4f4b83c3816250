"""Images with several labels each: from a list of paths to a trained, tested, saved model."""

import json
from pathlib import Path

import numpy as np
import pytest

import vitlab
from conftest import BRIEF, LIGHT, photo
from training.kept import journal
from vitlab.recipes.recipe import Host

TINY = {"model": "ViT(width=16,depth=2,heads=2,mlp=32)/4", "image_size": 16, "batch": 32}


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    """Sixty pictures with a tint each, named by it, and every third one by its size as well."""
    lines = []
    for number in range(60):
        file, tint = tmp_path / f"{number:03d}.png", number % 3
        photo(number, 24, 32, tint).save(file)
        labels = [("red", "green", "blue")[tint], *(["third"] if tint == 0 else [])]
        split = "test" if number >= 45 else "train"
        lines.append(json.dumps({"path": file.name, "labels": labels, "split": split}))
    (tmp_path / "list.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "list.jsonl"


def test_from_a_list_to_a_model(listed: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", str(listed), loss="bce", epochs=30, lr=3e-3, mixup=0.1, **TINY)
    run = vitlab.train(recipe, tmp_path / "run", host=Host(workers=0, effort=BRIEF))
    assert run.metrics["map"] > 0.9
    assert "accuracy" not in run.metrics
    model = vitlab.load(run.folder)
    assert vitlab.evaluate(model, str(listed))["map"] == pytest.approx(run.metrics["map"])
    answers = vitlab.classify(model, [str(listed.parent / "048.png")], top=2)
    assert {name for name, _ in answers[0].classes} == {"red", "third"}
    curve = [line["map"] for line in journal(run, "test")]
    assert np.mean(curve[-3:]) > curve[0]
    with pytest.raises(vitlab.UserError, match="loss") as caught:  # of one class an image
        vitlab.train(vitlab.recipe("small", str(listed), **TINY), tmp_path / "other", host=LIGHT)
    assert "\n" not in str(caught.value)
