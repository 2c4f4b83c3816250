"""Images to learn from without labels: which are learned from, and which measure the loss."""

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import photo, photo_folder
from made_files import png
from vitlab.data.images import Images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Data
from vitlab.data.splits import Splits
from vitlab.errors import DataError


def unlabeled(data: Any, share: float = 0.2) -> Splits:
    return open_to_learn(data, "optional", Data(test_fraction=share))


def names(source: Images) -> list[str]:
    return [source.name(number) for number in range(len(source))]


def seen(splits: Splits) -> tuple[int, int]:
    """Numbers of images to learn from and to measure the loss; nothing may have a label."""
    for part in splits.parts.values():
        assert part.classes == ()
        assert not part.target.values.any()
        assert len(part.target) == len(part)
        assert part.image(len(part) - 1).shape()[0]
    assert not set(names(splits.train)) & set(names(splits.test))
    return len(splits.train), len(splits.test)


def scatter(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        photo(number, 8, 8).save(folder / f"{number:03d}.png")
    return folder


def test_photos_of_one_folder_at_any_depth(tmp_path: Path) -> None:
    flat = scatter(tmp_path / "flat", 20)
    (flat / "notes.txt").write_text("x")
    splits = unlabeled(flat)
    assert sum(seen(splits)) == 20
    assert "of 20 images held out at random to measure the loss" in splits.notes[-1]
    assert names(unlabeled(str(flat)).test) == names(splits.test)
    for deep in ("2019/summer", "2020"):
        scatter(flat / deep, 5)
    (flat / "2020" / "x.heif2").write_text("x")
    deeper = unlabeled(flat)  # the folders are read as classes, as in training
    assert sum(seen(deeper)) == 30
    assert any("20 images beside the class folders" in note for note in deeper.notes)
    assert names(deeper.test) == names(open_to_learn(str(flat)).test)
    one = scatter(tmp_path / "one" / "inner" / "most", 10).parents[1]
    assert sum(seen(unlabeled(one))) == sum(seen(unlabeled(one, 0.5))) == 10
    assert sum(seen(unlabeled(f"{flat}/*.png"))) == 20
    assert sum(seen(unlabeled(f"{flat}/**/*"))) == 30


def test_a_tenth_is_held_out_and_never_more_than_a_thousand() -> None:
    images = np.random.default_rng(0).integers(0, 256, (12_000, 4, 4, 1), np.uint8)
    held_out = seen(unlabeled(images))[1]
    assert 900 < held_out < 1_100  # about as many
    assert seen(unlabeled(images[:2])) == (1, 1)
    assert 5_800 < seen(unlabeled(images, 0.5))[1] < 6_200


def test_labels_of_folders_say_only_what_is_held_out(photos: Path) -> None:
    splits, labeled = (
        unlabeled(str(photos)),
        open_to_learn(str(photos)),
    )
    assert sum(seen(splits)) == 60
    assert names(splits.test) == names(labeled.test)
    assert names(splits.train) == names(labeled.train)
    assert "of 60 images held out to measure the loss: those that training" in splits.notes[-1]
    assert len(splits.notes) == 1
    assert seen(unlabeled("digits")) == tuple(
        len(part) for part in open_to_learn("digits").parts.values()
    )


@pytest.mark.parametrize("flat", [(), ("test",), ("train", "test"), ("train",)])
def test_only_the_training_split_is_learned_from(tmp_path: Path, flat: tuple[str, ...]) -> None:
    for split, count in (("train", 6), ("test", 4)):
        if split in flat:
            scatter(tmp_path / split, count)
        else:
            photo_folder(tmp_path / split, {"a": count // 2, "b": count // 2})
    scatter(tmp_path / "train" / "more", 1)  # not a class of the test images
    splits = unlabeled(tmp_path)
    assert {Path(name).relative_to(tmp_path).parts[0] for name in names(splits.train)} == {"train"}
    if flat != ("test",):  # those of the class folders in train, as with labels
        assert seen(splits) == (7, 4)
        assert "7 training images" in splits.notes[-1]


def test_validation_images_measure_the_loss_and_test_images_are_left_alone(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("val", 2), ("test", 4), ("extra", 3)):
        scatter(tmp_path / split, count)
    splits = unlabeled(tmp_path)
    assert splits.validation is None  # extra and test may be classes
    splits = unlabeled({"train": [photo(0)] * 6, "val": [photo(1)] * 2, "test": [photo(2)]})
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (6, 2, 1)
    assert "the 2 of its validation or test" in splits.notes[-1]


def rows(count: int, **more: Any) -> dict[str, Any]:
    cells = [{"bytes": png(number, 8), "path": f"{number}.png"} for number in range(count)]
    return {"image": cells} | {key: [value] * count for key, value in more.items()}


def test_tables_shards_and_lists_without_labels(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    kind = datasets.Features({"image": datasets.Image()})
    table = datasets.Dataset.from_dict(rows(10), features=kind)
    tables = tmp_path / "tables"
    tables.mkdir()
    table.to_parquet(tables / "train.parquet")
    assert seen(unlabeled(str(tables))) == (9, 1)
    table.select(range(3)).to_parquet(tables / "test.parquet")
    assert len(unlabeled(str(tables)).train) == 10
    assert seen(unlabeled(table)) == (9, 1)
    fractions = datasets.Dataset.from_dict(rows(10, label=0.5))  # nothing that can be a label
    assert seen(unlabeled(fractions)) == (9, 1)
    for split, count in (("train", 6), ("test", 3)):
        with tarfile.open(tmp_path / f"{split}-0.tar", "w") as tar:
            for file in sorted(scatter(tmp_path / split, count).iterdir()):
                tar.add(file, file.name)
    assert seen(unlabeled(str(tmp_path / "train-0.tar"))) == (5, 1)
    splits = unlabeled(f"{tmp_path}/*.tar")
    assert seen(splits) == (6, 3)
    plain = tmp_path / "list.csv"
    plain.write_text("path\n" + "".join(f"train/{n:03d}.png\n" for n in range(6)))
    assert seen(unlabeled(str(plain))) == (5, 1)
    plain.write_text("path,split\ntrain/000.png,train\ntrain/001.png,train\ntest/000.png,val\n")
    assert seen(unlabeled(str(plain))) == (2, 1)
    lines = [{"file_name": f"train/{n:03d}.png"} for n in range(6)]
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert seen(unlabeled(str(tmp_path))) == (5, 1)


class Bare(torch.utils.data.Dataset[Image.Image]):
    """A data set of PyTorch without labels."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Image.Image:
        return photo(index, 8, 8)


def test_images_in_memory(tmp_path: Path) -> None:
    images = [photo(number, 8, 8) for number in range(10)]
    files = sorted(map(str, scatter(tmp_path, 10).iterdir()))
    stack = np.stack([np.asarray(image) for image in images])
    tables = [{"image": image, "note": 3.5} for image in images]
    paths = [{"path": file} for file in files]
    without: list[Any] = [images, files, stack, torch.from_numpy(stack).permute(0, 3, 1, 2), tables]
    for data in (*without, paths, Bare(), [(image, 0.5) for image in images], {"train": images}):
        assert sum(seen(unlabeled(data))) == 10
    assert sum(seen(unlabeled([(each, n % 2) for n, each in enumerate(images)]))) == 10
    assert seen(unlabeled([(each, "x") for each in images])) in ((9, 1), (8, 2))  # one class
    assert seen(unlabeled((stack, [0.5] * 10))) in ((9, 1), (8, 2))


def damaged(root: Path) -> Path:
    """Images of which only the names are left."""
    for number in range(9):
        (root / f"{number}.jpg").write_bytes(b"no more")
    return root


MAKERS = [
    (lambda root: root / "nowhere", "no such file or folder"),
    (lambda root: root, "is empty|no images"),
    (lambda root: scatter(root / "one", 1), "only one image to learn from: give at least 2"),
    (
        lambda root: damaged(root),
        "none of 8 images of .* can be read, such as .*[0-9].jpg: .*: is this",
    ),
    (lambda root: root / "*.png", "no such file"),
    (lambda root: [], "no images"),
    (lambda root: [photo(0)], "only one image"),
    (lambda root: 3, "of type int"),
    (lambda root: iter([photo(0)]), "only one image"),
    (lambda root: [{"a": 1}], "path"),
    (lambda root: ["/nowhere/1.png", "/nowhere/2.png"], "2 of the 2 files .* do not exist"),
]


def test_what_cannot_be_learned_from_is_named(tmp_path: Path) -> None:
    for number, (make, words) in enumerate(MAKERS):
        (root := tmp_path / str(number)).mkdir()
        with pytest.raises(DataError, match=words):
            unlabeled(make(root))
    with pytest.raises(DataError, match="has too few images to hold some out"):
        unlabeled([np.zeros((8, 8, 3), np.uint8)] * 5)
