"""What is decided for each image, against timm's RandAugment and torchvision's color jitter."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import stats

from oracles.peers import timm as peer
from vitlab.data.augment.augment import augment
from vitlab.data.augment.draws import JITTER, RAND, draws_needed
from vitlab.data.augment.policy import (
    RANDAUGMENT,
    Op,
    argument,
    color_jitter,
    randaugment,
    sequence,
    three_augment,
)
from vitlab.data.settings import Augment
from vitlab.images import ImageSpec

NAMES = (
    "AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize", "SolarizeAdd", "Color",
    "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel",
)  # fmt: skip
GROWING = {"Posterize", "Solarize", "Color", "Contrast", "Brightness", "Sharpness"}
MEAN = (0.485, 0.456, 0.406)
SHIFTED = ImageSpec(mean=MEAN, std=1.0)


def timms() -> Any:
    peer()
    from timm.data import auto_augment

    return auto_augment


def uniform(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.random.default_rng(seed).random(shape, np.float32).astype(np.float64)


def timm_name(op: Op, increasing: bool) -> str:
    name = NAMES[RANDAUGMENT.index(op)]
    return name + "Increasing" if increasing and name in GROWING else name


@pytest.mark.parametrize("increasing", [True, False])
def test_arguments_are_timms(increasing: bool, monkeypatch) -> None:
    for op in RANDAUGMENT:
        if (theirs := timms().LEVEL_TO_ARG[timm_name(op, increasing)]) is None:
            continue
        for magnitude in (0.0, 0.4, 3.3, 7.0, 9.7, 10.0, 12.0 if op == Op.SOLARIZE_ADD else 10.0):
            for sign in (-1.0, 1.0):
                monkeypatch.setattr(random, "random", lambda s=sign: 0.9 if s < 0 else 0.1)
                want, level = theirs(magnitude, {})[0], np.array([magnitude / 10])
                got = argument(np.array([op]), level, np.array([sign]), increasing)
                assert got[0] == pytest.approx(want)


def test_the_operations_are_timms() -> None:
    for increasing in (True, False):
        theirs = timms().rand_augment_transform(f"rand-m7-mstd0.5-inc{int(increasing)}")
        assert [op.name for op in theirs.ops] == [timm_name(op, increasing) for op in RANDAUGMENT]
        assert theirs.num_layers == 2
        assert {(op.prob, op.magnitude, op.magnitude_std) for op in theirs.ops} == {(0.5, 7, 0.5)}


def test_choices_are_uniform_magnitudes_normal_and_half_left_out() -> None:
    options = Augment(rand_ops=2, rand_magnitude=7, rand_std=0.5)
    ops, arguments = randaugment(uniform(20_000, 8), options)
    done = ops != Op.NONE
    assert done.mean() == pytest.approx(0.5, abs=0.01)
    assert stats.chisquare([(ops == op).sum() for op in RANDAUGMENT]).pvalue > 1e-3
    assert stats.pearsonr(done[:, 0], done[:, 1]).pvalue > 1e-3
    turns = arguments[ops == Op.ROTATE]
    assert (turns > 0).mean() == pytest.approx(0.5, abs=0.05)
    assert stats.kstest(np.abs(turns) / 3, stats.norm(7, 0.5).cdf).pvalue > 1e-3
    options = Augment(rand_ops=1, rand_magnitude=10, rand_std=3, rand_limit=12, rand_probability=1)
    ops, arguments = randaugment(uniform(5000, 4), options)
    assert np.abs(arguments[ops == Op.ROTATE]).max() == pytest.approx(36)


def noisy(count: int, rows: int = 40, columns: int = 56) -> torch.Tensor:
    generator = np.random.default_rng(3)
    coarse = generator.integers(0, 256, (count, 5, 7, 3), np.uint8)
    size, method = (columns, rows), Image.Resampling.BICUBIC
    smooth = [np.asarray(Image.fromarray(each).resize(size, method)) for each in coarse]
    return torch.from_numpy(np.stack(smooth))


def test_images_come_out_as_timm_makes_them() -> None:
    """Timm's own operations one after the other, with the choices that were drawn here."""
    count = 160
    options = Augment(
        flip=True, rand_ops=2, rand_magnitude=7, rand_std=0.5, rand_probability=0.9,
        augment_interpolation="bilinear",
    )  # fmt: skip
    images = noisy(count)
    draws = torch.from_numpy(uniform(count, draws_needed(options), seed=5)).float()
    got = augment(images, draws, options, SHIFTED) + torch.tensor(MEAN).view(1, 3, 1, 1)
    got = (got * 255).round().permute(0, 2, 3, 1).numpy()
    ops, arguments = sequence(draws.double().numpy(), options)
    fill = tuple(round(255 * each) for each in MEAN)
    hints = {"img_mean": fill, "interpolation": Image.Resampling.BILINEAR}
    exact = 0
    for i in range(count):
        picture = Image.fromarray(images[i].numpy())
        if draws[i, 0] < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        moves = sum(int(op) >= Op.ROTATE for op in ops[i])
        for layer in range(2):
            op = ops[i, layer]
            if op == Op.NONE:
                continue
            name = timm_name(Op(op), True)
            theirs = timms().AugmentOp(name, prob=1.0, hparams=hints)
            theirs.level_fn = lambda *_, i=i, layer=layer, op=op: (
                () if op <= Op.INVERT else (kind(op)(arguments[i, layer]),)
            )
            black = op == Op.POSTERIZE and arguments[i, layer] == 0  # Pillow refuses 0 bits
            picture = picture.point([0] * 768) if black else theirs(picture)
        apart = np.abs(got[i] - np.asarray(picture, np.float32))
        if moves == 0:
            exact += 1
            assert apart.max() == 0, (ops[i], arguments[i], apart.mean())
        elif moves == 1:
            assert apart.mean() < 3, (ops[i], arguments[i])
            assert np.median(apart) <= 2, (ops[i], arguments[i])
        else:  # two samplings against one, which loses nothing in between
            assert np.median(apart) <= 12
    assert exact > 40


