"""Where VTAB's tasks may lie, and which of their images are taken."""

import shutil
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image

from made_files import encoded
from vitlab.data.learning import open_to_learn
from vitlab.data.open import open_images
from vitlab.data.vtab import BY_NAME, TASKS, VtabTask, available, brightened, open_task
from vitlab.errors import DataError


def png(level: int) -> bytes:
    return encoded(Image.fromarray(np.full((4, 4), level, np.uint8)))


def listed(folder: Path, classes: int = 10, test: int = 30) -> Path:
    """Lists of 800, 200 and some images, each of which names two files again and again."""
    (folder / "images").mkdir(parents=True)
    for level in range(6):
        (folder / "images" / f"{level} .png").write_bytes(png(level))
    splits = (("train800.txt", 800, 0), ("val200.txt", 200, 2), ("test.txt", test, 4))
    for name, count, first in splits:
        lines = [f"images/{first + number % 2} .png {number % classes}" for number in range(count)]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def table(labels: list[int], **columns: list) -> datasets.Dataset:
    """Rows whose image shows its number."""
    images = [{"bytes": png(number % 256), "path": None} for number in range(len(labels))]
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.Value("int64")}
        | {name: datasets.Value("int64") for name in columns}
    )
    return datasets.Dataset.from_dict({"image": images, "label": labels} | columns, features)


def level(source, index: int) -> int:
    return int(source.image(index).decode(1)[0, 0, 0])


def test_lists_in_the_usual_layout(tmp_path: Path) -> None:
    listed(tmp_path / "svhn")
    splits = open_to_learn(f"vtab:{tmp_path}/svhn")
    assert (len(splits.train), len(splits.test), len(splits.classes)) == (1000, 30, 10)
    assert splits.train.labels.values[[0, 7, 799, 800, 803]].tolist() == [0, 7, 9, 0, 3]
    assert [level(splits.train, number) for number in (0, 1, 801)] == [0, 1, 3]
    search = open_to_learn(f"vtab-search:{tmp_path}/svhn")
    assert (len(search.train), len(search.test)) == (800, 200)
    assert search.classes[3] == "svhn 3"


def test_lists_are_checked(tmp_path: Path) -> None:
    folder = listed(tmp_path / "cifar", classes=100)  # the usual name of cifar100

    def message() -> str:
        with pytest.raises(DataError) as error:
            open_to_learn(f"vtab:{tmp_path}/cifar100")
        return str(error.value)

    good = (folder / "val200.txt").read_text()
    (folder / "val200.txt").write_text(good + "images/0 .png 5\n")
    assert message() == f"{folder} has 201 validation images; VTAB-1k has 200"
    for line in ("images/0.png", "images/0 .png 100", "images/0 .png -1", "7"):
        (folder / "val200.txt").write_text("images/0 .png 3\n\n" + line)
        assert message() == (
            f"{folder}/val200.txt line 2: {line!r} is not a path and a class from 0 to 99"
        )
    (folder / "val200.txt").write_text("images/2.png 3\n" + good)
    assert message() == (
        f"1 of the 201 files listed in {folder}/val200.txt do not exist, such as images/2.png "
        f"(paths are relative to {folder})"
    )
    (folder / "val200.txt").unlink()
    assert message().startswith(f"cannot read {folder}/val200.txt: [Errno 2]")


def test_prepared_tables_are_taken_as_they_are(tmp_path: Path) -> None:
    folder = tmp_path / "eurosat"
    folder.mkdir()
    for name, count in (("train", 800), ("val", 200), ("test", 20)):
        table([number % 10 for number in range(count)]).to_parquet(str(folder / f"{name}.parquet"))
    train, validation, test = open_task(tmp_path, BY_NAME["eurosat"])
    assert [len(part) for part in (train, validation, test)] == [800, 200, 20]
    assert (level(train, 300), train.labels.values[300]) == (300 - 256, 0)
    saved = tmp_path / "resisc45"
    parts = {"train": table([44] * 800), "validation": table([3] * 200), "test": table([5] * 9)}
    datasets.DatasetDict(parts).save_to_disk(str(saved))
    train, validation, test = open_task(tmp_path, BY_NAME["resisc45"])
    assert (len(test), set(train.labels.values), set(test.labels.values)) == (9, {44}, {5})


SMALL = replace(BY_NAME["dsprites_loc"], validation="train[900:1100]", test="train[75%:]")


