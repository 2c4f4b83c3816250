"""Layouts: class folders at any depth, splits, and files of labels beside images."""

import json
from collections import Counter
from pathlib import Path

import pytest

from conftest import call, photo
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns
from vitlab.data.sources.class_levels import choose_class_level
from vitlab.errors import DataError

LEVELS = {  # folders with images: level of the class, level of the split
    "cat, dog": (0, None),
    "cat/a, cat/b, dog": (0, None),
    "cat/2020, cat/2021, dog/2020": (0, None),
    "cat/001, cat/002, dog/001": (0, None),
    "cat/part1, cat/part2, dog/part1": (0, None),
    "cat/day, cat/night, dog/day, dog/night": (0, None),  # ambiguous: as it was, and said
    "animals/cat, animals/dog, vehicles/car": (0, None),
    "one/a, one/b, two/a, two/b": (0, None),
    "london/cat, london/dog, paris/cat, paris/dog": (0, None),
    "0/left, 0/right, 1/left, 1/right": (0, None),  # grades, with both eyes
    "0/anna, 1/bert, 2/carl": (0, None),  # digits, by writer
    "3/patient_1, 3/patient_2, 4/patient_3": (0, None),
    "n01/images, n02/images": (0, None),  # Tiny ImageNet
    "camel/a, camel/b, party/a, party/b": (0, None),  # no camera, no part
    "march hare/a, mayfly/a, junco/a": (0, None),  # no month
    "photos/cat, photos/dog": (1, None),
    "a/b/cat, a/b/dog": (2, None),
    "siteA/cat, siteA/dog, siteB/cat, siteB/dog": (1, None),
    "site_1/cat, site_2/dog": (1, None),
    "site_north/cat, site_north/dog, site_south/cat, site_south/dog": (1, None),
    "station_wagon/front, station_house/door": (0, None),  # nothing recurs
    "Camera 3/cat, cam04/dog, camera-5/dog": (1, None),
    "2024-01-01/cat, 2024-01-02/dog": (1, None),
    "20240101/cat, 20240102/dog, 20240102/cat": (1, None),
    "2023/cat, May 2024/dog": (1, None),
    "100CANON/cat, 101CANON/dog": (1, None),
    "patient 1/benign, patient 1/malignant, patient 2/benign": (1, None),
    "1/cat, 1/dog, 2/cat, 2/dog": (1, None),
    "day/cat, day/dog, night/cat, night/dog": (0, None),  # ambiguous, too
    "real/cat, real/dog, synthetic/cat, synthetic/dog": (0, None),
    "siteA/day/cat, siteA/night/dog, siteB/day/dog, siteB/night/cat": (2, None),
    "siteA/2020/cat, siteB/2021/dog": (2, None),
    "siteA/cat/001, siteA/dog/002, siteB/cat/003": (1, None),
    "siteA/cat, siteB/dog, siteC": (0, None),  # a third of the images would have no class
    "cat/train, cat/test, dog/train": (0, 1),
    "siteA/train/cat, siteA/test/dog, siteB/train/dog": (1, 1),
    "siteA/cat/train, siteB/cat/val, siteB/dog/train": (1, 2),
}


@pytest.mark.parametrize("folders", LEVELS)
def test_level_of_the_classes(folders: str) -> None:
    counts = {tuple(each.split("/")): 10 for each in folders.split(", ")}
    found = choose_class_level(counts)
    assert (found.level, found.split_level) == LEVELS[folders]
    assert choose_class_level(counts, "outer").level == 0
    assert choose_class_level(counts, "inner").level == -1
    assert choose_class_level(counts, is_split=True).split_level is None


def make(root: Path, *names: str) -> Path:
    """Different images of these names."""
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        kind = "PNG" if name.endswith(".png") else "JPEG"
        photo(number, tint=len(names)).save(root / name, kind)
    return root


def several(*folders: str, count: int = 4) -> list[str]:
    """So many names of images in each folder."""
    return [f"{folder}/{number}.jpg" for folder in folders for number in range(count)]


def labels_of(data: object, **columns: object) -> Counter[str]:
    """How many images of a class the splits have, as `train cat`; of unsplit data `all cat`."""
    opened = open_images(str(data), columns=Columns(**columns))
    found = Counter[str]()
    for split, source in opened.parts.items():
        for index in range(len(source)):
            names = "+".join(source.classes[each] for each in source.target.classes_of(index))
            found[f"{split} {names}"] += 1
    return found


def notes_of(data: object, **columns: object) -> str:
    return "\n".join(open_images(str(data), "optional", columns=Columns(**columns)).notes)


