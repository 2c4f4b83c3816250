"""Masks: which belongs to which image in every layout, and their numbers as Pillow has them."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as drawing
from pycocotools.coco import COCO

from made_files import chunk, png_of
from made_scenes import CLASSES, scene, scene_folder
from places_opened import open_masks
from vitlab.data.mask_targets import read_numbers
from vitlab.data.open_splits import split_opened
from vitlab.data.settings import Columns
from vitlab.data.splits import Splits
from vitlab.data.target import IGNORED
from vitlab.errors import DataError, ImageError, PackageError
from vitlab.models.heads.mask_classes import MaskClasses


def saved(file: Path, values: object, mode: str = "") -> Path:
    """An image file of some numbers, in a mode of Pillow."""
    file.parent.mkdir(parents=True, exist_ok=True)
    array = np.asarray(values)
    image = Image.fromarray(array)
    if mode == "P":
        image = Image.fromarray(array.astype(np.uint8))
        image.putpalette([7 * each % 256 for each in range(768)])
    image.save(file)
    return file


def picture(file: Path, rows: int = 2, columns: int = 3) -> Path:
    return saved(file, np.full((rows, columns, 3), 9, np.uint8))


def test_numbers_are_read_as_they_are_stored(tmp_path: Path) -> None:
    for mode, kind, most, endings in (
        ("P", np.uint8, 255, "png tif bmp"), ("", np.uint8, 255, "png tif bmp"),
        ("", np.uint16, 65_535, "png tif"), ("", np.int32, 9000, "tif"),
    ):  # fmt: skip
        values = np.random.default_rng(0).integers(0, most + 1, (9, 7)).astype(kind)
        for ending in endings.split():
            file = saved(tmp_path / f"mask.{ending}", values, mode)
            assert np.array_equal(read_numbers(file.read_bytes(), "mask"), values)


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("color", [0, 3])  # gray, palette
def test_numbers_of_few_bits_are_not_widened(depth: int, color: int) -> None:
    """Pillow turns gray 0 to 3 of two bits into 0, 85, 170, 255."""
    values = np.arange(16).reshape(2, 8) % 2**depth
    bits = ((values[..., None] >> np.arange(depth - 1, -1, -1)) & 1).reshape(2, -1)
    palette = [chunk(b"PLTE", bytes(range(3 * 2**depth)))] if color else []
    data = png_of(2, 8, depth, color, [np.packbits(row) for row in bits], *palette)
    assert read_numbers(data, "mask").tolist() == values.tolist()


def test_what_is_no_mask_is_refused_in_one_line(tmp_path: Path) -> None:
    color = picture(tmp_path / "color.png").read_bytes()
    lossy = saved(tmp_path / "gray.jpg", np.zeros((8, 8), np.uint8)).read_bytes()
    whole = saved(tmp_path / "gray.png", np.zeros((80, 80), np.uint8)).read_bytes()
    for data, words in (
        (color, "mask in colors"), (lossy, "not a PNG"), (whole[:-40], "damaged"), (b"", "empty"),
    ):  # fmt: skip
        with pytest.raises(ImageError, match=words) as found:
            read_numbers(data, "a.png")
        assert "a.png" in str(found.value)
        assert "\n" not in str(found.value)
    with pytest.raises(ImageError, match="exceed the limit"):
        read_numbers(png_of(60_000, 60_000, 8, 0, []), "a.png")


def names(part: Any) -> list[tuple[str, str]]:
    """The names of images and masks, without folders."""
    return [
        (Path(part.name(n)).name, Path(part.target.store.masks[part.target.rows[n]]).name)
        for n in range(len(part))
    ]


def split(root: Path) -> Splits:
    return split_opened(open_masks(root), 0.2)


def counted(root: Path) -> dict[str, int]:
    return {name: len(part) for name, part in open_masks(root).parts.items()}


def test_folders_of_images_and_masks(tmp_path: Path) -> None:
    root = scene_folder(tmp_path, 5)
    whole = open_masks(root).parts["all"]
    assert whole.classes == CLASSES
    assert names(whole) == [(f"{n:03d}.png", f"{n:03d}.png") for n in range(5)]
    assert np.array_equal(whole.target.truth(1, (40, 56)), scene(1)[1])
    splits, test = split(root), names(split(root).test)
    assert splits.validation is None
    assert sorted(names(splits.train) + test) == names(whole)
    assert splits.notes == [
        "20% of the images held out for testing (always the same): 1 of 5 images"
    ]
    (root / "images" / "000.png").unlink()  # whoever comes and goes, the others stay
    assert {*test} - {("000.png", "000.png")} <= {*names(split(root).test)}
    (root / "masks" / "002.png").unlink()
    opened = open_masks(root)
    assert len(opened.parts["all"]) == 3
    (note,) = opened.notes
    assert note.startswith("left out 1 images without a mask: ")
    assert "002.png" in note
    for number in (1, 3):
        (root / "images" / f"00{number}.png").unlink()
    with pytest.raises(DataError, match=r"004.png is the only image with a mask: give at least 2"):
        split(root)


def test_splits_by_folder_inside_and_outside(tmp_path: Path) -> None:
    for name, count in (("train", 3), ("val", 2), ("test", 1)):
        scene_folder(tmp_path / "outside" / name, count)
        for kind in ("images", "masks"):
            for file in (tmp_path / "outside" / name / kind).iterdir():
                place = tmp_path / "inside" / kind / name / file.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read_bytes())
    for root in ("outside", "inside"):
        parts = split(tmp_path / root).parts
        assert {name: len(part) for name, part in parts.items()} == {
            "train": 3, "validation": 2, "test": 1,
        }  # fmt: skip
        assert np.array_equal(parts["train"].target.truth(1, (40, 56)), scene(1)[1])


def test_voc_and_its_lists(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2), ("c", 1), ("d", 0)):
        picture(tmp_path / "JPEGImages" / f"{name}.jpg")
        mask = np.array([[0, value, 255], [value, 0, 0]], np.uint8)
        if name != "d":
            saved(tmp_path / "SegmentationClass" / f"{name}.png", mask, "P")
    lists = tmp_path / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for split, own in (("train", "a\nb\n"), ("val", "c\n"), ("trainval", "a\nb\nc\n")):
        (lists / f"{split}.txt").write_text(own)
    opened = open_masks(tmp_path)
    assert names(opened.parts["train"]) == [("a.jpg", "a.png"), ("b.jpg", "b.png")]
    assert names(opened.parts["validation"]) == [("c.jpg", "c.png")]
    assert opened.parts["train"].classes == ("0", "1", "2")
    assert opened.parts["train"].target.truth(1, (2, 3)).tolist() == [[0, 2, IGNORED], [2, 0, 0]]
    (lists / "val.txt").write_text("c\nd\n")
    with pytest.raises(DataError, match=r"names 1 images that are missing or have no mask: d"):
        open_masks(tmp_path)


def test_ade_ignores_zero_and_counts_from_one(tmp_path: Path) -> None:
    for split in ("training", "validation"):
        picture(tmp_path / "images" / split / "a.jpg")
        saved(
            tmp_path / "annotations" / split / "a.png", np.array([[0, 1, 2], [3, 3, 1]], np.uint8)
        )
    (tmp_path / "classes.txt").write_text("wall\nbuilding\nsky\n")
    part = open_masks(tmp_path).parts["validation"]
    assert (part.classes, part.target.store.known.values) == (
        ("wall", "building", "sky"),
        (1, 2, 3),
    )
    assert part.target.truth(0, (2, 3)).tolist() == [[IGNORED, 0, 1], [2, 2, 0]]


def test_a_list_with_a_column_of_masks(tmp_path: Path) -> None:
    root = scene_folder(tmp_path, 4)
    lines = [f"images/00{n}.png,masks/00{n}.png,{'val' if n == 3 else 'train'}" for n in range(4)]
    file = root / "list.csv"
    file.write_text("\n".join(["path,mask,split", *lines]))
    opened = open_masks(file, str(root / "classes.txt"))
    assert counted(file) == {"train": 3, "validation": 1}
    assert np.array_equal(opened.parts["train"].target.truth(1, (40, 56)), scene(1)[1])
    with pytest.raises(DataError, match="has no column 'day'"):
        open_masks(file, columns=Columns(group_column="day"))


def test_names_of_classes(tmp_path: Path) -> None:
    root = scene_folder(tmp_path, 3)
    for n in range(3):
        binary = np.where(scene(n, 40 + 8 * (n == 0))[1] > 0, 255, 0).astype(np.uint8)
        saved(root / "masks" / f"00{n}.png", binary)
    (root / "classes.txt").unlink()
    with pytest.raises(DataError, match="--ignore none counts every number"):
        open_masks(root)
    found = open_masks(root, ignore=None).parts["all"]
    assert (found.classes, found.target.store.known.values) == (("0", "255"), (0, 255))
    (root / "names.txt").write_text("0 ground\n255 thing\n")
    found = open_masks(root, str(root / "names.txt"), None).parts["all"]
    assert found.classes == ("ground", "thing")
    assert set(np.unique(found.target.truth(1, (40, 56)))) == {0, 1}


def test_pairs_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "classes.txt").write_text("those\nof\nother\ndata\n")
    monkeypatch.chdir(tmp_path)
    pairs = [scene(number) for number in range(3)]
    part = open_masks(pairs).parts["all"]
    assert part.classes == ("0", "1", "2", "3")
    assert np.array_equal(part.target.truth(2, (40, 56)), pairs[2][1])
    named = open_masks({"train": pairs[:2], "val": pairs[2:], "classes": CLASSES}).parts
    assert {name: len(each) for name, each in named.items()} == {"train": 2, "validation": 1}
    assert named["train"].classes == CLASSES
    assert {*open_masks({"test": pairs}).parts} == {"all"}
    for wrong, words in (
        ([(pairs[0][0], pairs[0][1] * 0.5)], "have no classes"), ([pairs[0][0]], "a list of"),
        ({"train": pairs, "holdout": pairs}, "unknown key 'holdout'"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=words):
            open_masks(wrong)


def test_masks_of_instances_are_not_of_classes() -> None:
    numbers = np.arange(1200).reshape(30, 40)
    with pytest.raises(DataError, match="have 1,200 different numbers: such masks of instances"):
        open_masks([(np.zeros((30, 40, 3), np.uint8), numbers)], ignore=None)
    for wrong in (numbers - 1, numbers + 2**16):
        with pytest.raises(ImageError, match="class numbers must be from 0 to 65,535"):
            part = open_masks({"train": [(scene(0)[0], wrong)], "classes": CLASSES}).parts["all"]
            part.target.truth(0, (40, 56))


def test_masks_that_do_not_fit(tmp_path: Path) -> None:
    root = scene_folder(tmp_path, 2)
    for mask, kind, words in (
        (np.zeros((4, 4)), ImageError, "its mask has 4 x 4 pixels, the image 40 x 56"),
        (np.full((40, 56), 7), DataError, "has the number 7, which is none of the 4 classes"),
    ):
        saved(root / "masks" / "001.png", np.asarray(mask, np.uint8))
        with pytest.raises(kind, match=words) as found:
            open_masks(root).parts["all"].target.truth(1, (40, 56))
        assert type(found.value) is kind
        assert "001.png" in str(found.value)


def test_data_without_masks_says_what_would_work(tmp_path: Path) -> None:
    picture(tmp_path / "photos" / "a.png")
    with pytest.raises(DataError, match="put them into folders images/ and masks/"):
        open_masks(tmp_path)
    with pytest.raises(DataError, match="no such folder or list"):
        open_masks(tmp_path / "nothing")
    picture(tmp_path / "images" / "a.png")
    saved(tmp_path / "masks" / "b.png", np.zeros((2, 3), np.uint8))
    with pytest.raises(DataError, match=r"no image of .* has a mask of the same name"):
        open_masks(tmp_path)
    saved(tmp_path / "masks" / "b.tif", np.zeros((2, 3), np.uint8))
    with pytest.raises(DataError, match="two masks of one name"):
        open_masks(tmp_path)


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
    known = images.target.store.known
    assert known == MaskClasses(("background", "cat", "dog"), (0, 1, 2), 2**16 - 1)
    theirs = COCO(str(tmp_path / "annotations.json"))
    square, triangle, edge, packed = (theirs.annToMask(each) > 0 for each in theirs.anns.values())
    wanted = np.zeros(SIZE, int)
    wanted[edge] = IGNORED
    wanted[square] = 1
    wanted[triangle] = 2
    assert (square & triangle).any()
    assert (edge & triangle).any()
    assert np.array_equal(images.target.truth(0, SIZE), wanted)
    assert np.array_equal(images.target.truth(1, SIZE), 2 * packed)
    assert [images.name(number)[-5:] for number in range(2)] == ["a.png", "b.png"]
    assert any("skipped 1 images that are not there" in note for note in opened.notes)


def test_a_model_says_the_numbers_and_splits_are_found(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        written(tmp_path, where=f"{split}/_annotations.coco.json")
    known = MaskClasses(("dog", "cat", "background"), (7, 8, 9), 255)
    parts = open_masks(tmp_path, like=known).parts
    assert {*parts} == {"train", "validation"}
    assert set(np.unique(parts["train"].target.numbers(0))) == {0, 7, 8, 255}
    with pytest.raises(
        DataError, match="class 'dog', which is not among those known, cat, background: leave"
    ):
        open_masks(tmp_path, like=MaskClasses(("cat", "background"), (1, 0), None))


def test_pixels_of_no_object_are_the_background_also_where_objects_are_called_so(
    tmp_path: Path,
) -> None:
    said = copy.deepcopy(SAID)
    said["categories"][0]["name"] = "background"
    said["annotations"].append(said["annotations"][0] | {"image_id": 99})  # no image's
    (images,) = open_masks(written(tmp_path, said)).parts.values()
    assert images.target.store.known.classes == ("background", "dog")
    assert images.target.truth(0, SIZE)[15, 3] == images.target.truth(0, SIZE)[0, 0] == 0


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
        assert any("skipped 1 shapes" in note and "b.png" in note for note in opened.notes)
        assert not opened.parts["all"].target.truth(1, SIZE).any()


WRONG = [
    ({"annotations": [{"image_id": 7}]}, "is not COCO's format"),
    ({"images": [{"id": 1, "file_name": "gone.png", "width": float("inf"), "height": 2}],
      "annotations": []}, "has no image that is there"),
    ({"annotations": [{"image_id": 7, "category_id": 2, "segmentation": SQUARE}]},
     "category_id 2 is not among the categories"),
    ({"annotations": []}, "have 1 class beside"),
    ({"images": [each | {"id": 7} for each in SAID["images"]]}, "id 7 is given twice"),
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
