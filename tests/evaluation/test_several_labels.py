"""Models of images with several labels: evaluated, asked about files, reported on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import photo_folder
from vitlab.data.learning import open_to_learn
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import predict
from vitlab.evaluation.metrics import figures
from vitlab.report.gather import write_report
from vitlab.runs.run_folder import RunFolder


def listed(folder: Path) -> str:
    photo_folder(folder, {"red": 6, "green": 6})
    rows = [
        {"path": f"{name}/{i:03d}.png", "labels": [name] if i % 2 else [name, "odd"]}
        for name in ("red", "green")
        for i in range(6)
    ]
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "list.jsonl")


def model() -> vitlab.VisionTransformer:
    labels = ("green", "odd", "red")
    made = vitlab.create(
        "ViT(width=16,depth=2,heads=2,mlp=32)/4", classes=3, image_size=16, labels=labels
    )
    assert isinstance(made, vitlab.VisionTransformer)
    with torch.no_grad():
        for weights in made.parameters():
            weights.normal_(0, 0.2, generator=torch.Generator().manual_seed(weights.numel()))
    return made.eval()


def test_evaluation_gives_each_class_a_probability_of_its_own(tmp_path: Path) -> None:
    data = listed(tmp_path)
    result = vitlab.evaluate(model(), data, split="all")
    assert {"map", "micro_f1", "macro_f1", "bce"} <= set(result)
    assert not {"accuracy", "top5", "nll", "ece"} & set(result)
    source = open_to_learn(data).whole
    assert source is not None
    own = predict(model(), source, Compute(torch.device("cpu"), workers=0))
    assert own.labels.values.dtype == np.uint8
    assert own.labels.values.tolist() == source.labels.values.tolist()
    assert not np.allclose(own.probabilities.sum(1), 1)
    assert figures(own.probabilities, own.labels)["map"] == result["map"]


def test_answers_about_files_know_it(tmp_path: Path) -> None:
    listed(tmp_path)
    made = model()
    one = vitlab.classify(made, [str(tmp_path / "red" / "000.png")], top=3)[0]
    made.provenance = {"multi_label": True}
    several = vitlab.classify(made, [str(tmp_path / "red" / "000.png")], top=3)[0]
    assert abs(sum(chance for _, chance in one.classes) - 1) < 1e-6
    assert abs(sum(chance for _, chance in several.classes) - 1) > 1e-3
    assert [name for name, _ in one.classes] == [name for name, _ in several.classes]


@pytest.mark.drawn
def test_the_report_shows_what_there_is(tmp_path: Path) -> None:
    source = open_to_learn(listed(tmp_path)).whole
    assert source is not None
    made = model()
    result = predict(made, source, Compute(torch.device("cpu"), workers=0))
    (tmp_path / "run.toml").write_text('[run]\ncommand = "x"\n[versions]\n[data]\ndata = "y"\n')
    line = {"kind": "test", "step": 1, "epoch": 1.0, "loss": 0.5, "accuracy": 0.5, "map": 0.4}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    metrics = figures(result.probabilities, result.labels)
    page = write_report(RunFolder(tmp_path), made, source, result, metrics, []).read_text()
    assert "mean average precision over the classes" in page
    assert "green, odd" in page
    assert "Confusion matrix" not in page
    assert "Calibration" not in page
