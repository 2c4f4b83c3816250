"""Each operation against Pillow's meaning of it, on whole numbers from 0 to 255.

All are exact but these: a blur differs by up to 2, and rarely, because Pillow computes it with
other fractions; a bilinear sampling by up to 1, because Pillow cuts off what is rounded here; a
cubic one by up to 4 and 1 on average on a smooth image, because Pillow's cubic is a sharper one.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vitlab.data.augment.ops import box_weights, compose, equalize, luma, photometric, sample
from vitlab.data.augment.policy import Op

Pixels = NDArray[np.uint8]
ROWS, COLUMNS = 48, 64
FILL = (124, 116, 104)


def pictures(channels: int = 3) -> list[Pixels]:
    """Smooth, noisy, dark, flat, two-valued and gray images, (H, W, C)."""
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), np.uint8))
    smooth = np.asarray(coarse.resize((COLUMNS, ROWS), Image.Resampling.BICUBIC))
    noisy = generator.integers(0, 256, smooth.shape, np.uint8)
    some = np.clip(smooth + generator.normal(0, 12, smooth.shape), 0, 255).astype(np.uint8)
    two = np.where(noisy > 100, np.uint8(200), np.uint8(30))
    rare = np.full_like(smooth, 77)
    rare[0, 0] = (1, 2, 250)
    gray = np.repeat(smooth[..., :1], 3, -1)
    kinds = [smooth, noisy, some, some // 3 + 40, np.full_like(smooth, 90), two, rare, gray]
    return [np.ascontiguousarray(each[..., :channels]) for each in kinds]


def ours(op: Op, argument: float, images: list[Pixels]) -> Pixels:
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    count = len(images)
    result = photometric(pixels, np.full(count, op), np.full(count, argument))
    return result.permute(0, 2, 3, 1).numpy()


def theirs(change: Callable[[Image.Image], Image.Image], images: list[Pixels]) -> Pixels:
    channels = images[0].shape[-1]
    pictured = [Image.fromarray(each[..., 0] if channels == 1 else each) for each in images]
    return np.stack([np.asarray(change(each)).reshape(images[0].shape) for each in pictured])


def add(image: Image.Image, amount: int) -> Image.Image:
    table = [min(255, i + amount) if i < 128 else i for i in range(256)]
    return image.point(table * len(image.getbands()))


def turn(image: Image.Image, share: float) -> Image.Image:
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int64) + int(share * 255)) % 256
    bands = (Image.fromarray(turned.astype(np.uint8)), saturation, value)
    return Image.merge("HSV", bands).convert("RGB")


FACTORS = [0.0, 0.1, 0.37, 0.8, 1.0, 1.3, 1.9]
EXACT: list[tuple[Op, float, Callable[[Image.Image], Image.Image]]] = [
    (Op.AUTO_CONTRAST, 0, ImageOps.autocontrast),
    (Op.EQUALIZE, 0, ImageOps.equalize),
    (Op.INVERT, 0, ImageOps.invert),
    *((Op.POSTERIZE, n, lambda i, n=n: ImageOps.posterize(i, n)) for n in (1, 2, 4, 8)),
    *((Op.SOLARIZE, n, lambda i, n=n: ImageOps.solarize(i, n)) for n in (0, 77, 128, 256)),
    *((Op.SOLARIZE_ADD, n, lambda i, n=n: add(i, n)) for n in (0, 63, 110)),
    *((Op.COLOR, f, lambda i, f=f: ImageEnhance.Color(i).enhance(f)) for f in FACTORS),
    *((Op.CONTRAST, f, lambda i, f=f: ImageEnhance.Contrast(i).enhance(f)) for f in FACTORS),
    *((Op.BRIGHTNESS, f, lambda i, f=f: ImageEnhance.Brightness(i).enhance(f)) for f in FACTORS),
    *((Op.SHARPNESS, f, lambda i, f=f: ImageEnhance.Sharpness(i).enhance(f)) for f in FACTORS),
]


@pytest.mark.parametrize("channels", [1, 3])
def test_values_change_exactly_as_in_pillow(channels: int) -> None:
    images = pictures(channels)
    for op, argument, change in EXACT:
        np.testing.assert_array_equal(ours(op, argument, images), theirs(change, images))
    for share in (-0.5, -0.13, 0.0, 0.07, 0.5) if channels == 3 else ():
        want = theirs(lambda i, share=share: turn(i, share), images)
        np.testing.assert_array_equal(ours(Op.HUE, share, images), want)
    for radius in (0.1, 0.5, 0.9, 1.4, 2.0):  # but for rounding
        got = ours(Op.BLUR, radius, images).astype(int)
        blur = ImageFilter.GaussianBlur(radius)
        apart = np.abs(got - theirs(lambda i, blur=blur: i.filter(blur), images))
        assert apart.max() <= 2
        assert apart.mean() < 0.1


def test_the_blur_s_kernel_has_the_variance_asked_for() -> None:
    radius = torch.linspace(0.1, 2.0, 20, dtype=torch.float64)
    half = box_weights(radius)
    total = half[:, 0] + 2 * half[:, 1:].sum(1)
    torch.testing.assert_close(total, torch.ones_like(total))
    torch.testing.assert_close(3 * 2 * (half * torch.arange(3) ** 2).sum(1), radius**2)


def test_the_luma_of_other_channels_is_their_rounded_mean() -> None:
    pixels = torch.randint(0, 256, (2, 5, 4, 4)).float()
    assert torch.equal(luma(pixels)[:, 0], pixels.double().mean(1).add(0.5).floor().float())
    assert torch.equal(luma(pixels[:, :1]), pixels[:, :1])


def test_limits_of_operations() -> None:
    assert not ours(Op.POSTERIZE, 0, pictures()).any()  # Pillow refuses what RandAugment asks for
    assert not ours(Op.POSTERIZE, -1, pictures()).any()
    pixels = torch.randint(0, 256, (1, 1, 8, 8), dtype=torch.uint8)  # fewer than 255 pixels:
    assert torch.equal(equalize(pixels, torch.zeros(1)), pixels)  # values that are one step stay


def transform(image: Image.Image, op: Op, amount: float, method: Image.Resampling) -> Image.Image:
    if op == Op.ROTATE:
        return image.rotate(amount, resample=method, fillcolor=FILL)
    matrix = {
        Op.SHEAR_X: (1, amount, 0, 0, 1, 0),
        Op.SHEAR_Y: (1, 0, 0, amount, 1, 0),
        Op.TRANSLATE_X: (1, 0, amount * image.width, 0, 1, 0),
        Op.TRANSLATE_Y: (1, 0, 0, 0, 1, amount * image.height),
    }[op]
    options = Image.Transform.AFFINE
    return image.transform(image.size, options, matrix, resample=method, fillcolor=FILL)


MOVES = ((Op.ROTATE, 17.0), (Op.ROTATE, 90.0), (Op.SHEAR_X, 0.27), (Op.SHEAR_Y, 0.21),
         (Op.TRANSLATE_X, 0.31), (Op.TRANSLATE_Y, 0.4))  # fmt: skip


@pytest.mark.parametrize(("op", "amount"), [(op, s * each) for op, each in MOVES for s in (-1, 1)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_places_move_as_in_pillow(op: Op, amount: float, interpolation: str) -> None:
    images = pictures()[:4]
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    count = len(images)
    maps = compose(np.full((count, 1), op), np.full((count, 1), amount), ROWS, COLUMNS)
    theta = torch.from_numpy(maps[:, :2]).float()
    fill = torch.tensor(FILL, dtype=torch.uint8)
    got = sample(pixels, theta, fill, interpolation).permute(0, 2, 3, 1).numpy().astype(int)
    method = Image.Resampling[interpolation.upper()]
    want = theirs(lambda i: transform(i, op, amount, method), images)
    apart = np.abs(got - want)
    edge = (want == FILL).all(-1) != (got == FILL).all(-1)
    assert edge.mean() < 0.003  # of places that fall on the border itself
    apart = apart[~edge]
    if interpolation == "bilinear":
        assert apart.max() <= 1
    else:
        apart = np.abs(got - want)[0][~edge[0]]  # the smooth image
        assert apart.max() <= 4
        assert apart.mean() < 1


def test_movements_compose_as_one_after_the_other() -> None:
    """Against Pillow, given the product of the three maps it would make in pixels."""
    image = pictures()[0]
    ops = np.array([[Op.ROTATE, Op.INVERT, Op.SHEAR_X, Op.TRANSLATE_Y]])
    amounts = np.array([[12.0, 0.0, 0.2, 0.1]])
    theta = torch.from_numpy(compose(ops, amounts, ROWS, COLUMNS)[:, :2]).float()
    pixels, fill = torch.tensor(image).permute(2, 0, 1)[None], torch.tensor(FILL).byte()
    got = sample(pixels, theta, fill, "bilinear")[0].permute(1, 2, 0).numpy().astype(int)
    cos, sin = np.cos(np.radians(12.0)), np.sin(np.radians(12.0))
    center = np.array([[1, 0, COLUMNS / 2], [0, 1, ROWS / 2], [0, 0, 1]])
    turned = center @ np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]]) @ np.linalg.inv(center)
    sheared, moved = np.eye(3), np.eye(3)
    sheared[0, 1], moved[1, 2] = 0.2, 0.1 * ROWS
    matrix = (turned @ sheared @ moved).ravel()[:6].tolist()
    one = Image.fromarray(image).transform(
        (COLUMNS, ROWS), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=FILL
    )
    assert np.abs(got - np.asarray(one)).max() <= 1
    three = Image.fromarray(image)
    for op in (0, 2, 3):
        three = transform(three, Op(ops[0, op]), amounts[0, op], Image.Resampling.BILINEAR)
    apart = np.abs(got - np.asarray(three))[14:-14, 18:-18]
    assert apart.mean() < 4  # three samplings blur