def kind(op: int) -> type:
    return int if op in (Op.POSTERIZE, Op.SOLARIZE, Op.SOLARIZE_ADD) else float


def test_what_comes_in_is_the_mean_color() -> None:
    options = Augment(rand_ops=1, rand_std=0, rand_probability=1)
    draws = torch.full((1, draws_needed(options)), 0.5)
    draws[0, RAND] = (RANDAUGMENT.index(Op.TRANSLATE_X) + 0.5) / 15
    got = augment(torch.zeros(1, 10, 20, 3, dtype=torch.uint8), draws, options, SHIFTED)
    outside = got[..., 12:]  # 0.45 * 0.9 of 20: 8.1 pixels, from the right
    assert outside.abs().max() < 0.5 / 255
    torch.testing.assert_close(got[0, :, 0, 0], -torch.tensor(MEAN))


def test_three_augment_is_one_of_three() -> None:
    ops, arguments = three_augment(uniform(6000, 2))
    counts = Counter(ops[:, 0].tolist())
    assert set(counts) == {Op.COLOR, Op.SOLARIZE, Op.BLUR}
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    assert (arguments[ops == Op.COLOR] == 0).all()
    assert (arguments[ops == Op.SOLARIZE] == 128).all()
    assert stats.kstest((arguments[ops == Op.BLUR] - 0.1) / 1.9, "uniform").pvalue > 1e-3


def test_jitter_is_torchvisions() -> None:
    """Same factors' ranges, any order, and with them the same pixels."""
    peer()
    from torchvision.transforms import ColorJitter
    from torchvision.transforms import functional as tv

    theirs = ColorJitter(0.3, 0.3, 0.3, 0.1)
    assert theirs.brightness == theirs.contrast == theirs.saturation == (0.7, 1.3)
    options = Augment(color_jitter=0.3, hue_jitter=0.1)
    ops, arguments = color_jitter(uniform(4000, 5), options)
    assert len(set(map(tuple, ops.tolist()))) == 24
    for own, count in (
        ({"color_jitter": 0.3}, 3),
        ({"hue_jitter": 0.1}, 1),
    ):  # one without the other
        assert sequence(uniform(9, 38), Augment(**own))[0].shape == (9, count)
    for op, low, high in ((Op.COLOR, 0.7, 1.3), (Op.BRIGHTNESS, 0.7, 1.3), (Op.HUE, -0.1, 0.1)):
        spread = stats.uniform(low, high - low)
        assert stats.kstest(arguments[ops == op], spread.cdf).pvalue > 1e-3
    change = {Op.COLOR: tv.adjust_saturation, Op.BRIGHTNESS: tv.adjust_brightness,
              Op.CONTRAST: tv.adjust_contrast, Op.HUE: tv.adjust_hue}  # fmt: skip
    images, count = noisy(60), 60
    draws = torch.from_numpy(uniform(count, draws_needed(options), seed=5)).float()
    got = augment(images, draws, options, ImageSpec(mean=0.0, std=1 / 255))
    got = got.permute(0, 2, 3, 1).numpy()
    ops, arguments = color_jitter(draws[:, JITTER].double().numpy(), options)
    for i in range(count):
        picture = Image.fromarray(images[i].numpy())
        for op, factor in zip(ops[i], arguments[i], strict=True):
            picture = change[Op(op)](picture, factor)
        np.testing.assert_allclose(got[i], np.asarray(picture), atol=1e-3)


