"""Image size and channels for a model."""

from pathlib import Path
from typing import Any

import pytest

from conftest import call, photo, photo_folder
from vitlab.data.learning import open_to_learn
from vitlab.data.open import open_images
from vitlab.data.summary import divided, input_shape


def test_sizes_and_channels_come_from_the_images(tmp_path: Path) -> None:
    mixed = photo_folder(tmp_path / "mixed", {"a": 3, "b": 3})
    photo(0, 40, 40).save(mixed / "a" / "000.png")
    assert input_shape(open_images(str(mixed)).every())[0] == 224
    gray = tmp_path / "gray"
    for name in "ab":
        (gray / name).mkdir(parents=True)
        for i in range(3):
            photo(i, 20, 20).convert("L").save(gray / name / f"{i}.png")
    assert input_shape(open_to_learn(str(gray)).train) == (20, 1)
    large = tmp_path / "large"
    for name in "ab":
        (large / name).mkdir(parents=True)
        for i in range(3):
            photo(i, 300, 400).save(large / name / f"{i}.jpg")
    assert input_shape(open_to_learn(str(large)).train) == (224, 3)


@pytest.mark.parametrize(
    ("size", "patch", "near"),
    [(250, 16, (256, 256)), ((100, 150), 32, (96, 160)), (8, 3, (9, 9)), (5, 16, (16, 16))],
)
def test_a_size_that_the_patch_does_not_divide(size: Any, patch: int, near: Any) -> None:
    found, remarks = divided(size, patch)
    assert found == near
    assert f"resized to {near[0]}x{near[1]}" in remarks[0]
    assert divided(near, patch) == (near, [])


def test_training_resizes_such_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "ViT-Ti1/3", "--steps", "1", "--out", str(tmp_path / "run")]
    code, _, err = call(capsys, "train", "digits", *words)
    assert code == 0
    assert "images of 8x8 pixels are resized to 9x9, which the patch of 3 divides" in err
