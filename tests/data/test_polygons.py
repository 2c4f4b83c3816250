"""Masks as COCO's polygons and run lengths: drawn as pycocotools draws them, later ones on top."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as drawing
from pycocotools.coco import COCO

from vitlab.data.masks import IGNORED, MaskClasses, open_masks
from vitlab.errors import DataError, PackageError

SIZE = (30, 40)
SQUARE = [[2.0, 2, 20, 2, 20, 20, 2, 20]]
TRIANGLE = [[10.0, 5, 35.5, 28, 4, 27.5], [30.0, 2, 38, 2, 38, 9]]
EDGE = {"size": [*SIZE], "counts": [1100, 100]}  # the last columns, by run lengths
PACKED = drawing.encode(np.asfortranarray(np.eye(*SIZE, dtype=np.uint8)))
SAID: dict[str, Any] = {
    "images": [
        {"id": 7, "file_name": "a.png", "width": 40, "height": 30},
        {"id": 3, "file_name": "b.png", "width": 40, "height": 30},
        {"id": 4, "file_name": "gone.png", "width": 40, "height": 30},
    ],
    "categories": [{"id": 90, "name": "cat"}, {"id": 1, "name": "unused"}, {"id": 5, "name": "dog"}
    ],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 90, "segmentation": SQUARE},
        {"id": 2, "image_id": 7, "category_id": 5, "segmentation": TRIANGLE},
        {"id": 3, "image_id": 7, "category_id": 5, "segmentation": EDGE, "iscrowd": 1},
        {"id": 4, "image_id": 3, "category_id": 5,
         "segmentation": PACKED | {"counts": PACKED["counts"].decode()}},
    ],
}  # fmt: skip


def written(root: Path, said: Any = None, where: str = "annotations.json") -> Path:
    """A folder with two images, and what is said of them."""
    for name in ("a.png", "b.png"):
        (root / where).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((*SIZE, 3), np.uint8)).save((root / where).parent / name)
    (root / where).write_text(json.dumps(SAID if said is None else said))
    return root


def test_shapes_are_those_of_pycocotools_and_later_ones_lie_on_top(tmp_path: Path) -> None:
    opened = open_masks(written(tmp_path))
    (images,) = opened.parts.values()
    assert images.known == MaskClasses(("background", "cat", "dog"), (0, 1, 2), 2**16 - 1)
    theirs = COCO(str(tmp_path / "annotations.json"))
    square, triangle, edge, packed = (theirs.annToMask(each) > 0 for each in theirs.anns.values())
    wanted = np.zeros(SIZE, int)
    wanted[edge] = IGNORED
    wanted[square] = 1
    wanted[triangle] = 2
    assert (square & triangle).any()
    assert (edge & triangle).any()
    assert np.array_equal(images.truth(0, SIZE), wanted)
    assert np.array_equal(images.truth(1, SIZE), 2 * packed)
    assert [images.name(number)[-5:] for number in range(2)] == ["a.png", "b.png"]
    assert any("skipped 1 images that are not there" in note for note in opened.notes)


def test_a_model_says_the_numbers_and_splits_are_found(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        written(tmp_path, where=f"{split}/_annotations.coco.json")
    known = MaskClasses(("dog", "cat", "background"), (7, 8, 9), 255)
    parts = open_masks(tmp_path, like=known).parts
    assert {*parts} == {"train", "validation"}
    assert set(np.unique(parts["train"].numbers(0))) == {0, 7, 8, 255}
    with pytest.raises(
        DataError, match="class 'dog', which is not among those known, cat, background: leave"
    ):
        open_masks(tmp_path, like=MaskClasses(("cat", "background"), (1, 0), None))


ODD = [
    [], {}, "x", [[1, 2, 3]], [[1, 2, 3, 4, 5, float("nan")]], [[0, 0, 1e9, 0, 1e9, 9]],
    [["a"] * 6],
    {"size": [3, 3], "counts": [9]}, {"size": [*SIZE], "counts": [5, -5, 1200]},
    {"size": [*SIZE], "counts": [5]}, {"size": [*SIZE], "counts": ""},
    {"size": [*SIZE], "counts": "o~é"},
    None, [7] * 6,
]  # fmt: skip


def test_odd_shapes_are_skipped_and_named(tmp_path: Path) -> None:
    for shape in ODD:
        said = copy.deepcopy(SAID)
        said["annotations"][3]["segmentation"] = shape
        opened = open_masks(written(tmp_path, said))
        assert any("skipped 1 shapes" in note and "image 3" in note for note in opened.notes)
        assert not opened.parts["all"].truth(1, SIZE).any()


WRONG = [
    ({"annotations": [{"image_id": 7}]}, "is not COCO's format"),
    ({"images": [{"id": 1, "file_name": "a.png", "width": float("inf"), "height": 2}],
      "annotations": []}, "has no image that is there"),
    ({"annotations": [{"image_id": 7, "category_id": 2, "segmentation": SQUARE}]},
     "category_id 2 is not among the categories"),
    ({"annotations": []}, "have 1 class beside"),
]  # fmt: skip


def test_wrong_annotations_are_one_line(tmp_path: Path) -> None:
    for change, words in WRONG:
        with pytest.raises(DataError, match=words):
            open_masks(written(tmp_path, SAID | change))


def test_what_does_not_apply_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="names its classes itself: no --class-names, no --ignore"):
        open_masks(written(tmp_path) / "annotations.json", ignore=3)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PackageError, match=r"pip install \"vitlab\[coco\]\", or draw masks as PNG"):
        open_masks(tmp_path)