def test_a_folder_around_the_class_folders(tmp_path: Path) -> None:
    root = make(tmp_path / "a", *several("photos/more/cat", "photos/more/dog"))
    (root / "readme.txt").write_text("from a friend")
    (root / "docs").mkdir()
    assert labels_of(root) == {"all cat": 4, "all dog": 4}
    assert "the classes are the folders cat, dog, not those above them (more)" in notes_of(root)
    assert labels_of(root, class_folder="outer") == {"all photos": 8}
    with pytest.raises(DataError, match="has only one class"):
        open_to_learn(str(root), options=Columns(class_folder="outer"))


def test_a_folder_around_splits(tmp_path: Path) -> None:
    names = several("archive/train/cat", "archive/train/dog", "archive/val/cat")
    root = make(tmp_path / "a", *names)
    assert labels_of(root) == {"train cat": 4, "train dog": 4, "validation cat": 4}
    assert f"{root} has all its images in archive: opened that" in notes_of(root)


def test_a_site_or_a_date_above_the_classes(tmp_path: Path) -> None:
    root = make(tmp_path / "a", *several("siteA/cat", "siteA/dog", "siteB/cat", "siteB/dog"))
    assert labels_of(root) == {"all cat": 8, "all dog": 8}
    assert "not those above them (siteA, siteB); --class-folder outer takes" in notes_of(root)
    assert labels_of(root, class_folder="outer") == {"all siteA": 8, "all siteB": 8}
    assert "class" not in notes_of(root, class_folder="outer")
    inner = make(tmp_path / "b", *several("one/cat/2020", "one/cat/2021", "two/dog/2020"))
    assert labels_of(inner) == {"all one": 8, "all two": 4}
    assert labels_of(inner, class_folder="inner") == {"all 2020": 8, "all 2021": 4}


def test_levels_within_splits(tmp_path: Path) -> None:
    names = several("train/siteA/cat", "train/siteA/dog", "train/siteB/dog", "val/siteC/cat")
    root = make(tmp_path / "a", *names)
    assert labels_of(root) == {"train cat": 4, "train dog": 8, "validation cat": 4}
    inside = several("cat/train", "cat/test", "dog/train", "dog/test")
    root = make(tmp_path / "b", *inside)
    assert labels_of(root) == {"train cat": 4, "train dog": 4, "test cat": 4, "test dog": 4}
    assert "has its splits inside of the folders of its classes" in notes_of(root)


def test_splits_by_similar_names(tmp_path: Path) -> None:
    names = {
        "training_set": "test_set",
        "training_set/training_set": "test_set/test_set",
        "seg_train/seg_train": "seg_test/seg_test",
        "trainset": "testset",
        "Train Data": "Test Data",
        "train2017": "test2017",
        "train/images": "test/images",
        "archive/flowers_train": "archive/flowers_test",
    }
    for number, (train, test) in enumerate(names.items()):
        root = make(tmp_path / str(number), *several(f"{train}/cat", f"{train}/dog", f"{test}/cat"))
        assert labels_of(root) == {"train cat": 4, "train dog": 4, "test cat": 4}, train
    root = make(tmp_path / "classes", *several("train_station", "test_tube"))
    assert labels_of(root) == {"all test_tube": 4, "all train_station": 4}
    root = make(tmp_path / "flat", *several("train_images", "test_images"))
    with pytest.raises(DataError, match="which are names of splits, not of classes"):
        open_images(str(root))


def test_splits_without_classes(tmp_path: Path) -> None:
    tiny = several("train/n01/images", "train/n02/images", "val/images", "test/images")
    root = make(tmp_path / "tiny", *tiny)
    assert labels_of(root) == {"all n01": 4, "all n02": 4}
    said = "\n".join(open_images(str(root)).notes)
    assert "left out 4 images without a label of the validation split" in said
    assert "left out 4 images without a label of the test split" in said
    root = make(tmp_path / "imagenet", *several("ILSVRC/Data/train/n01", "ILSVRC/Data/train/n02"))
    make(root / "ILSVRC/Data", *several("val", "test"))
    assert labels_of(root) == {"all n01": 4, "all n02": 4}


def test_a_few_images_above_the_classes_are_left_out(tmp_path: Path) -> None:
    names = several("siteA/cat", "siteA/dog", "siteB/cat", "siteB/dog")
    root = make(tmp_path / "a", *names, "siteA/map.jpg", "overview.jpg")
    opened = open_images(str(root))
    assert len(opened.unsplit) == 16
    assert any("left out 2 images without a label" in note for note in opened.notes)
    assert len(open_images(str(root), "optional").every()) == 18
    splits = make(tmp_path / "b", *several("train/cat", "train/dog", "test/dog", count=6))
    make(splits, "train/stray.jpg")
    assert labels_of(splits) == {"train cat": 6, "train dog": 6, "test dog": 6}
    assert len(open_images(str(splits)).parts["train"]) == 12


