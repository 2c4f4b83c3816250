"""Lists of other machines: a file is found by its last name in the folder that the user names."""

from pathlib import Path

import pytest

from conftest import photo_folder
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.errors import DataError


def listed(place: Path, paths: list[str]) -> Path:
    """A list of such paths, of two classes in turn."""
    rows = [f"{path},{'ab'[number % 2]}" for number, path in enumerate(paths)]
    place.write_text("\n".join(["path,label", *rows]))
    return place


@pytest.mark.parametrize(
    "written", [r"C:\Users\ann\Photos\{}", "/home/ann/{}", r"\\server\share\{}", "Photos/2024/{}"]
)
def test_last_names_in_the_named_folder(tmp_path: Path, written: str) -> None:
    photo_folder(tmp_path / "pictures", {"flat": 6}, 8, 8)
    file = listed(tmp_path / "x.csv", [written.format(f"{number:03d}.png") for number in range(6)])
    columns = Columns(images=str(tmp_path / "pictures" / "flat"))
    found = open_images(str(file), "label", columns=columns)
    (part,) = found.parts.values()
    assert [Path(part.name(n)).name for n in range(6)] == [f"{n:03d}.png" for n in range(6)]
    assert [part.target.classes_of(n) for n in range(6)] == [(n % 2,) for n in range(6)]
    line = f"6 of the 6 paths in {file} are read by their last names alone"
    assert line in found.notes
    with pytest.raises(DataError, match=r"6 of the 6 files listed .* --images names another"):
        open_images(str(file), "label")


def test_last_names_that_several_share_are_refused(tmp_path: Path) -> None:
    photo_folder(tmp_path / "pictures", {"flat": 2}, 8, 8)
    file = listed(tmp_path / "x.csv", [rf"C:\{name}\000.png" for name in ("cat", "dog")])
    columns = Columns(images=str(tmp_path / "pictures" / "flat"))
    with pytest.raises(DataError, match=r"only 000\.png is there: name with --images the folder"):
        open_images(str(file), "label", columns=columns)
    twice = listed(tmp_path / "y.csv", [r"C:\cat\000.png", r"C:\cat\000.png", r"C:\cat\001.png"])
    assert open_images(str(twice), "label", columns=columns).parts
    (tmp_path / "pictures" / "flat" / "cat").mkdir()  # in which 000.png is missing, not elsewhere
    known = listed(tmp_path / "z.csv", ["cat/000.png"])
    with pytest.raises(DataError, match=r"1 of the 1 files listed .* do not exist: cat/000\.png"):
        open_images(str(known), "label", columns=columns)
