"""Average precision: that of one image and class after another, in far fewer steps."""

from typing import Any

import numpy as np
import pytest

from counted import calls
from vitlab.data.box_targets import BoxTargets
from vitlab.evaluation.average_precision import average_precision
from vitlab.evaluation.detection import Detections

THRESHOLDS, RECALLS = np.linspace(0.5, 0.95, 10), np.linspace(0, 1, 101)


def scenes(
    images: int, classes: int, most: int, grid: int, seed: int = 0
) -> tuple[list[Detections], Any]:
    """Objects of a few classes an image, and detections near them; on a grid many IoU are equal."""
    draw = np.random.default_rng(seed)
    objects, found = [], []
    for _ in range(images):
        count = draw.integers(0, 15)
        low = draw.random((count, 2)) * 0.7
        own = np.concatenate([low, low + 0.1 + draw.random((count, 2)) * 0.2], 1)
        names = draw.choice(draw.integers(0, classes, 3), count)
        near = draw.integers(0, count, draw.integers(0, most + 1)) if count else np.empty(0, int)
        boxes = own[near] + draw.normal(0, 0.03, (len(near), 4))
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 0.01)
        guess = np.where(draw.random(len(near)) < 0.8, names[near], draw.integers(0, classes))
        chances = draw.random(len(near)).round(1)
        order = np.argsort(-chances, kind="stable")
        if grid:
            own, boxes = (np.round(each * grid) / grid for each in (own, boxes))
        objects.append(np.concatenate([names[:, None], own], 1))
        found.append(Detections(guess[order], chances[order], boxes[order]))
    return found, BoxTargets.of(objects, classes).boxes


def iou(one: Any, other: Any) -> float:
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = sides.clip(0).prod()
    areas = [(each[2:] - each[:2]).prod() for each in (one, other)]
    return float(shared / max(areas[0] + areas[1] - shared, 1e-9))


def one_after_another(found: list[Detections], truth: Any, classes: int, weights: Any) -> Any:
    """The same as the papers have it: (classes, thresholds)."""
    table = np.full((classes, len(THRESHOLDS)), np.nan)
    for name in range(classes):
        rows, count = [], 0.0
        for each, objects, times in zip(found, truth.astype(np.float64), weights, strict=True):
            there = objects[objects[:, 0] == name, 1:]
            count += len(there) * times
            left = np.ones((len(THRESHOLDS), len(there)), bool)
            for own in np.flatnonzero(each.classes == name):
                shares = [iou(each.boxes[own], other) for other in there]
                hits = []
                for row, threshold in enumerate(THRESHOLDS):
                    free = [n for n in range(len(there)) if left[row, n] and shares[n] >= threshold]
                    hits.append(bool(free))
                    if free:
                        left[row, max(free, key=lambda n: (shares[n], n))] = False
                rows.append((-each.chances[own], len(rows), times, hits))
        if not count:
            continue
        rows.sort(key=lambda row: row[:2])
        times = np.array([row[2] for row in rows])
        for number in range(len(THRESHOLDS)):
            good = np.cumsum([row[3][number] * row[2] for row in rows])
            precision = good / np.maximum(np.cumsum(times), 1)
            at = [precision[good / count >= recall] for recall in RECALLS]
            table[name, number] = np.mean([each.max(initial=0) for each in at])
    return table


@pytest.mark.parametrize("grid", [0, 10])
@pytest.mark.parametrize(("images", "classes", "most"), [(1, 2, 30), (25, 5, 20), (12, 40, 12)])
def test_it_is_that_of_one_image_and_class_after_another(
    images: int, classes: int, most: int, grid: int
) -> None:
    found, truth = scenes(images, classes, most, grid, seed=images)
    drawn = np.random.default_rng(1).multinomial(images, np.full(images, 1 / images), 2)
    weights = np.vstack([np.ones(images), drawn]).astype(np.float64)
    for own, table in zip(weights, average_precision(found, truth, classes, weights), strict=True):
        wanted = one_after_another(found, truth, classes, own)
        assert np.allclose(table, wanted, atol=1e-12, equal_nan=True)


def test_more_pairs_than_are_compared_at_once() -> None:
    """A hundred detections of a crowd of 12,000, which are found one by one."""
    side = np.arange(12_000)
    low = np.stack([side % 120, side // 120], 1) / 120
    crowd = np.concatenate([np.zeros((len(low), 1)), low, low + 1 / 150], 1)
    boxes = crowd[::120, 1:]
    found = [Detections(np.zeros(100, np.int64), np.linspace(1, 0.5, 100), boxes)]
    [[own]] = average_precision(found, BoxTargets.of([crowd], 1).boxes, 1, np.ones((1, 1)))
    assert own.tolist() == [1 / 101] * 10  # 100 of 12,000 are less than a hundredth


def test_steps_are_not_of_each_image_and_class() -> None:
    found, truth = scenes(200, 80, 30, 0)
    with calls() as counted:
        average_precision(found, truth, 80, np.ones((1, 200)))
    assert counted[0] < 200 * 80
