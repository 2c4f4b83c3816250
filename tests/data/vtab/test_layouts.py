"""Where VTAB's tasks may lie, and which of their images are taken."""

from pathlib import Path

import numpy as np
import pytest

from data.vtab.fakes import listed
from vitlab.data.exists import check_each
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn, split_opened
from vitlab.data.vtab import BY_NAME, available, brightened, open_task
from vitlab.errors import DataError


def level(source, index: int) -> int:
    return int(source.image(index).decode(1)[0, 0, 0])


def test_lists_in_the_usual_layout(tmp_path: Path) -> None:
    listed(tmp_path / "svhn")
    splits = open_to_learn(f"vtab:{tmp_path}/svhn")
    assert (len(splits.train), len(splits.test), len(splits.classes)) == (1000, 30, 10)
    assert splits.train.target.values[[0, 7, 799, 800, 803]].tolist() == [0, 7, 9, 0, 3]
    assert [level(splits.train, number) for number in (0, 1, 801)] == [0, 1, 3]
    search = open_to_learn(f"vtab-search:{tmp_path}/svhn")
    check_each((f"vtab:{tmp_path}/svhn", f"vtab-search:{tmp_path}/svhn"))  # the command line
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
    assert message() == f"{folder}/val200.txt has 201 images; VTAB-1k has 200"
    for line in ("images/0.png", "images/0 .png 100", "images/0 .png -1", "7"):
        (folder / "val200.txt").write_text("images/0 .png 3\n\n" + line)
        assert message() == (
            f"{folder}/val200.txt line 2: {line!r} is not a path and a class from 0 to 99"
        )
    for path in ("../cifar/images/2 .png", f"{folder}/images/2 .png"):
        (folder / "val200.txt").write_text(f"{path} 3\n" + good)
        assert message() == f"{folder}/val200.txt line 1 names {path[:80]!r}, outside of its folder"
    (folder / "val200.txt").write_text("images/2.png 3\n" + good)
    assert message() == f"no such file: {folder}/images/2.png"
    (folder / "val200.txt").unlink()
    assert message() == f"cannot read {folder}/val200.txt: no such file"


def test_what_cannot_be_found_is_said(tmp_path: Path) -> None:
    for data, said in (
        (tmp_path / "cifar10", "unknown VTAB task 'cifar10': did you mean cifar100?"),
        (tmp_path / "no" / "dtd", f"no such folder: {tmp_path}/no"),
        (tmp_path / "dtd", f"{tmp_path} has no folder dtd"),
        (tmp_path / "svhn", f"cannot read {tmp_path}/svhn/train800.txt: no such file"),
    ):  # fmt: skip
        (tmp_path / "svhn").mkdir(exist_ok=True)
        with pytest.raises(DataError) as error:
            open_to_learn(f"vtab:{data}")
        assert str(error.value) == said
    (tmp_path / "svhn_cropped").mkdir()
    assert available(tmp_path) == {"svhn": tmp_path / "svhn"}


def test_the_classes_of_a_model_must_be_the_tasks(tmp_path: Path) -> None:
    listed(tmp_path / "svhn")
    known = tuple(f"svhn {number}" for number in range(10))
    assert split_opened(open_images(f"vtab:{tmp_path}/svhn", classes=known)).classes == known
    with pytest.raises(DataError, match=r"svhn train contains class 'svhn 0', which is not in"):
        split_opened(open_images(f"vtab:{tmp_path}/svhn", classes=("cat", "dog")))


def test_images_of_zeros_and_ones_are_widened(tmp_path: Path) -> None:
    listed(tmp_path / "dsprites_loc", classes=16)
    train, *_ = open_task(tmp_path, BY_NAME["dsprites_loc"])
    assert [level(train, number) for number in (0, 1)] == [0, 255]
    assert brightened(np.array([[[0], [7]]], np.uint8)).tolist() == [[[0], [7]]]
