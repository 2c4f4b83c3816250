"""Segmentation: loss by PyTorch's, and masks cropped and mirrored like their images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import vitlab
from objectives.made import NO_LABELS
from places_opened import open_masks
from vitlab.data.augment.augment import augment
from vitlab.data.images import Images
from vitlab.data.loading.batch import Batch
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.settings import Augment
from vitlab.data.target import IGNORED
from vitlab.images import ImageSpec
from vitlab.models.heads.segment import DenseClasses
from vitlab.objectives.segment import Segment
from vitlab.recipes.pretext import Pretext


def batch_of(images: Images, **how: object) -> tuple[Batch, torch.Tensor]:
    """A batch of 24 pixels a side, and its pixels as they are learned, before normalization."""
    spec = ImageSpec(image_size=24, channels=1, mean=(0.0,), std=(1.0,))
    own = Augment(**how)  # type: ignore[arg-type]
    few = images.take(np.arange(len(images))[::-1])
    batch = TrainingBatches(few, spec, own, 0, len(images))[0]
    return batch, augment(batch.images, batch.draws, own, spec)


def stripes(count: int) -> Images:
    """Images whose every pixel shows its own class: 10 times it; in blocks of 16 pixels."""
    draw, pairs = np.random.default_rng(0), []
    for _ in range(count):
        classes = np.kron(draw.integers(0, 9, (3, 4)), np.ones((16, 16), int)).astype(np.uint8)
        pairs.append((10 * classes[..., None], classes))
    return open_masks(pairs).parts["all"]


@pytest.mark.parametrize(
    "how", [{}, {"flip": True}, {"area": 0.3}, {"area": 0.3, "flip": True, "repeats": 2}]
)
def test_masks_are_cropped_and_mirrored_like_their_images(how: dict[str, object]) -> None:
    batch, pixels = batch_of(stripes(12), **how)
    assert batch.labels.dtype == torch.int16
    assert batch.labels.shape == (12, 24, 24)
    seen = (pixels[:, 0] * 25.5).round().short()
    same = (seen == batch.labels).float().mean((1, 2))
    assert same.min() > 0.7  # else between two blocks
    if how.get("flip"):
        assert not torch.equal(seen, batch.labels.flip(-1))
        plain, _ = batch_of(stripes(12), **how | {"flip": False})
        mirrored = (batch.labels != plain.labels).any((1, 2))
        assert torch.equal(batch.labels[mirrored], plain.labels[mirrored].flip(-1))
        assert 0 < mirrored.sum() < 12


def test_an_image_whose_mask_cannot_be_used_is_left_out_with_its_mask() -> None:
    images = stripes(4)
    store = images.target.store
    masks = [*store.masks[:1], np.zeros((3, 3), np.uint8), *store.masks[2:]]
    target = replace(images.target, store=replace(store, masks=masks))
    batch, _ = batch_of(replace(images, target=target))
    assert len(batch) == len(batch.images) == 3
    ((number, message),) = batch.bad
    assert number == 2  # of the four in reverse
    assert "its mask has 3 x 3 pixels, the image 48 x 64" in message


def test_the_loss_is_the_mean_cross_entropy_of_pixels_and_then_of_images() -> None:
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/8", classes=0, image_size=24)
    draw = torch.Generator().manual_seed(0)
    about = DenseClasses(("a", "b", "c"), (0, 1, 2), 255, (1, 2))
    task = Segment(Pretext(task="segment"), model.config, about,
                   torch.randn(3, 32, generator=draw), torch.randn(3, generator=draw))  # fmt: skip
    images = torch.randn(3, 3, 24, 24, generator=draw)
    truth = torch.randint(-1, 3, (3, 24, 24), generator=draw, dtype=torch.int16)
    truth[2] = IGNORED
    batch = Batch(images, truth, torch.empty(3, 0), torch.arange(3))
    loss, figures = task.loss(model.eval(), batch, draw)
    scores = task.answering(model, NO_LABELS)(images)
    own = [F.cross_entropy(s[None], t[None].long(), ignore_index=-1)
           for s, t in zip(scores[:2], truth[:2], strict=True)]  # fmt: skip
    torch.testing.assert_close(loss, sum(own, torch.zeros(())) / 3)
    right = [(s.argmax(0) == t)[t >= 0].float().mean() for s, t in zip(scores, truth, strict=True)]
    torch.testing.assert_close(figures["pixel_accuracy"], sum(right[:2], torch.zeros(())))
    loss.backward()
    assert all(each.grad is not None and each.grad.any() for each in task.head.parameters())
    assert next(model.parameters()).grad is not None
