"""Masked patch prediction: targets of hand-made patches, 80/10/10, and where the loss looks."""

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from objectives.made import batch_of, seeded, small
from vitlab.data.loading.batch import Batch
from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.hidden_patches import over_image
from vitlab.objectives.masked_patch import MaskedPatch, averages, colors_of
from vitlab.objectives.pretext_task import Learner
from vitlab.recipes.pretext import Pretext

Target = Literal["mean-color", "downsized", "pixels"]
TARGETS: tuple[Target, ...] = ("mean-color", "downsized", "pixels")


def task_of(config: ViTConfig, **options: Any) -> MaskedPatch:
    chosen = Pretext(task="masked-patch", **options)
    MaskedPatch.check(chosen, config)
    task = MaskedPatch(chosen, config)
    task.reset_parameters(seeded(1))
    return task


def batch(config: ViTConfig, count: int = 3) -> Batch:
    return batch_of(torch.randn(count, config.channels, *config.size, generator=seeded(2)))


def normalized(pixels: Tensor) -> Tensor:
    return (pixels - 0.5) / 0.5


def test_mean_colors_by_hand() -> None:
    """Four patches of 2x2 pixels: black, white, red of 0.55, and half green, half blue."""
    pixels = torch.zeros(1, 3, 4, 4)
    pixels[..., :2, 2:] = 1
    pixels[:, 0, 2:, :2] = 0.55
    pixels[:, 1, 2, 2:] = 1
    pixels[:, 2, 3, 2:] = 1
    task = task_of(small(patch=2, image_size=4))
    cells = task.targets(normalized(pixels))
    assert cells.shape == (1, 4, 3, 1)
    assert colors_of(cells).flatten().tolist() == [0, 511, 4 * 64, 4 * 8 + 4]


def test_downsized_patches_by_hand() -> None:
    """Of a patch of 8 pixels, the cell in row 1, column 2 is half as bright as white."""
    pixels = torch.zeros(1, 3, 8, 8)
    pixels[:, :, 2, 4:6] = 1
    task = task_of(small(patch=8, image_size=16), target="downsized")
    whole = F.pad(pixels, (0, 8, 0, 8))
    cells = task.targets(normalized(whole))
    assert cells.shape == (1, 4, 3, 16)
    want = torch.zeros(16)
    want[1 * 4 + 2] = 0.5
    torch.testing.assert_close(cells[0, 0], want.expand(3, -1))
    assert colors_of(cells)[0, 0].tolist() == [0] * 6 + [4 * 73] + [0] * 9


def test_pixels_are_those_of_the_patch() -> None:
    task, pixels = task_of(small(), target="pixels"), torch.rand(2, 3, 32, 32, generator=seeded())
    want = F.unfold(pixels, 8, stride=8).transpose(1, 2).unflatten(2, (3, 64))
    torch.testing.assert_close(task.targets(normalized(pixels)), want)


def test_cells_that_pixels_do_not_fill_count_areas() -> None:
    """Six pixels in four cells: the mean over six is that over 24 parts of them."""
    row = torch.rand(6, generator=seeded(), dtype=torch.float64)
    want = row.repeat_interleave(2).unflatten(0, (4, 3)).mean(1)
    torch.testing.assert_close(averages(4, 6).double() @ row, want, rtol=0, atol=1e-7)
    torch.testing.assert_close(averages(4, 14).sum(1), torch.ones(4))


@pytest.mark.parametrize(("channels", "classes"), [(1, 8), (3, 512), (4, 4096)])
def test_classes_follow_the_channels(channels: int, classes: int) -> None:
    config = small(channels=channels)
    task = task_of(config)
    assert task.predict.out_features == classes
    brightest = torch.full((1, channels, 32, 32), 1.0)
    assert colors_of(task.targets(brightest)).unique().tolist() == [classes - 1]
    loss, figures = Learner(VisionTransformer(config, seeded()), task)(batch(config), seeded())
    assert loss.item() == pytest.approx(math.log(classes), abs=0.3)
    assert 0 < figures["color_error"] < 3


