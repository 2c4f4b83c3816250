"""Models and images among the words of the command line, told apart by what they are."""

import re
from pathlib import Path

import pytest

import vitlab
from conftest import photo
from serve.made import tiny
from vitlab.errors import UserError
from vitlab.explore.parse_inputs import parse_inputs


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model, a run that has not finished, weights, and images under various names."""
    monkeypatch.chdir(tmp_path)
    vitlab.save(tiny(), tmp_path / "saved")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").touch()
    (tmp_path / "weights.pth").write_bytes(b"PK")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "pytorch_model.bin").touch()
    (tmp_path / "holiday").mkdir()
    photo(0).save(tmp_path / "holiday" / "one.png")
    photo(0).save(tmp_path / "model=3.png")
    photo(0).save(tmp_path / "no-ending", "PNG")
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    return tmp_path


def test_words_in_any_order(here: Path) -> None:
    words = ["holiday", "saved", "*.png", "no-ending", "pets=run", "model=3.png", "weights.pth",
             "user/name", "cut.jpg", "hub"]  # fmt: skip
    told = parse_inputs(words)
    assert told.weights == (
        ("saved", "saved"), ("pets", "run"), ("weights", "weights.pth"), ("name", "user/name"),
        ("hub", "hub"),
    )  # fmt: skip
    assert told.images == ("holiday", "*.png", "no-ending", "model=3.png", "cut.jpg")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a model to explore"),
        (["holiday"], "name a model to explore"),
        (["saved", "holiday/on.png"], "no such file: holiday/on.png; did you mean holiday/one.png"),
        (["saved", "nowhere"], "no such file or folder: nowhere"),
        (["saved", "a=saved", "b=saved", "a=run"], "two models are named a"),
        (["ViT-B/16"], "names a shape, not weights"),
        (["a\0b"], "no such file or folder"),
    ],
)
def test_what_cannot_be_meant(here: Path, words: list[str], says: str) -> None:
    with pytest.raises(UserError, match=re.escape(says)):
        parse_inputs(words)