A2 = Augment(
    flip=True, rand_ops=2, rand_magnitude=7, augment_interpolation="bicubic", erase=0.25,
    color_jitter=0.2,
)  # fmt: skip
DEIT3 = Augment(flip=True, three_augment=True, color_jitter=0.3, hue_jitter=0.1, erase=0.5)
MOVED = Augment(flip=True, rotate=20, shift=0.1, rand_ops=3, rand_probability=1)


@pytest.mark.parametrize(("options", "channels"), [(A2, 3), (DEIT3, 1), (MOVED, 4)])
def test_an_image_comes_out_the_same_in_any_company(options: Augment, channels: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (24, 21, 19, channels), dtype=torch.uint8, generator=generator)
    draws = torch.rand(24, draws_needed(options), generator=generator)
    spec = ImageSpec(channels=channels, mean=0.5, std=0.5)
    whole = augment(images, draws, options, spec)
    order = torch.randperm(24, generator=generator)
    again = augment(images[order], draws[order], options, spec)
    torch.testing.assert_close(again, whole[order], rtol=0, atol=0)
    for i in range(24):
        one = slice(i, i + 1)
        alone = augment(images[one], draws[one], options, spec)
        torch.testing.assert_close(alone, whole[one], rtol=0, atol=0)
    assert len(torch.unique(whole.flatten(1), dim=0)) == 24
    generator = torch.Generator().manual_seed(0)  # the source is left as it was
    again = torch.randint(0, 256, (24, 21, 19, channels), dtype=torch.uint8, generator=generator)
    assert torch.equal(images, again)


DINO = Augment(
    flip=True, color_jitter=0.4, saturation_jitter=0.2, hue_jitter=0.1, jitter_probability=0.8,
    grayscale=0.2, blur=0.5, solarize=0.2,
)  # fmt: skip


def test_chances_of_jitter_gray_blur_and_solarize_are_those_asked_for() -> None:
    ops, arguments = sequence(uniform(20_000, draws_needed(DINO)), DINO)
    jitter, gray, blur, solarize = ops[:, :4], ops[:, 4], ops[:, 5], ops[:, 6]
    some = (jitter != Op.NONE).any(1)
    assert np.array_equal(some, (jitter != Op.NONE).all(1))  # all of the four, or none
    shares = [(some, 0.8), (gray == Op.COLOR, 0.2), (blur == Op.BLUR, 0.5)]
    for found, wanted in [*shares, (solarize == Op.SOLARIZE, 0.2)]:
        assert abs(found.mean() - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / len(ops))
    assert not arguments[:, 4].any()  # a color factor of 0 is gray
    assert (arguments[:, 6] == 128).all()
    assert stats.kstest(arguments[:, 5], stats.uniform(0.1, 1.9).cdf).pvalue > 0.01
    factors = arguments[:, :4][(jitter == Op.COLOR) & some[:, None]]
    assert 0.8 <= factors.min() < 0.81
    assert 1.19 < factors.max() <= 1.2
    assert arguments[:, :4][jitter == Op.CONTRAST].max() > 1.35


def test_a_view_of_dino_is_that_of_pillow() -> None:
    options = Augment(grayscale=1.0, blur=1.0, solarize=1.0)
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (1, 24, 32, 3), np.uint8)
    draws = torch.rand(1, draws_needed(options), generator=torch.Generator().manual_seed(1))
    found = augment(torch.from_numpy(pixels), draws, options, ImageSpec(mean=0.0, std=1.0))
    image = ImageEnhance.Color(Image.fromarray(pixels[0])).enhance(0)
    radius = 0.1 + 1.9 * float(draws[0, RAND + 3])
    image = ImageOps.solarize(image.filter(ImageFilter.GaussianBlur(radius)), 128)
    apart = np.abs((255 * found[0].permute(1, 2, 0)).numpy() - np.asarray(image, np.float32))
    # a blur is Pillow's but for rounding; beside 128, one level decides on solarizing
    assert (apart > 2).mean() < 0.01


def test_options_that_draw_nothing_leave_the_other_draws_as_they_were() -> None:
    ops, arguments = sequence(uniform(3, 38), Augment(rotate=10))
    assert ops.shape == arguments.shape == (3, 0)
    plain = Augment(rand_ops=2, color_jitter=0.3)
    more = Augment(rand_ops=2, color_jitter=0.3, solarize=0.5)
    draws = uniform(64, draws_needed(more))
    before, after = sequence(draws[:, : draws_needed(plain)], plain), sequence(draws, more)
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one, other[:, : one.shape[1]])