def test_what_may_be_either_is_said(tmp_path: Path) -> None:
    root = make(tmp_path / "a", *several("cat/day", "cat/night", "dog/day", "dog/night"))
    assert labels_of(root) == {"all cat": 8, "all dog": 8}
    assert "has the class cat; if those folders are the classes, --class-folder inner" in (
        notes_of(root)
    )
    assert labels_of(root, class_folder="inner") == {"all day": 8, "all night": 8}


def test_the_command_says_what_it_took(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make(tmp_path / "a", *several("2024-05-01/cat", "2024-05-02/dog", count=8))
    words = ["--model", "ViT(width=16,depth=1,heads=2,mlp=32)/16", "--steps", "1", "--batch", "4",
             "--image-size", "16", "--workers", "0"]  # fmt: skip
    status, _, said = call(capsys, "train", str(root), *words, "--out", str(tmp_path / "run"))
    assert (status, "the classes are the folders cat, dog" in said) == (0, True)
    status, _, said = call(
        capsys, "train", str(root), *words, "--class-folder", "outer", "--out", str(tmp_path / "r2")
    )
    assert (status, "the classes are the folders" in said) == (0, False)


# Files of labels


def one_hot(folder: Path, rows: dict[str, str], classes: str = "cat, dog") -> None:
    """A `_classes.csv` as Roboflow writes it, with images."""
    make(folder, *rows)
    lines = [f"filename, {classes}", *(f"{name}, {flags}" for name, flags in rows.items())]
    (folder / "_classes.csv").write_text("\n".join(lines) + "\n")


def test_classes_csv_of_roboflow(tmp_path: Path) -> None:
    root = tmp_path / "robo"
    for split, count in (("train", 6), ("valid", 2), ("test", 2)):
        rows = {f"{n}_jpg.rf.{split}{n}.jpg": "1, 0" if n % 2 else "0, 1" for n in range(count)}
        one_hot(root / split, rows)
    assert labels_of(root) == {
        "train cat": 3, "train dog": 3, "validation cat": 1, "validation dog": 1, "test cat": 1,
        "test dog": 1,
    }  # fmt: skip
    assert open_images(str(root)).parts["test"].classes == ("cat", "dog")
    one_hot(root / "test", {"x.jpg": "1, 1", "y.jpg": "0, 0"})  # of several labels, all are
    assert labels_of(root)["test cat+dog"] == labels_of(root)["test "] == 1
    assert "left out 2 images" in notes_of(root)
    alone = tmp_path / "alone"
    one_hot(alone, {"a.jpg": "1, 0", "b.jpg": "0, 1", "c.jpg": "0, 1"})
    assert labels_of(alone) == {"all cat": 1, "all dog": 2}
    around = tmp_path / "around"
    one_hot(around / "export", {"a.jpg": "1, 0", "b.jpg": "0, 1"})
    assert labels_of(around) == {"all cat": 1, "all dog": 1}


def fifty_one(root: Path, labels: object, classes: object = None) -> Path:
    """FiftyOne's `data/` and `labels.json`, with six images."""
    make(root, *(f"data/{number}.jpg" for number in range(6)))
    (root / "labels.json").write_text(json.dumps({"classes": classes, "labels": labels}))
    return root


def test_labels_json_of_fiftyone(tmp_path: Path) -> None:
    numbers = {str(n): n % 2 for n in range(6)}
    root = fifty_one(tmp_path / "numbers", numbers, ["cat", "dog"])
    assert labels_of(root) == {"all cat": 3, "all dog": 3}
    missing = fifty_one(tmp_path / "missing", numbers | {"0": None}, ["cat", "dog"])
    assert labels_of(missing) == {"all cat": 2, "all dog": 3}
    assert any("left out 1 images without a label" in n for n in open_images(str(missing)).notes)
    names = {f"{n}.jpg": {"label": "cat" if n % 2 else "dog", "confidence": 0.5} for n in range(5)}
    root = fifty_one(tmp_path / "names", names)
    assert labels_of(root) == {"all cat": 2, "all dog": 3}
    assert "left out 1 image of" in notes_of(root)
    several_each = {str(n): [0, 1] if n else [1] for n in range(6)}
    root = fifty_one(tmp_path / "several", several_each, ["cat", "dog"])
    assert labels_of(root) == {"all cat+dog": 5, "all dog": 1}
    for split in ("train", "val"):
        fifty_one(tmp_path / "splits" / split, numbers, ["cat", "dog"])
    assert labels_of(tmp_path / "splits")["validation dog"] == 3


def test_unlabeled_images_of_fiftyone_are_left_out(tmp_path: Path) -> None:
    root = make(tmp_path, *several("cat", "dog", "_unlabeled"))
    assert labels_of(root) == {"all cat": 4, "all dog": 4}
    assert any("left out 4 images without a label" in note for note in open_images(str(root)).notes)
