"""Held-out images: which they are, and how many numbers are looked at to choose them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from counted import Counted
from vitlab.data.holdout import hash_uniform, stratified_holdout
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.memory import Arrays


def a_source(labels: Any, content: Any, classes: int) -> Images:
    images = np.zeros((len(labels), 1, 1, 3), np.uint8)
    names = tuple(map(str, range(classes)))
    return replace(Images.of(Arrays(images), SingleLabels(labels), names), content=content)


def one_class_after_another(source: Images, fraction: float) -> Any:
    """The same choice as its description has it."""
    chance, values = hash_uniform(source, "test"), source.target.strata
    taken = chance < fraction
    classes = [np.flatnonzero(values == label) for label in np.unique(values)]
    for own in classes:
        if not taken[own].any() and round(fraction * len(own)):
            taken |= chance == chance[own].min()
    for own in classes:
        if taken[own].all():
            taken &= chance != chance[own].max()
    return np.flatnonzero(taken)


@pytest.mark.parametrize("fraction", [0.0, 0.03, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("classes", [1, 7, 300])
@pytest.mark.parametrize("images", [0, 1, 40, 1200])
def test_the_images_are_those_of_one_class_after_another(
    images: int, classes: int, fraction: float
) -> None:
    generator = np.random.default_rng(images + classes)
    labels = generator.integers(0, classes, images)
    content = generator.integers(0, max(2, images // 2), images).astype(np.uint64)  # with copies
    source = a_source(labels, content, classes)
    assert np.array_equal(
        stratified_holdout(source, fraction, "test"), one_class_after_another(source, fraction)
    )


def test_each_image_is_looked_at_a_few_times_however_many_classes_there_are() -> None:
    """Half of the classes, of three images, need one to be taken that chance did not."""
    content = np.random.default_rng(0).integers(0, 2**63, 3000).astype(np.uint64)
    labels = np.arange(3000) % 1000
    source = a_source(labels.view(Counted), content.view(Counted), 1000)
    Counted.seen = 0
    assert len(stratified_holdout(source, 0.2, "test")) > 1000
    assert Counted.seen < 40 * 3000
