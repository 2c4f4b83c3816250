"""Mixup and CutMix against timm's, and by parts of a batch against the whole."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from oracles.peers import timm
from vitlab.data.augment.mix import Mix, dense, draw
from vitlab.data.settings import Augment

SIZE = (20, 28)


def images(count: int = 8) -> torch.Tensor:
    return torch.randn(count, 3, *SIZE, generator=torch.Generator().manual_seed(1))


def timms() -> Any:
    timm()
    from timm.data import mixup

    return mixup


def as_timm_pairs(count: int) -> list[int]:
    """Reversing this order pairs what are neighbors here."""
    return [*range(0, count, 2), *range(count - 1, 0, -2)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("cut", [False, True])
def test_pixels_and_targets_are_timms(cut, smoothing, monkeypatch) -> None:
    theirs = timms().Mixup(mixup_alpha=1, cutmix_alpha=1, label_smoothing=smoothing, num_classes=5)
    labels = torch.tensor([0, 1, 2, 2, 4, 3, 1, 0])
    order = as_timm_pairs(8)
    for share, y, x in ((0.3, 4, 25), (0.71, 12, 13), (0.02, 19, 0)):
        monkeypatch.setattr(theirs, "_params_per_batch", lambda share=share: (share, cut))
        center = iter((y, x))
        monkeypatch.setattr(np.random, "randint", lambda *_, center=center, **__: next(center))
        want, want_targets = theirs(images()[order].clone(), labels[order])
        mixed = by_hand(share, cut, y, x)
        got, targets = mixed(images(), labels, 5)
        torch.testing.assert_close(got[order], want)
        smooth = targets * (1 - smoothing) + smoothing / 5
        torch.testing.assert_close(smooth[order], want_targets)


def by_hand(share: float, cut: bool, y: int, x: int) -> Mix:
    """What `draw` makes of these draws, through a generator that gives them."""
    if not cut:
        return Mix(share, None)

    class Given:
        def random(self, count: int | None = None) -> object:
            return 0.0 if count is None else np.array([(y + 0.5) / SIZE[0], (x + 0.5) / SIZE[1]])

        def beta(self, *_: float) -> float:
            return share

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", lambda _: Given())
        return draw(Augment(cutmix=1), 0, SIZE)


def test_shares_follow_their_distributions() -> None:
    options = Augment(mixup=0.3, cutmix=1.0, mix_switch=0.4)
    drawn = [draw(options, seed, (224, 224)) for seed in range(4000)]
    mixed = [each for each in drawn if each is not None]
    cut = [each.share for each in mixed if each.box is not None]
    blend = [each.share for each in mixed if each.box is None]
    assert len(cut) / 4000 == pytest.approx(0.4, abs=0.03)
    assert stats.kstest(blend, stats.beta(0.3, 0.3).cdf).pvalue > 1e-3
    timms_mix = timms()
    np.random.seed(0)  # noqa: NPY002 (timm draws from it)
    theirs = [
        timms_mix.cutmix_bbox_and_lam((1, 3, 224, 224), np.random.beta(1, 1))[1]  # noqa: NPY002
        for _ in range(4000)
    ]
    assert stats.ks_2samp(cut, theirs).pvalue > 1e-3


def test_one_kind_alone_is_always_taken_and_none_is_none() -> None:
    assert draw(Augment(), 3, SIZE) is None
    for seed in range(20):
        only_mixup = draw(Augment(mixup=0.2), seed, SIZE)
        only_cutmix = draw(Augment(cutmix=1.0), seed, SIZE)
        assert only_mixup.box is None
        assert only_cutmix.box is not None
    assert draw(Augment(mixup=0.2), 5, SIZE) == draw(Augment(mixup=0.2), 5, SIZE)
    assert draw(Augment(mixup=0.2), 5, SIZE) != draw(Augment(mixup=0.2), 6, SIZE)


@pytest.mark.parametrize("mixed", [Mix(0.3, None), Mix(0.8, (3, 9, 20, 28))])
@pytest.mark.parametrize("count", [8, 7])
def test_parts_that_split_no_pair_are_mixed_as_in_the_whole(mixed: Mix, count: int) -> None:
    pixels, labels = images(count), torch.arange(count) % 3
    whole, targets = mixed(pixels.clone(), labels, 3)
    for size in (2, 4, 6):
        parts = [
            mixed(pixels[first : first + size].clone(), labels[first : first + size], 3)
            for first in range(0, count, size)
        ]
        assert torch.equal(torch.cat([p for p, _ in parts]), whole)
        assert torch.equal(torch.cat([t for _, t in parts]), targets)
    if count % 2:
        torch.testing.assert_close(whole[-1], pixels[-1])


def test_several_labels_an_image_are_mixed_as_they_are() -> None:
    labels = torch.tensor([[1, 1, 0], [0, 1, 1]])
    _, targets = Mix(0.25, None)(images(2), labels, 3)
    torch.testing.assert_close(targets, torch.tensor([[0.25, 1, 0.75], [0.75, 1, 0.25]]))
    assert dense(labels, 3).dtype == torch.float32