def test_vtabs_part_is_cut_out_of_the_whole_data_set(tmp_path: Path) -> None:
    count = 1200
    x = [number % 32 for number in range(count)]
    (tmp_path / "dsprites").mkdir()  # shared by its two tasks
    table([0] * count, label_x_position=x).to_parquet(str(tmp_path / "dsprites" / "all.parquet"))
    train, validation, test = open_task(tmp_path, SMALL)
    assert [len(part) for part in (train, validation, test)] == [800, 200, 300]
    assert validation.labels.values[:4].tolist() == [(900 + k) % 32 // 2 for k in range(4)]
    assert [level(test, number) for number in range(3)] == [900 % 256 + k for k in range(3)]
    assert level(train, 1) == 255  # an image of ones, as dSprites stores them
    assert set(available(tmp_path)) == {"dsprites_loc", "dsprites_ori"}


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (BY_NAME["dsprites_loc"], "has 1,000 train rows: too few for train[589824:590024]"),
        (BY_NAME["dtd"], "has no validation rows, which dtd needs for validation[:200]"),
        (replace(SMALL, classes=9), "class 9 is outside 0 to 8"),
        (replace(SMALL, validation="train[:100]"),
         "has 100 validation images; VTAB-1k has 200"),
    ],
)  # fmt: skip
def test_tables_are_checked(tmp_path: Path, task: VtabTask, message: str) -> None:
    task = replace(task, test="train[900:]")
    (tmp_path / task.name).mkdir()
    x = [number % 20 for number in range(1000)]
    file = tmp_path / task.name / "train.parquet"
    table([0] * 1000, label_x_position=x).to_parquet(str(file))
    if task.validation == SMALL.validation:
        task = replace(task, validation="train[800:1000]")
    with pytest.raises(DataError) as error:
        open_task(tmp_path, task)
    assert message in str(error.value)


def test_class_folders_are_prepared_ones(tmp_path: Path) -> None:
    for split, count in (("train", 800), ("val", 200), ("test", 6)):
        for number in range(count):
            name = str(number % (2 if split == "val" else 3))  # no image of class 2 in val/
            file = tmp_path / "dmlab" / split / name / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(number % 3))
    task = replace(BY_NAME["dmlab"], classes=3)
    train, validation, test = open_task(tmp_path, task)
    assert [level(train, number) for number in (0, 799)] == [0, 2]
    assert np.bincount(train.labels.values).tolist() == [267, 267, 266]
    assert (set(validation.labels.values), train.classes) == ({0, 1}, ("0", "1", "2"))
    assert test.labels.values.tolist() == [0, 0, 1, 1, 2, 2]
    with pytest.raises(DataError, match="dmlab has 3 classes; dmlab has 6"):
        open_task(tmp_path, BY_NAME["dmlab"])
    shutil.rmtree(tmp_path / "dmlab" / "test")
    with pytest.raises(DataError, match="dmlab has no folder of test images: add test/"):
        open_task(tmp_path, task)


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    def message(data: str) -> str:
        with pytest.raises(DataError) as error:
            open_to_learn(data)
        return str(error.value)

    assert (
        message(f"vtab:{tmp_path}/cifar10") == "unknown VTAB task 'cifar10': did you mean cifar100?"
    )
    assert message(f"vtab:{tmp_path}/no/dtd") == f"no such folder: {tmp_path}/no"
    assert message(f"vtab:{tmp_path}/dtd") == (
        f"{tmp_path} has no folder dtd, nor a line for it in sources.toml"
    )
    (tmp_path / "dtd").mkdir()
    assert message(f"vtab:{tmp_path}/dtd") == (
        f"{tmp_path}/dtd contains no tables: Parquet files, or what datasets saves to disk"
    )
    sources = tmp_path / "sources.toml"
    for text, error in (
        ("dtd =", f"cannot read {sources}: "),
        ("dt = 'user/name'", f"{sources}: unknown task 'dt': did you mean dtd?"),
        ("dtd = 3", f'{sources}: dtd must be a name, such as dtd = "user/name"'),
        ("dtd = 'user/name'", "no such folder: user/name; nor could it be loaded as a data set"),
    ):
        sources.write_text(text)
        assert message(f"vtab:{tmp_path}/dtd").startswith(error)


