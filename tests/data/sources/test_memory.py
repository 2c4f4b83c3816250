"""Data in memory: every kind of object opens as the folder does that it was made of."""

import pickle
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, random_split

from conftest import photo_folder
from vitlab.data.holdout import fingerprint
from vitlab.data.labels import UnlabeledError
from vitlab.data.loading.batches import EvaluationBatches
from vitlab.data.open import open_images
from vitlab.data.open_splits import group_by_split, open_to_learn
from vitlab.data.settings import Columns
from vitlab.errors import DataError, ImageError
from vitlab.models.config import ViTConfig

FEATURES = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b"]))
SPEC = ViTConfig(width=8, depth=1, heads=1, patch=8, image_size=(16, 24), classes=2)


def opened(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.copy()


class Torch(Dataset[tuple[Image.Image, int]]):
    """As torchvision's data sets are."""

    classes = ("a", "b")

    def __init__(self, files: list[Path], damaged: int | None = None) -> None:
        self.files, self.damaged, self.read = files, damaged, 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        self.read += 1
        if index == self.damaged and self.read > len(self):
            raise RuntimeError("no luck\ntoday")
        return opened(self.files[index]), int(self.label(index) == "b")

    def label(self, index: int) -> str:
        return self.files[index].parent.name


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return sorted(photo_folder(tmp_path / "photos", {"a": 6, "b": 5}).rglob("*.png"))


def forms(files: list[Path]) -> dict[str, Any]:
    """The same labeled images in every form."""
    names = [file.parent.name for file in files]
    images = list(map(opened, files))
    arrays = [np.asarray(image) for image in images]
    tensors = [torch.from_numpy(each.copy()).permute(2, 0, 1) for each in arrays]
    numbers = [int(name == "b") for name in names]
    held = {"image": list(map(str, files)), "label": numbers}
    table = datasets.Dataset.from_dict(held, features=FEATURES)
    paths = [{"file": str(file), "kind": name} for file, name in zip(files, names, strict=True)]
    contents = [file.read_bytes() for file in files]
    cells = [{"bytes": content, "path": None} for content in contents]
    return {
        "paths": list(zip(map(str, files), names, strict=True)),
        "Path": list(zip(files, names, strict=True)),
        "bytes": list(zip(contents, names, strict=True)),
        "Pillow": list(zip(images, names, strict=True)),
        "arrays": list(zip(arrays, names, strict=True)),
        "tensors": tuple(zip(tensors, names, strict=True)),
        "stacked": (np.stack(arrays), names),
        "stacked tensors": {
            "train": (torch.stack(tensors), torch.tensor(numbers)),
            "classes": "ab",
        },
        "numbers": {"train": list(zip(files, np.array(numbers), strict=True)), "classes": "ab"},
        "torch": Torch(files),
        "subset": Subset(Torch(files[::-1]), list(range(len(files)))[::-1]),
        "datasets": table,
        "DatasetDict": datasets.DatasetDict(train=table),
        "DataFrame": pd.DataFrame(paths),
        "DataFrame of images": pd.DataFrame({"pic": images, "label": names}),
        "Parquet of datasets": pd.DataFrame({"image": cells, "label": names}),
        "dictionaries": paths,
    }


def test_every_form_is_the_folder(files: list[Path]) -> None:
    """The same images, labels, classes and held-out part."""
    same_bytes = ("paths", "Path", "bytes", "numbers", "datasets", "DatasetDict", "dictionaries")
    folder = open_to_learn(str(files[0].parents[1]))
    for name, data in forms(files).items():
        splits = open_to_learn(data)
        assert splits.classes == ("a", "b"), name
        part = "test" if name in same_bytes else "whole"  # decoded, an image has other bytes
        known, found = getattr(folder, part), getattr(splits, part)
        assert np.array_equal(found.target.values, known.target.values), name
        want = EvaluationBatches(known, SPEC, 4)[0]
        sent = pickle.loads(pickle.dumps(found))  # as a worker gets it
        got = EvaluationBatches(sent, SPEC, 4)[0]
        assert torch.equal(got.images, want.images), name
        assert torch.equal(got.labels, want.labels), name
        if name in ("paths", "bytes", "datasets", "DataFrame", "Parquet of datasets"):
            assert fingerprint(splits.whole) == fingerprint(folder.whole), name
        in_memory = "Pillow", "arrays", "tensors", "stacked", "stacked tensors"
        assert splits.whole.in_memory == (name in (*in_memory, "DataFrame of images")), name


def test_a_dictionary_of_splits(files: list[Path]) -> None:
    pairs = [(file, file.parent.name) for file in files]
    splits = open_to_learn({"Training": pairs[::2], "valid": pairs[:2], "testing": pairs[1::2]})
    assert [len(each) for each in splits.parts.values()] == [6, 2, 5]
    assert splits.test.name(0) == str(files[1])
    assert len(open_to_learn({"test": pairs}).whole) == 11
    cut = random_split(Torch(files), [7, 4], torch.Generator().manual_seed(0))
    several = [(file, ["a"] if n % 2 else ("a", "night")) for n, (file, _) in enumerate(pairs)]
    assert open_to_learn(several).train.target.several
    both = open_to_learn({"train": cut[0], "test": cut[1]})
    assert both.classes == ("a", "b")
    wanted = [int(files[i].parent.name == "b") for i in cut[1].indices]
    assert both.test.target.values.tolist() == wanted


def test_rows_name_their_split_fold_or_classes(files: list[Path]) -> None:
    rows = [
        {"image_id": file.stem + file.parent.name, "pic": opened(file), "set": "train"}
        | {"day": 1, "night": int(file.parent.name == "b")}
        for file in files
    ]
    for row in rows[:2]:
        row["set"] = "valid"
    rows[3]["set"] = "Test"
    splits = open_to_learn(pd.DataFrame(rows), options=Columns(label_column=("day", "night")))
    assert [len(each) for each in splits.parts.values()] == [8, 2, 1]
    assert splits.classes == ("day", "night")
    assert splits.train.target.several
    chosen = Columns(path_column="pic", label_column=("image_id",))
    same = [{"pic": row["pic"], "label": "ab"[n % 3 == 0], "fold": n % 2}
            for n, row in enumerate(rows)]  # fmt: skip
    assert [len(each) for each in open_to_learn(same).parts.values()] == [5, 6]
    assert any("column fold" in note for note in open_to_learn(same).notes)
    with pytest.raises(DataError, match="contains class"):
        open_to_learn({"train": rows[:5], "test": rows[5:]}, options=chosen)
    with pytest.raises(DataError, match="row 1 has no image"):
        open_to_learn([rows[0], rows[1] | {"pic": None}], options=chosen)


def test_paths_in_a_frame_are_found_as_in_lists(files: list[Path]) -> None:
    frame = pd.DataFrame({"id": [f.stem for f in files], "breed": [f.parent.name for f in files]})
    only = frame[frame.breed == "a"].assign(breed=["x", "y"] * 3)
    splits = open_to_learn(only, options=Columns(images=str(files[0].parent)))
    assert splits.classes == ("x", "y")
    with pytest.raises(DataError, match="2 of the 2 files of the given data do not exist: x, y"):
        open_to_learn([("x", "a"), ("y", "b")])


def test_two_columns_of_one_name_are_refused(files: list[Path]) -> None:
    frame = pd.DataFrame(
        [[str(file), "a", "b"] for file in files], columns=["path", "label", "label"]
    )
    with pytest.raises(DataError, match="two columns of the name 'label'"):
        open_to_learn(frame)


def test_labels_of_a_data_set_come_from_its_targets(files: list[Path]) -> None:
    """Without reading all images; unless they are not what the items say."""
    data = Torch(files)
    data.targets = torch.tensor([int(data.label(i) == "b") for i in range(len(data))])
    labels = open_to_learn(data).whole.target.values
    assert data.read < 5
    assert labels.tolist() == data.targets.tolist()
    wrong = Torch(files)
    wrong.targets = [1 - int(each) for each in data.targets]
    assert open_to_learn(wrong).whole.target.values.tolist() == data.targets.tolist()


def test_an_item_that_fails_is_a_damaged_image(files: list[Path]) -> None:
    whole = open_to_learn(Torch(files, damaged=1)).whole
    batch = EvaluationBatches(whole, SPEC, 4)[0]
    assert batch.bad == [(1, "image 1: RuntimeError: no luck today")]
    with pytest.raises(ImageError, match="no luck"):
        whole.image(1)


def test_images_without_labels(files: list[Path]) -> None:
    images = list(map(opened, files[:3]))
    stack = np.stack([np.asarray(image) for image in images])
    for data, count in (
        (images, 3),
        (stack, 3),
        (stack[0], 1),
        ([str(files[0]), images[0]], 2),
        ((stack[0], stack[1]), 2),  # not an image and its labels
        (images[0], 1),
        (files[0].read_bytes(), 1),
        (files[:2], 2),
    ):
        found = open_images(data, "optional")
        assert found.lacks
        assert (len(found.every()), found.every().classes) == (count, ())
        assert set(group_by_split(found)) == {"all"}
        assert len(open_images(data, "none").every()) == count
        with pytest.raises(UnlabeledError):
            open_images(data)
    rows = [{"pic": stack[0, ..., 0], "label": number} for number in range(2)]
    assert open_images(rows).every().image(0).shape() == (24, 32, 1)
    assert len(open_images(iter(images), "none").every()) == 3
    assert open_images([(images[0], "a")], "optional").every().classes == ("a",)
    assert open_images((np.zeros((2, 4, 4), np.uint8), [0, 1]), "optional").lacks == ""


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter([])


PIXELS = np.zeros((4, 8, 8, 3), np.uint8)
PIXEL_TENSORS = torch.zeros(4, 3, 8, 8, dtype=torch.uint8)
EMPTY = datasets.Dataset.from_dict({"image": [], "label": []}, features=FEATURES)


REFUSED = [
    (EMPTY, "the given data has no images"),
    ([], "the given data has no images"),
    (Torch([Path("gone.png")]), "image 0: FileNotFoundError: "),
    ({}, "the dictionary has no splits: give"),
    ([1, 2], "item 0 of the given data is of type int: give (image, label) pairs"),
    ([("a", "b", "c")], "item 0 of the given data is of type tuple"),
    ({"train": [], "holdout": []}, "unknown key 'holdout' of the dictionary of splits"),
    ({"val": [1], "test": [1]}, "has validation and test, but no train: give one"),
    ([(PIXELS[0], 0.5), (PIXELS[0], 1)], "image 0 has no label, or one that is neither"),
    ([(PIXELS[0], None)], "the given data has no labels"),
    ([(PIXELS[0], np.array([0, 1]))], "image 0 has an array for a label: give its class"),
    ([(PIXELS[0], 0), (PIXELS[0], 0)], "has only one class ('0')"),
    ((PIXELS / 255, [0, 1, 0, 1]), "of type float64: give (n, rows, columns, channels)"),
    ((PIXELS, [0, 1]), "the given data has 4 images, but 2 labels"),
    ((PIXELS.transpose(0, 3, 1, 2), [0, 1, 0, 1]), "(4, 3, 8, 8): give (n, rows, columns, chan"),
    ((PIXELS.transpose(0, 3, 1, 2)[:, :1], [0, 1, 0, 1]), "(4, 1, 8, 8): give (n, rows, columns,"),
    ((np.zeros((4, 3, 8, 9), np.uint8), [0, 1, 0, 1]), "(4, 3, 8, 9): give (n, rows, columns, ch"),
    ((np.zeros((4, 6, 8, 8), np.uint8), [0, 1, 0, 1]), "channels) with 1, 3 or 4 channels"),
    ((torch.tensor(PIXELS), [0, 1, 0, 1]), "(4, 8, 8, 3): give (n, channels, rows, columns) with"),
    ({"train": (PIXELS.transpose(0, 3, 1, 2), [0, 1, 0, 1])}, "(4, 3, 8, 8): give (n, rows"),
    ({"train": [(PIXELS[0], 0), (PIXELS[0], 5)], "classes": ["x", "y"]}, "label '5' is not"),
    (pd.DataFrame({"label": []}), "the given data has no images"),
    (pd.DataFrame({"u": [1, 2], "v": [3, 4]}), "has no column of paths among u, v"),
    (TensorDataset(torch.zeros(4, 3, 8, 8), torch.arange(4)), "leave out ToTensor and"),
    (TensorDataset(PIXEL_TENSORS), "item 0 of the given data is of type tuple"),
    (Endless(), "is of type Endless, without a length"),
    (datasets.Dataset.from_dict({"a": [1]}).to_iterable_dataset(), "without a length"),
]


def test_what_is_not_labeled_images() -> None:
    for data, words in REFUSED:
        with pytest.raises(DataError) as caught:
            open_to_learn(data)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
