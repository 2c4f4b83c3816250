"""The rows that a run prints: their figures, their columns, what they are measured on."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vitlab
from conftest import LIGHT, photo
from training.kept import PLAIN, journal, killed, resumed
from vitlab.training.screen import Rows
from vitlab.training.session import Session
from vitlab.training.state import Tally

POSITION = {"epoch": 12.5, "step": 1234}
POINT = {"loss": 0.71234, "accuracy": 0.8512}
WIDE = ["  epoch    step  train loss  test loss  accuracy        lr      time",
        "  12.50   1,234       1.234      0.712     85.1%  1.50e-03      1:40"]  # fmt: skip


def table(width: int | None, **changed: str) -> list[str]:
    rows = Rows(**{"on": "test", "figures": ("accuracy",)} | changed, total=99_999, width=width)
    return rows.lines(POSITION, 1.2345, POINT, 1.5e-3, 100.0)


def test_columns_stand_under_one_header() -> None:
    rows = Rows("test", ("accuracy",), 99_999)
    assert rows.lines(POSITION, 1.2345, POINT, 1.5e-3, 100.0) == WIDE
    again = rows.lines({"epoch": 100.0, "step": 99_999}, 0.1, POINT, 0.0, 36_000.0)
    assert len(again) == 1
    assert len(again[0]) == len(WIDE[0])


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_what_does_not_fit_is_left_out(width: int) -> None:
    head, row = table(width)
    assert len(head) == len(row) < width
    assert "test loss  accuracy" in head
    assert head.split()[0] == "epoch"
    assert (head == WIDE[0]) == (width >= 80)


def test_several_labels_are_judged_by_their_map() -> None:
    rows = Rows("validation", ("map",), 100)
    head, row = rows.lines(POSITION, 1.0, POINT | {"map": 0.5}, 1e-3, 1.0)
    assert "validation loss      mAP" in head
    assert " 50.0% " in row
    assert "85.1%" not in row


def test_the_speed_is_that_of_the_session() -> None:
    """Of 600 images in 6 seconds, after 100 in 3 before it."""
    state = SimpleNamespace(tally=Tally(seen=700, seconds=9.0))
    speed: Any = Session.speed
    assert speed.fget(SimpleNamespace(state=state, begun=(100, 3.0))) == 100


def printed(text: str) -> list[list[str]]:
    """Return the cells of the rows."""
    return [line.split() for line in text.splitlines() if re.match(r" +\d+\.\d\d +\d", line)]


def test_rows_have_the_figures_of_the_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("digits", **PLAIN | {"warmup": 0.0})
    killed(5, recipe, tmp_path / "run")
    run = resumed(recipe, tmp_path / "run")
    text = capsys.readouterr().err
    assert text.count("train loss  test loss  accuracy") == 2  # once per start
    tested = journal(run, "test")
    rows = printed(text)
    assert [row[1] for row in rows] == [str(line["step"]) for line in tested] == ["4", "6"]
    for row, line in zip(rows, tested, strict=True):
        assert row[3] == f"{line['loss']:.3f}"
    for row, (first, last) in zip(rows, ((1, 4), (5, 6)), strict=True):  # across the resume
        losses = [line["loss"] for line in journal(run, "train") if first <= line["step"] <= last]
        assert row[2] == f"{sum(losses) / len(losses):.3f}"


def test_validation_images_are_called_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        folder = tmp_path / "data" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        photo(number, 8, 8, tint=number % 2).save(folder / f"{number}.png")
    seen = []
    choices = {"model": "ViT(width=8,depth=1,heads=1,mlp=8)/4", "batch": 16, "steps": 6}
    recipe = vitlab.recipe("small", str(tmp_path / "data"), **choices, patience=9)
    vitlab.train(recipe, tmp_path / "run", on_line=seen.append, host=LIGHT)
    err = capsys.readouterr().err
    assert "validation loss" in err
    assert re.search(r"evaluated on the \d validation images every epoch\n", err)
    kinds = {line["kind"] for line in seen}
    assert kinds == {"train", "validation", "result"}
