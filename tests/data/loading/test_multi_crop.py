"""Several crops of each image: decoded once, each with its own box and draws."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import photo
from vitlab.data.augment.draws import draws_needed
from vitlab.data.decode.crop_box import DRAWS
from vitlab.data.decode.stored import EncodedImage, PixelImage
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.crops import load_views
from vitlab.data.loading.loader import loader
from vitlab.data.loading.order import Samples, draws
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.loading.views import View
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.distributed.shares import passes
from vitlab.distributed.world import World
from vitlab.images import ImageSpec

SPEC = ImageSpec(image_size=(16, 24))
LARGE = View((16, 24), (0.4, 1.0), Augment(flip=True))
BLURRED = View((16, 24), (0.4, 1.0), Augment(blur=0.5))
SMALL = View((8, 8), (0.1, 0.3), Augment(grayscale=0.2))
VIEWS = (LARGE, BLURRED, SMALL, SMALL)


def batches(data: Path, views: tuple[View, ...] = VIEWS) -> TrainingBatches:
    source = open_to_learn(str(data)).train
    return TrainingBatches(source, SPEC, LARGE.augment, seed=3, batch=7, views=views)


def first(count: int) -> Samples:
    """The first images, in their own order, in the first epoch."""
    none = np.zeros(count, np.int64)
    return Samples(none, np.arange(count), none)


def tensors(batch: Batch) -> list[Any]:
    each = (batch, *batch.views)
    return [value for view in each for value in (view.images, view.draws, view.labels)]


def test_views_have_their_sizes_draws_and_boxes(photos: Path) -> None:
    batch = batches(photos)[0]
    assert [view.images.shape[1:3] for view in (batch, *batch.views)] == [v.size for v in VIEWS]
    widths = [draws_needed(view.augment) for view in VIEWS]
    assert [view.draws.shape[1] for view in (batch, *batch.views)] == widths
    small, other = batch.views[1:]
    assert not torch.equal(small.images, other.images)
    assert not torch.equal(small.draws, other.draws)
    assert all(torch.equal(view.indices, batch.indices) for view in batch.views)


def test_views_do_not_depend_on_workers_or_on_the_number_of_processes(photos: Path) -> None:
    (photos / "red" / "003.png").write_bytes(b"no image")
    made = batches(photos)
    alone = [made[k] for k in range(4)]
    again = list(loader(made, range(4), workers=1))
    for one, other in zip(alone, again, strict=True):
        assert all(map(torch.equal, tensors(one), tensors(other)))
        assert one.bad == other.bad
    shares = [replace(made, rank=rank, processes=2)[1] for rank in (0, 1)]
    for place in range(3):
        joined = torch.cat([share.views[place].images for share in shares])
        assert torch.equal(joined, alone[1].views[place].images)


def test_a_first_view_is_the_crop_that_there_would_be_without_views(photos: Path) -> None:
    view = View(SPEC.size, (0.4, 1.0), Augment(area=0.4))
    source = open_to_learn(str(photos)).train
    plain = TrainingBatches(source, SPEC, view.augment, seed=3, batch=7)
    batch = replace(plain, views=(view, SMALL))[2]
    for field in ("images", "draws", "indices"):
        assert torch.equal(getattr(batch, field), getattr(plain[2], field))


def test_boxes_have_the_area_asked_for() -> None:
    randoms = draws(5, first(1000), SMALL.draws)[:, :DRAWS]
    boxes = np.array([SMALL.box(own)(375, 500) for own in randoms])
    shares = (boxes[:, 2:] - boxes[:, :2]).prod(1) / (375 * 500)
    assert 0.1 <= shares.min() < 0.11
    assert 0.29 < shares.max() <= 0.3 + 1e-9
    assert abs(shares.mean() - 0.2) < 4 * 0.2 / np.sqrt(12 * 1000)


@pytest.mark.parametrize("scale", [1, 4])
def test_views_of_a_jpeg_are_those_of_its_pixels(scale: int) -> None:
    stream = BytesIO()
    photo(3, 120 * scale, 160 * scale).save(stream, "JPEG", quality=95)
    encoded = EncodedImage(stream.getvalue())
    randoms = draws(1, first(len(VIEWS)), DRAWS)
    boxes = [view.box(own) for view, own in zip(VIEWS, randoms, strict=True)]
    found = load_views(encoded, SPEC, VIEWS, boxes)
    whole = PixelImage(encoded.decode(3), "whole")
    for pixels, exact in zip(found, load_views(whole, SPEC, VIEWS, boxes), strict=True):
        # of a JPEG decoded at less than its size, boxes are rounded to larger pixels
        assert np.abs(pixels.astype(int) - exact).mean() < 3


def test_pieces_and_idle_passes_have_all_views(photos: Path) -> None:
    batch = batches(photos)[0]
    first, *rest = batch.pieces(4)
    assert len(first) == len(first.views[2].images) == 4
    assert torch.equal(torch.cat([p.views[1].draws for p in (first, *rest)]), batch.views[1].draws)
    one = next(batch.pieces(1))
    *_, (black, counts) = passes(one, 2, World(0, 2), 8)
    assert counts == 0
    assert [len(view.images) for view in black.views] == [1, 1, 1]
    assert not black.views[0].images.any()
