"""Images from anywhere: the pixels of the commands, whatever form an image has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitlab
from vitlab.data.decode.filters import filter_matrix, is_tall, resize, resize_tall
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.sources.pictures import stored
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation.classification import unlabeled
from vitlab.images import ImageSpec
from vitlab.models.model import Model


def picture(rows: int = 40, columns: int = 60, seed: int = 0) -> Image.Image:
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((columns, rows), Image.Resampling.BICUBIC)


def model(**choices: Any) -> Model:
    about: dict[str, Any] = {"crop": 0.9, "mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.4)}
    generator = torch.Generator().manual_seed(0)
    return vitlab.create("ViT-Ti1/8", 3, (16, 24), generator=generator, **about | choices).eval()


def by_command(of: Model, file: Path) -> Tensor:
    """What `vitlab predict` feeds to the model."""
    pixels = EvaluationBatches(unlabeled(of, [str(file)]), of.config, 1)[0].images
    values = pixels.permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(each)[:, None, None] for each in (of.config.mean, of.config.std))
    return (values - mean) / std


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_every_form_gives_the_pixels_of_the_commands(tmp_path, fit, interpolation) -> None:
    of, image = model(fit=fit, interpolation=interpolation), picture()
    file = tmp_path / "a.png"
    image.save(file)
    want = by_command(of, file)
    prepare, array = vitlab.preprocess(of), np.asarray(image)
    with Image.open(file) as opened:
        forms: list[Any] = [
            file, str(file), file.read_bytes(), image, opened, array,
            torch.from_numpy(array.copy()).permute(2, 0, 1),
        ]  # fmt: skip
        for form in forms:
            torch.testing.assert_close(prepare(form), want, rtol=0, atol=1e-6)
        torch.testing.assert_close(prepare(forms), want.expand(len(forms), -1, -1, -1))
    torch.testing.assert_close(prepare(np.stack([array] * 2)), want.expand(2, -1, -1, -1))
    assert prepare(forms).shape == (len(forms), 3, 16, 24)
    of(prepare(forms))


def test_a_file_that_pillow_opened_is_read_as_the_file(tmp_path: Path) -> None:
    """A large JPEG is decoded at a fraction of its size, and its orientation followed."""
    of, file = model(), tmp_path / "a.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(480, 640).save(file, quality=90, exif=exif)
    want = by_command(of, file)
    prepare = vitlab.preprocess(of)
    torch.testing.assert_close(prepare(file), want, rtol=0, atol=1e-6)
    with Image.open(file) as opened:
        assert torch.equal(prepare(opened), prepare(file))
        opened.load()
        assert (prepare(opened) - want).abs().max() < 12 / 255 / 0.2


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "I;16", "CMYK", "LA"])
def test_modes_of_pillow(tmp_path: Path, mode: str) -> None:
    image = picture()
    if mode == "I;16":
        gray = np.asarray(image.convert("L")).astype(np.uint16) * 257
        image = Image.fromarray(gray)
    elif mode == "RGBA":
        image.putalpha(image.convert("L"))
    else:
        image = image.convert(mode)
    file = tmp_path / ("a.tiff" if mode == "CMYK" else "a.png")
    image.save(file)
    for channels in (1, 3):
        of = model(channels=channels, mean=0.5, std=0.5)
        want = vitlab.preprocess(of)(file)
        torch.testing.assert_close(vitlab.preprocess(of)(image), want, rtol=0, atol=1e-6)
    assert stored(image).shape() == stored(file).shape()  # which decide on a model's channels
    assert stored(stored(image).compact(256, 92)[0]).shape() == stored(file).shape()
    for each in (image, file):
        with pytest.raises(ImageError, match="name: 12 channels; pictures have 1, 3 or 4"):
            stored(each, "name").decode_box(12, lambda rows, columns: (0, 0, 1, 1), (1, 1))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_matrices_resize_as_pillow_to_the_last_bit(interpolation: str) -> None:
    """Any size to any size, within any box, noise and hard edges alike."""
    for case in range(16):
        draw = np.random.default_rng(case)
        high, wide, rows, columns = (int(each) for each in draw.integers(1, 120, 4))
        pixels = draw.integers(0, 256, (high, wide, 3), dtype=np.uint8)
        pixels = pixels // 128 * 255 if case % 3 == 0 else pixels
        left, right = sorted(draw.uniform(0, wide, 2))
        top, bottom = sorted(draw.uniform(0, high, 2))
        box = (0, 0, wide, high) if case % 2 else (left / 2, top / 2, right, bottom)
        method = Image.Resampling[interpolation.upper()]
        want = np.asarray(Image.fromarray(pixels).resize((columns, rows), method, box=box))
        sides = (
            filter_matrix(high, box[1], box[3], rows, interpolation),
            filter_matrix(wide, box[0], box[2], columns, interpolation),
        )
        spec = ImageSpec(image_size=(rows, columns), fit="squash")
        form = resize_tall if is_tall(high, wide, spec, high) else resize
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None].float()
        assert np.array_equal(form(batch, *sides)[0].permute(1, 2, 0).numpy(), want)


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_a_batch_on_a_device(fit: str) -> None:
    of = model(fit=fit, interpolation="bicubic")
    images = [np.asarray(picture(seed=seed)) for seed in range(4)]
    prepare = vitlab.preprocess(of)
    batch = torch.stack([torch.from_numpy(each.copy()).permute(2, 0, 1) for each in images])
    torch.testing.assert_close(prepare(batch), prepare(images), rtol=0, atol=1e-6)
    if fit == "squash":
        return
    sizes = ({0: torch.export.Dim("batch")},)
    traced = torch.export.export(prepare, (batch,), dynamic_shapes=sizes).module()
    for some in (batch, batch[:2], torch.cat([batch] * 3)):  # any number of images
        torch.testing.assert_close(traced(some), prepare(some), rtol=0, atol=0)
    gray = vitlab.preprocess(model())(batch[:, :1])
    torch.testing.assert_close(gray, vitlab.preprocess(model())(batch[:, :1].expand(-1, 3, -1, -1)))


def test_images_of_their_own_aspect_ratio_have_the_size_of_the_commands(tmp_path: Path) -> None:
    """As many patches as the model takes, not so many pixels."""
    of, file = model(fit="native", tokens=20, interpolation="bicubic"), tmp_path / "a.png"
    image = picture()
    image.save(file)
    want, prepare = dict(vitlab.classify(of, [file])[0].classes), vitlab.preprocess(of)
    assert prepare(file).shape == (1, 3, 32, 40)
    for form in (
        file,
        [image] * 2,
        torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None],
    ):
        for got in of(prepare(form)).softmax(1):
            assert sorted(got.tolist()) == pytest.approx(sorted(want.values()), abs=1e-5)
    tall = r"^images of 32 x 40 and 40 x 32 pixels make no batch: give them one by one$"
    with pytest.raises(DataError, match=tall):
        prepare([image, picture(60, 40)])


WRONG = [
    (np.zeros((8, 8, 3), np.float32), "type float32: give pixels from 0 to 255 as uint8"),
    (np.zeros((3, 8, 8), np.uint8), "shape (3, 8, 8): give (rows, columns)"),
    (torch.zeros(8, 8, 3, dtype=torch.uint8), "give (channels, rows, columns)"),
    (torch.zeros(2, 3, 8, 8), "type torch.float32"),
    (torch.zeros(2, 2, 8, 8, dtype=torch.uint8), "have 2 channels, not 3"),
    (b"nothing", "image 0"),
    ([b""], "the file is empty"),
    ([3], "is of type int: give a path, bytes"),
    ("nowhere.png", "nowhere.png: no such file"),
]


def test_what_is_no_image() -> None:
    of = model()
    for wrong, words in WRONG:
        with pytest.raises(ImageError) as caught:
            vitlab.preprocess(of)(wrong)
        assert words in str(caught.value)
    with pytest.raises(DataError, match="no images given"):
        vitlab.preprocess(of)([])
    with pytest.raises(OptionError, match="a model or its configuration"):
        vitlab.preprocess("ViT-B/16")
    for call in (of, of.encode, lambda images: vitlab.inspect.rollout(of, images)):
        with pytest.raises(OptionError, match=r"not (list|str): vitlab\.preprocess\(model\)"):
            call(["a.jpg"])


def test_it_is_the_transform_of_a_data_set(tmp_path: Path) -> None:
    """One image at a time; batches of batches are told what to do."""
    of, images = model(), [picture(seed=seed) for seed in range(5)]
    prepare, want = vitlab.preprocess(of), vitlab.preprocess(of)(images)

    class Photos(torch.utils.data.Dataset[Tensor]):
        def __init__(self, transform: Any) -> None:
            self.transform = transform

        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> Tensor:
            return self.transform(images[index])

    for workers in (0, 2):
        how = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
        loader = torch.utils.data.DataLoader(Photos(prepare.one), 2, **how)
        batches = list(loader)
        assert [tuple(each.shape) for each in batches] == [(2, 3, 16, 24)] * 2 + [(1, 3, 16, 24)]
        assert torch.equal(torch.cat(batches), want)
        assert all(of(each).shape[1:] == (3,) for each in batches)
    stacked = next(iter(torch.utils.data.DataLoader(Photos(prepare), 2)))
    with pytest.raises(
        OptionError, match=r"not \(2, 1, 3, 16, 24\); a data set's transform is .*one$"
    ):
        of(stacked)
    with pytest.raises(ImageError):
        prepare.one(tmp_path / "none.jpg")
