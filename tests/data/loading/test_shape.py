"""Image size and channels for a model."""

from pathlib import Path

from conftest import photo, photo_folder
from vitlab.data.loading.shape import input_shape
from vitlab.data.sources.opening import open_data


def test_sizes_and_channels_come_from_the_images(tmp_path: Path) -> None:
    mixed = photo_folder(tmp_path / "mixed", {"a": 3, "b": 3})
    photo(0, 40, 40).save(mixed / "a" / "000.png")
    assert input_shape(open_data(str(mixed)).train)[0] == 224
    gray = tmp_path / "gray"
    for name in "ab":
        (gray / name).mkdir(parents=True)
        for i in range(3):
            photo(i, 20, 20).convert("L").save(gray / name / f"{i}.png")
    assert input_shape(open_data(str(gray)).train) == (20, 1)
    large = tmp_path / "large"
    for name in "ab":
        (large / name).mkdir(parents=True)
        for i in range(3):
            photo(i, 300, 400).save(large / name / f"{i}.jpg")
    assert input_shape(open_data(str(large)).train) == (224, 3)