def test_eighty_ten_ten() -> None:
    """Of 80,000 corrupted patches; each is a number of its own, and the token another."""
    task = task_of(small(width=2, patch=1, image_size=10))
    task.token.data.fill_(-1)
    places, *how = task.draw(torch.zeros(1600, 3, 10, 10), seeded(3))
    patches = torch.arange(100.0).view(1, 100, 1).expand(1600, 100, 2)
    found = task.corrupted(patches, places, *how)[..., 0].detach()
    at, untouched = found.gather(1, places), torch.ones(1600, 100, dtype=torch.bool)
    untouched.scatter_(1, places, False)
    assert torch.equal(found[untouched], patches[..., 0][untouched])
    masked, kept = (at == -1).float().mean(), (at == places).float().mean()
    assert masked == pytest.approx(0.8, abs=0.006)  # four deviations
    assert kept == pytest.approx(0.1, abs=0.0045)
    moved = at[(at != -1) & (at != places)]
    assert len(moved) / at.numel() == pytest.approx(0.1, abs=0.0045)
    assert moved.long().bincount(minlength=100).float().std() < 13  # 80 of each, deviation 9


def test_the_other_patch_is_never_the_same() -> None:
    """Of two patches one is corrupted: it becomes the other one with probability 0.1."""
    task = task_of(small(width=2, patch=1, image_size=(1, 2)))
    task.token.data.fill_(-1)
    places, *how = task.draw(torch.zeros(40_000, 3, 1, 2), seeded(3))
    patches = torch.tensor([[[0.0], [1.0]]]).expand(40_000, 2, 2)
    found = task.corrupted(patches, places, *how)[..., 0].gather(1, places)
    assert (found == 1 - places).float().mean().item() == pytest.approx(0.1, abs=0.006)


@pytest.mark.parametrize("target", TARGETS)
def test_the_loss_is_the_formula(target: Target) -> None:
    """From the predictions of each corrupted patch, in float64."""
    config = small(patch=4, image_size=16)
    model, task = VisionTransformer(config, seeded()).eval(), task_of(config, target=target)
    given = batch(config)
    images = given.images
    assert isinstance(images, Tensor)
    with torch.no_grad():
        loss, _ = task.loss(model, given, seeded(7))
        again, (places, *how) = [], task.draw(images, seeded(7))
        patches = task.corrupted(model.stem(images), places, *how)
        found = task._predicted(model, images, patches, places).double()
        cells = task.targets(images).double()
        for image, row in enumerate(places.tolist()):
            for order, place in enumerate(row):
                mine, true = found[image, order], cells[image, place]  # (cells, …), (C, cells)
                if target == "pixels":
                    again.append((mine.T - true).square().mean())
                    continue
                red, green, blue = (true * 8).floor().clamp(max=7).long()
                chosen = mine.log_softmax(-1)[range(len(red)), 64 * red + 8 * green + blue]
                again.append(-chosen.mean())
    assert loss.item() == pytest.approx(torch.stack(again).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("target", "channels"), [("mean-color", 3), ("downsized", 1), ("pixels", 3)]
)
def test_pictures_show_predictions_in_place_of_hidden_patches(
    target: Target, channels: int
) -> None:
    config = small(channels=channels)
    model, task = VisionTransformer(config, seeded()).eval(), task_of(config, target=target)
    images = batch(config).images
    assert isinstance(images, Tensor)
    found = task.pictures(model, images, seeded(5))
    assert list(found) == ["image", "masked", "predicted"]
    for picture in found.values():
        assert (picture.shape, picture.dtype) == ((3, 32, 32, 3), torch.uint8)
    places = task.draw(images, seeded(5))[0]
    hidden = torch.zeros(3, 16).scatter(1, places, 1)
    over = over_image(hidden, (4, 4), 8)[:, 0].bool()
    assert (found["masked"][over] == 128).all()
    for each in ("masked", "predicted"):
        assert torch.equal(found[each][~over], found["image"][~over])
    assert not torch.equal(found["predicted"][over], found["image"][over])
