"""Facts of reports that no run has made."""

from dataclasses import replace

import numpy as np

from vitlab.data.labels import SingleLabels
from vitlab.evaluation.per_class import (
    ConfusionMatrix,
    class_figures,
    confused_pairs,
    confusion,
)
from vitlab.evaluation.reliability import bins
from vitlab.models.model import PartCost
from vitlab.report.facts import Judged, Point, RunFacts, Survey

NASTY = "<script>alert(\"x\")</script> & 'quotes' ünïcode"


def cells(table: list[list[int]]) -> ConfusionMatrix:
    """A confusion matrix of these cells."""
    counts = np.array(table)
    true, predicted = np.nonzero(counts)
    return ConfusionMatrix(len(counts), true, predicted, counts[true, predicted])


def point(step: int, loss: float, **values: float) -> Point:
    """A point of a learning curve of ten steps an epoch."""
    return Point(step, step / 10, {"loss": loss} | values)


def some(classes: int = 10, images: int = 300, channels: int = 3) -> RunFacts:
    """Facts of a middling classifier."""
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, images)
    scores = generator.normal(size=(images, classes)) + 3 * np.eye(classes)[labels]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    shape = (32, 48, 3) if channels == 3 else (8, 8)
    picture = generator.integers(0, 256, shape, np.uint8)
    names = tuple(f"class {i}" for i in range(classes))
    table = confusion(probabilities, SingleLabels(labels))
    name = "some folder/é a.png"
    judged = Judged(name, "class 1", "class 0", 0.93, 0.0123, picture, (1, 0))
    spread = np.linspace(10, 30, classes).astype(int).tolist()
    accuracy = float((probabilities.argmax(1) == labels).mean())
    return RunFacts(
        model="ViT-Ti/2",
        run={
            "command": "vitlab train digits --out 'runs/my run'",
            "started": "2026-03-04T05:06:07+00:00", "fingerprint": "abcdef0123456789",
        },
        figures={
            "accuracy": accuracy, "top5": 0.99, "nll": 0.1, "ece": 0.02, "images": images,
            "params": 674_410, "macs": 11_620_416, "images_per_second": 1383.0,
            "peak_memory": 446_865_408, "seconds": 62.4, "model": "ViT-Ti/2",
        },
        classes=names,
        training=[point(i, 2 / (i + 1), accuracy=i / 40, lr=1e-3) for i in range(40)],
        testing=[point(i, 2 / (i + 1), accuracy=i / 40) for i in range(0, 40, 10)],
        confusion=table,
        reliability=bins(probabilities, labels),
        mistakes=[judged] * 5,
        cost=[PartCost("stem", 100, 1000), PartCost("attention", 5000, 90_000)],
        recipe={
            "recipe": {"epochs": 60, "seed": 17}, "data": {"data": "some/digits"},
            "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999]},
        },
        versions={"torch": "2.13.0"},
        notes=["skipped: a.png is damaged"],
        per_class=class_figures(probabilities, SingleLabels(labels), names),
        confused=confused_pairs(probabilities, SingleLabels(labels), names),
        predicted=table.dense().sum(0).tolist(),
        survey=Survey(
            {"train": spread, "test": [2] * classes}, {"train": sum(spread), "test": 2 * classes}
        ),
    )  # fmt: skip


def nasty() -> Judged:
    """A mistake whose every name is hostile."""
    return Judged(NASTY, NASTY, f"{NASTY}2", 0.5, 0.25, np.zeros((8, 8), np.uint8), (0, 1))


def calibrated() -> RunFacts:
    """Facts of a run that was calibrated after training."""
    facts = some()
    ranges = {"nll": [0.1, 0.3], "ece": [0.01, 0.04]}
    before = {"nll": 0.25, "ece": 0.1234, "intervals": ranges}
    after = {"nll": 0.2, "ece": 0.02, "intervals": ranges}
    about = {"temperature": 1.5678, "images": 120, "before": before, "after": after}
    figures = facts.figures | {"calibration": about, "intervals": {"accuracy": [0.8123, 0.9345]}}
    return replace(facts, figures=figures)
