"""Boxes under augmentation: crops and mirror images, by hand and against the pixels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.data.augment.augment import augment
from vitlab.data.box_targets import BoxTargets
from vitlab.data.images import Images
from vitlab.data.loading.loader import loader
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.settings import Augment
from vitlab.data.sources.image_files import ImageFiles
from vitlab.data.sources.memory import Arrays
from vitlab.data.sources.paths import Names
from vitlab.images import ImageSpec

SPEC = ImageSpec(image_size=(64, 64), channels=1, mean=(0.0,), std=(1.0,), fit="squash", crop=1.0)
OWN = Augment(area=0.3, flip=True)


def test_boxes_in_a_crop_are_those_computed_by_hand() -> None:
    objects = [[0, 0.5, 0.5, 0.75, 1.0],  # inside
               [1, 0.0, 0.0, 0.45, 0.4],  # center outside
               [2, 0.2, 0.4, 0.6, 0.6]]  # clipped  # fmt: skip
    labels = BoxTargets.of([objects, [[3, 0.1, 0.2, 0.4, 0.6]]], 4)
    found = labels.cropped(0, (25, 100, 75, 200), (64, 64), (200, 100))
    assert found[0].tolist() == [0, 0.5, 0, 1, 1]
    assert found[1].tolist() == pytest.approx([2, 0, 0, 0.7, 0.2])
    assert (found[:, 0] >= 0).sum() == 2
    whole = labels.cropped(1, (0, 0, 9, 7), (64, 64), (7, 9))
    assert np.array_equal(whole, labels.boxes[1])
    turned = labels.mirrored(torch.from_numpy(whole[None]))
    assert turned[0, 0].tolist() == pytest.approx([3, 0.6, 0.2, 0.9, 0.6])


def squares(images: int) -> tuple[np.ndarray, BoxTargets]:
    """Wide black images with one white square each."""
    pixels, objects = np.zeros((images, 120, 200, 1), np.uint8), []
    for number in range(images):
        left, top, side = np.random.default_rng(number).integers((20, 10, 30), (120, 60, 50))
        pixels[number, top : top + side, left : left + side] = 255
        edges = np.array([left, top, left + side, top + side]) / (200, 120, 200, 120)
        objects.append([(0, *edges)])
    return pixels, BoxTargets.of(objects, 1)


@pytest.mark.parametrize(
    ("kind", "repeats", "flip"), [("arrays", 1, True), ("arrays", 1, False), ("jpeg", 2, True)]
)
def test_boxes_lie_where_the_pixels_are(kind, repeats, flip, tmp_path) -> None:
    pixels, labels = squares(24)
    source: Arrays | ImageFiles = Images.of(Arrays(pixels, "image"), labels, ("square",))
    if kind == "jpeg":
        paths = [str(tmp_path / f"{number}.jpg") for number in range(len(pixels))]
        for path, own in zip(paths, pixels[..., 0], strict=True):
            Image.fromarray(own).save(path, quality=95)
        source = Images.of(ImageFiles(Path(), Names.of(paths)), labels, ("square",))
    options = Augment(area=0.3, aspect=1.0, flip=flip, repeats=repeats)
    batch = TrainingBatches(source, SPEC, options, 0, 24)[0]
    whole = batch.labels[((batch.labels[..., 1:] > 0) & (batch.labels[..., 1:] < 1)).all(-1)]
    across, down = (whole[:, 3] - whole[:, 1]), (whole[:, 4] - whole[:, 2])
    assert (across / down).numpy() == pytest.approx(120 / 200)  # crops have the image's own aspect
    shown = augment(batch.images, batch.draws, options, SPEC)[:, 0].numpy() > 0.5
    kept = 0
    for white, (name, *box) in zip(shown, batch.labels[:, 0].tolist(), strict=True):
        if name < 0:
            continue
        kept += 1
        rows, columns = (np.flatnonzero(white.any(axis)) for axis in (1, 0))
        edges = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert np.array(edges) == pytest.approx(np.array(box) * 64, abs=1.1)
    assert kept >= 12


def test_damaged_images_and_workers_change_no_box(tmp_path: Path) -> None:
    pixels, labels = squares(12)
    paths = [str(tmp_path / f"{number}.png") for number in range(12)]
    for path, own in zip(paths, pixels[..., 0], strict=True):
        Image.fromarray(own).save(path)
    source = Images.of(ImageFiles(Path(), Names.of(paths)), labels, ("square",))
    whole = TrainingBatches(source, SPEC, OWN, 3, 12)
    alone, shared = (next(iter(loader(whole, range(1), workers))) for workers in (0, 2))
    assert torch.equal(alone.labels, shared.labels)
    Path(paths[5]).write_bytes(b"no image")
    less = TrainingBatches(source, SPEC, OWN, 3, 12)[0]
    assert [index for index, _ in less.bad] == [5]
    assert torch.equal(less.labels, alone.labels[alone.indices != 5])
