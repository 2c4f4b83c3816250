"""Hostile boxes, masks and numbers: refused in a line, or read without what is hostile."""

from pathlib import Path

import pytest

from conftest import call
from data.hostile_places import AS_FILES, OF_COCO, Set, every, opened
from places_opened import open_targets
from vitlab.data.settings import Data
from vitlab.errors import DataError, OptionError


@pytest.mark.parametrize(
    ("kind", "make"),
    [pytest.param(kind, make, id=f"{kind}-{name}") for kind, name, make in every()],
)
def test_it_is_refused_in_a_line_or_read(kind: str, make: Set, tmp_path: Path) -> None:
    make(tmp_path, False)
    try:
        assert opened(kind, tmp_path) >= 1
    except DataError as error:
        assert str(error).isprintable()
        assert len(str(error)) < 2000


def test_what_is_refused_and_what_is_read(tmp_path: Path) -> None:
    """The sets that tell: each with words of its line, or of its notes."""
    for number, (kind, name, words) in enumerate(
        [
            (
                "boxes",
                "a class with control characters",
                "has a control character: give it another name",
            ),
            ("boxes", "a class of a megabyte", "the name of a class has 1,000,000 characters"),
            ("boxes", "an id that is true", "an id is true, no whole number and no text"),
            ("boxes", "an id that is a list", "an id is [1], no whole number and no text"),
            ("boxes", "an id twice", "id 2 is given twice"),
            ("boxes", "many_objects_in_an_image", "a.png has 20,000 objects, more than 10,000"),
            ("boxes", "many_classes", "has 30,000 categories, more than 20,000"),
            ("boxes", "nested", "RecursionError"),
            ("boxes", "a_list", "it is no JSON object"),
            (
                "masks",
                "classes with control characters",
                "has a control character: give it another name",
            ),
            ("masks", "classes in two spellings", "names must be different"),
        ]
    ):
        (root := tmp_path / str(number)).mkdir()
        (OF_COCO | AS_FILES)[name](root, False)
        with pytest.raises(DataError) as said:
            opened(kind, root)
        assert words in str(said.value)


def test_classes_of_one_name_are_one_class(tmp_path: Path) -> None:
    from places_opened import open_boxes

    for number, name in enumerate(("a class twice", "a class in two spellings")):
        (root := tmp_path / str(number)).mkdir()
        OF_COCO[name](root, False)
        splits = open_boxes(Data(data=str(root)))
        assert len(splits.classes) == 1
        assert "1 categories have the name of another one, and are the same" in splits.notes[0]
    again = open_boxes(Data(data=str(root)), ("Cafe\u0301", "tea"))  # as a model spells it
    assert again.classes == ("Cafe\u0301", "tea")


def test_images_under_several_ids_are_one_image(tmp_path: Path) -> None:
    from places_opened import open_boxes

    OF_COCO["one image under a thousand ids"](tmp_path, False)
    splits = open_boxes(Data(data=str(tmp_path)))
    assert len(splits.train) == 1
    assert "999 images are listed under several ids" in splits.notes[0]


def test_names_of_columns_reach_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.csv").write_text("path,a\x1b[31m\na.png,1\n")
    with pytest.raises(OptionError, match="has a control character: give it another name"):
        open_targets(tmp_path / "list.csv", ["a\x1b[31m"], Data())
    OF_COCO["a class with control characters"](tmp_path, False)
    code, _, err = call(capsys, "train", str(tmp_path), "--task", "detect", "--out",
                          str(tmp_path / "run"))  # fmt: skip
    assert code == 2
    assert all(line.isprintable() for line in err.splitlines())
    assert not (tmp_path / "run").exists()
