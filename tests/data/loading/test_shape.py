"""Image size and channels for a model."""

from pathlib import Path

import pytest

from conftest import call, photo, photo_folder
from vitlab.data.learning import open_to_learn
from vitlab.data.open import open_images
from vitlab.data.summary import divided, input_shape


def test_sizes_and_channels_come_from_the_images(tmp_path: Path) -> None:
    mixed = photo_folder(tmp_path / "mixed", {"a": 3, "b": 3})
    photo(0, 40, 40).save(mixed / "a" / "000.png")
    assert input_shape(open_images(str(mixed)).every())[0] == 224
    for place, mode, rows, columns, shape in (
        ("gray", "L", 20, 20, (20, 1)), ("large", "RGB", 300, 400, (224, 3)),
    ):  # fmt: skip
        for name in "ab":
            (tmp_path / place / name).mkdir(parents=True)
            for i in range(3):
                image = photo(i, rows, columns).convert(mode)
                image.save(tmp_path / place / name / f"{i}.jpg")
        assert input_shape(open_to_learn(str(tmp_path / place)).train) == shape


def test_a_size_that_the_patch_does_not_divide() -> None:
    for size, patch, near in (
        (250, 16, (256, 256)), ((100, 150), 32, (96, 160)), (8, 3, (9, 9)), (5, 16, (16, 16)),
    ):  # fmt: skip
        found, remarks = divided(size, patch)
        assert found == near
        assert f"resized to {near[0]}x{near[1]}" in remarks[0]
        assert divided(near, patch) == (near, [])


def test_training_resizes_such_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "ViT-Ti1/3", "--steps", "1", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, "train", "digits", *words)
    assert code == 0
    assert "images of 8x8 pixels are resized to 9x9, which the patch of 3 divides" in err