def test_the_classes_of_a_model_must_be_the_tasks(tmp_path: Path) -> None:
    listed(tmp_path / "svhn")
    known = tuple(f"svhn {number}" for number in range(10))
    assert open_images(f"vtab:{tmp_path}/svhn", classes=known).splits().classes == known
    with pytest.raises(DataError, match=r"the classes of .*svhn are not the model's"):
        open_images(f"vtab:{tmp_path}/svhn", classes=("cat", "dog")).splits()


# labels, each worked out by hand from what the data sets store


def rows(**columns: list) -> datasets.Dataset:
    return datasets.Dataset.from_dict(columns)


def objects(*depths: float) -> dict:
    places = [[1.0, 2.0, depth] for depth in depths]
    return {"pixel_coords": places, "size": ["small"] * len(depths)}


def test_clevr_counts_objects_from_three_on() -> None:
    table = rows(objects=[objects(9, 9, 9), objects(*[9] * 10)])
    assert BY_NAME["clevr_count"].label(table).tolist() == [0, 7]


def test_clevr_distance_is_the_bin_of_the_closest_object() -> None:
    # bins (0, 8], (8, 8.5], (8.5, 9], (9, 9.5], (9.5, 10], (10, 100]
    closest = [8.0, 8.01, 8.5, 8.9, 9.2, 9.75, 10.0, 10.5]
    table = rows(objects=[objects(50, depth, 20) for depth in closest])
    assert BY_NAME["clevr_dist"].label(table).tolist() == [0, 1, 1, 2, 3, 4, 4, 5]
    records = rows(objects=[[{"pixel_coords": [0.0, 0.0, depth]} for depth in (9.6, 12.0)]])
    assert BY_NAME["clevr_dist"].label(records).tolist() == [4]


def test_kitti_distance_is_that_of_cars_vans_and_trucks_only() -> None:
    def scene(*found: tuple[int, float]) -> dict:
        kinds, depths = zip(*found, strict=True)
        return {"type": [*kinds], "location": [[0.0, 0.0, depth] for depth in depths]}

    table = rows(
        objects=[
            scene((0, 30.0), (1, 7.9)),  # the van
            scene((2, 8.1), (3, 2.0)),  # the truck, not the pedestrian
            scene((0, 20.5)),
            scene((3, 5.0)),  # no vehicle
            scene((0, -1.0)),
            scene((0, 20.0)),
        ]
    )
    assert BY_NAME["kitti"].label(table).tolist() == [0, 1, 2, 3, 0, 1]
    named = {"Car": 9.0, "Tram": 1.0}.items()
    words = rows(objects=[[{"type": kind, "location": [0.0, 0.0, depth]} for kind, depth in named]])
    assert BY_NAME["kitti"].label(words).tolist() == [1]


def test_dsprites_are_grouped_into_sixteen_and_norb_as_it_is() -> None:
    table = rows(label_x_position=list(range(32)), label_orientation=[*range(0, 40, 5), *[39] * 24])
    assert BY_NAME["dsprites_loc"].label(table).tolist() == [k for k in range(16) for _ in range(2)]
    # floor(16 x / 40): 0 5 10 15 20 25 30 35 -> 0 2 4 6 8 10 12 14
    assert BY_NAME["dsprites_ori"].label(table).tolist() == [*range(0, 16, 2), *[15] * 24]
    norb = rows(label_azimuth=[17, 0], label_elevation=[8, 3])
    assert BY_NAME["smallnorb_azi"].label(norb).tolist() == [17, 0]
    assert BY_NAME["smallnorb_ele"].label(norb).tolist() == [8, 3]


def test_labels_must_be_whole_numbers() -> None:
    for task in TASKS:
        assert task.label(rows(label=[1, 0])).tolist() == [1, 0]
    assert BY_NAME["dtd"].label(rows(fine_label=[3], coarse_label=[1])).tolist() == [3]
    assert BY_NAME["dtd"].label(rows(label=[True, False])).tolist() == [1, 0]
    with pytest.raises(DataError, match="column label must contain whole numbers"):
        BY_NAME["dtd"].label(rows(label=[0.5]))
    with pytest.raises(DataError, match="no label column; the columns are a, b"):
        BY_NAME["dtd"].label(rows(a=[1], b=[2]))


def test_images_of_zeros_and_ones_are_widened() -> None:
    assert brightened(np.array([[[0], [1]]], np.uint8)).tolist() == [[[0], [255]]]
    assert brightened(np.array([[[0], [7]]], np.uint8)).tolist() == [[[0], [7]]]
