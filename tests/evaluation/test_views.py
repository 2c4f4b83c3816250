"""Flips and crops: which parts of an image are seen, and that probabilities are averaged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import call, photo_folder
from vitlab.data.decode.crop import center_box, five_boxes
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import center, fitted_image, load_crops
from vitlab.data.sources.folders import Files
from vitlab.data.sources.memory import Arrays
from vitlab.errors import OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Views
from vitlab.evaluation.predictions import predict
from vitlab.images import ImageSpec

CPU = torch.device("cpu")


def arrays(rows: int, columns: int, images: int = 3) -> Arrays:
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (images, rows, columns, 3), np.uint8)
    return Arrays(pixels, SingleLabels.blank(images, 2), ("a", "b"))


def model(**choices: object) -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    name = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    made = vitlab.create(name, **{"classes": 2, "image_size": 28} | choices)
    assert isinstance(made, vitlab.VisionTransformer)
    with torch.no_grad():
        for weight in made.parameters():
            weight.normal_(0, 0.3)
    return made.eval()


@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (32, 50), (40, 32)])
def test_crops_are_the_corners_and_the_center(rows: int, columns: int) -> None:
    """Where the shorter side is the 256 of "256, then 224", crops are plain slices."""
    source = arrays(rows, columns)
    crops = load_crops(source.image(1), ImageSpec(image_size=28))
    pixels = source.image(1).decode(3)
    top, left = (rows - 28) // 2, (columns - 28) // 2
    want = [
        pixels[:28, :28], pixels[:28, -28:], pixels[-28:, :28], pixels[-28:, -28:],
        pixels[top : top + 28, left : left + 28],
    ]  # fmt: skip
    assert np.array_equal(crops, np.stack(want))
    same = ImageSpec(image_size=28, crop=0.875)
    assert np.array_equal(crops[4], fitted_image(source.image(1), same))


def test_a_smaller_crop_of_the_model_stays() -> None:
    spec = ImageSpec(image_size=16, crop=0.5)
    source = arrays(32, 32)
    pixels = source.image(0).decode(3)
    assert np.array_equal(load_crops(source.image(0), spec)[3], pixels[16:, 16:])


def test_boxes_of_every_shape() -> None:
    for rows, columns in ((100, 300), (301, 77)):
        middle = center_box(rows, columns, 24, 16, 0.8)
        boxes = five_boxes(rows, columns, middle)
        assert boxes[4] == middle
        for left, top, right, bottom in boxes:
            assert 0 <= left < right <= columns
            assert 0 <= top < bottom <= rows
            assert (bottom - top) / (right - left) == pytest.approx(24 / 16)
        assert boxes[0][:2] == (0, 0)
        assert boxes[3][2:] == pytest.approx((columns, rows))
    assert five_boxes(100, 300, (75, 25, 225, 75))[1] == (150, 0, 300, 50)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_jpeg_is_decoded_once_at_a_reduced_scale(tmp_path: Path, orientation: int) -> None:
    smooth = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(smooth).resize((701, 523), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture.save(tmp_path / "x.jpg", quality=95, exif=exif)
    source = Files(tmp_path, ["x.jpg"], SingleLabels.blank(1, 2), ("a", "b"))
    spec = ImageSpec(image_size=28)
    crops = load_crops(source.image(0), spec)
    pixels = source.image(0).decode(3)
    middle = center(ImageSpec(image_size=28, crop=0.875))(*pixels.shape[:2])
    for made, box in zip(crops, five_boxes(*pixels.shape[:2], middle), strict=True):
        want = Image.fromarray(pixels).resize((28, 28), Image.Resampling.BILINEAR, box=box)
        assert np.abs(made.astype(int) - np.asarray(want)).max() <= 6


@pytest.mark.parametrize(
    ("views", "count"),
    [(Views(True), 2), (Views(False, 5), 5), (Views(True, 5), 10), (Views(False, 10), 10)],
)
def test_probabilities_are_averaged(views: Views, count: int) -> None:
    made, source = model(mean=0.2, std=0.7), arrays(32, 40)
    made.provenance["temperature"] = 2.0
    done = predict(made, source, Compute(CPU), views=views)
    assert views.count == count
    for index in range(3):
        if views.boxes == 5:
            images = np.stack(load_crops(source.image(index), made.config))
        else:
            images = fitted_image(source.image(index), made.config)[None]
        pixels = (torch.from_numpy(images).permute(0, 3, 1, 2) / 255 - 0.2) / 0.7
        if count in (2, 10):
            pixels = torch.cat([pixels, pixels.flip(3)])
        with torch.inference_mode():
            want = (made(pixels).double() / 2).softmax(-1).mean(0)
        np.testing.assert_allclose(done.probabilities[index], want, atol=1e-5)


def test_without_views_nothing_changes() -> None:
    made, source = model(), arrays(32, 40)
    plain = predict(made, source, Compute(CPU)).probabilities
    assert np.array_equal(predict(made, source, Compute(CPU), views=Views()).probabilities, plain)
    assert not np.allclose(
        predict(made, source, Compute(CPU), views=Views(True)).probabilities, plain
    )


def test_a_damaged_image_is_damaged_once(tmp_path: Path) -> None:
    root = photo_folder(tmp_path, {"a": 3, "b": 3})
    (root / "a" / "001.png").write_bytes(b"no image")
    paths = sorted(str(each.relative_to(root)) for each in root.rglob("*.png"))
    source = Files(root, paths, SingleLabels(np.array([0, 0, 0, 1, 1, 1])), ("a", "b"))
    done = predict(model(), source, Compute(CPU, workers=0), views=Views(False, 5))
    assert (list(done.bad), done.probabilities.shape) == ([1], (5, 2))
    assert done.labels.values.tolist() == [0, 0, 1, 1, 1]


def test_the_commands_take_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = model(labels=("a", "b"))
    vitlab.save(made, tmp_path / "model")
    data = str(photo_folder(tmp_path / "photos", {"a": 12, "b": 12}))
    image = str(tmp_path / "photos" / "a" / "000.png")
    answers = vitlab.classify(made, [image], flips=True, crops=5)[0].classes
    words = ["predict", str(tmp_path / "model"), image]
    code, out, _ = call(capsys, *words, "--flips", "--crops", "5")
    assert code == 0
    assert f"{answers[0][0]} {answers[0][1]:.1%}" in out
    ten = vitlab.classify(made, [image], crops=10)[0].classes
    assert ten == answers
    both = [vitlab.evaluate(made, data, workers=0, crops=10)["nll"]]
    both += [vitlab.evaluate(made, data, workers=0, crops=5, flips=True)["nll"]]
    assert both[0] == both[1] != vitlab.evaluate(made, data, workers=0)["nll"]
    code, _, err = call(capsys, *words, "--flips", "--crops", "10")
    assert code == 2
    assert "flips=True applies only with crops=1 or 5" in err
    code, _, err = call(capsys, "evaluate", *words[1:2], data, "--crops", "3")
    assert code == 2
    assert "crops must be one of 1, 5, 10" in err
    with pytest.raises(OptionError, match="crops must be 1, 5 or 10, not 3"):
        vitlab.evaluate(made, data, crops=3)  # type: ignore[arg-type]
