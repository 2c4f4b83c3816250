"""The report: one file, everything escaped, fit for a desktop and a phone."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_facts import NASTY, calibrated, cells, nasty, some
from report.reading import alone, fits, needs_chromium, read, shown
from vitlab.evaluation.per_class import ClassFigures
from vitlab.evaluation.reliability import Bin
from vitlab.report.facts import Point
from vitlab.report.page import write

EDGES = {
    "usual": some(),
    "two classes": some(2),
    "thirty": some(30),
    "sixty": some(60),
    "a thousand": some(1000, 3000),
    "gray": some(channels=1),
    "nasty names": replace(
        some(3),
        model=NASTY,
        run={"command": NASTY, "started": NASTY, "fingerprint": NASTY},
        figures=some(3).figures | {"device": NASTY},
        classes=(NASTY, "b" * 200, "c"),
        per_class=[ClassFigures(NASTY, 0.5, 0.25, 1 / 3, 8)],
        predicted=[0],
        confused=[],
        notes=[NASTY],
        mistakes=[nasty()],
        examples=[replace(nasty(), attention=np.ones((2, 2), np.float32))],
        listed=[nasty()],
        recipe={
            "data": {"data": NASTY}, "start": {"weights": NASTY, "tune": NASTY},
            "changes": [{"step": 3, "option": NASTY, "before": NASTY, "after": 2}],  # type: ignore[dict-item]
        },
        versions={"x": NASTY},
    ),
    "no mistakes": replace(some(), mistakes=[], notes=[], examples=[]),
    "one point": replace(some(), training=[Point(1, 0.1, 2.0, 0.1, 1e-3)], testing=[]),
    "no points": replace(some(), training=[], testing=[]),
    "not finite": replace(some(), training=[Point(1, 1, math.nan, 0), Point(2, 2, math.inf, 0)]),
    "few figures": replace(some(), figures={"accuracy": 0.5, "top5": None}),
    "an empty class": replace(some(2), per_class=[
        ClassFigures("full", 0.5, 0.25, 1 / 3, 8), ClassFigures("empty", None, None, None, 0),
    ], predicted=[4, 0]),
    "calibrated": calibrated(),
    "empty bins": replace(some(), reliability=[Bin(0, 0.5, 0, 0, 0), Bin(0.5, 1.0, 9, 0.9, 0.8)]),
}  # fmt: skip


@pytest.mark.parametrize("case", EDGES)
def test_one_file_that_needs_nothing_else(tmp_path: Path, case: str) -> None:
    text = alone(write(tmp_path / "report.html", EDGES[case]))
    assert NASTY not in text
    assert "<script>alert" not in text
    if case == "nasty names":
        assert text.count("&lt;script&gt;alert") >= 6
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_figures_are_told(tmp_path: Path) -> None:
    facts = some()
    text, _ = read(write(tmp_path / "report.html", facts))
    for words in (
        f"{facts.figures['accuracy']:.1%}", "674.4 k", "11.62 M", "447 MB", "1 min 2 s", "1,383",
        "runs/my run", "skipped: a.png is damaged", "betas", "2.13.0",
    ):  # fmt: skip
        assert words in text.replace("&#39;", "'"), words


def test_intervals_classes_and_pairs_are_told(tmp_path: Path) -> None:
    facts = calibrated()
    text, _ = read(write(tmp_path / "report.html", facts))
    worst = min(facts.per_class, key=lambda each: each.f1 or 0)
    assert worst.precision is not None
    for words in (
        "81.2 to 93.5", "95% confidence interval", f"{worst.precision:.1%}", "1.568",
        "120 validation images", "0.2500 (0.1000 to 0.3000)", "12.3% (1.0 to 4.0)",
        "Before: ECE 12.3%", "After: ECE 2.0%",
        f"<bdi>{facts.confused[0].true}</bdi></th><td><bdi>{facts.confused[0].predicted}</bdi>",
    ):  # fmt: skip
        assert words in text, words
    assert text.index(worst.name + '</bdi></th><td role="cell"') > 0
    plain, _ = read(write(tmp_path / "plain.html", EDGES["an empty class"]))
    assert "1 of 2 classes has no test image" in plain
    assert "95% confidence interval" not in plain
    assert "temperature" not in plain
    two, _ = read(write(tmp_path / "two.html", EDGES["two classes"]))
    assert "Most confused pairs" not in two  # they are the matrix


def test_the_same_facts_give_the_same_bytes(tmp_path: Path) -> None:
    facts = some()
    first = write(tmp_path / "a.html", facts).read_bytes()
    assert write(tmp_path / "b.html", facts).read_bytes() == first


def test_a_failed_report_leaves_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("older")
    with pytest.raises(Exception):  # noqa: B017  # any will do
        write(file, replace(some(), confusion=None))
    with pytest.raises(ValueError, match="cannot write"):  # a file is no folder
        write(file / "report.html", some())
    assert file.read_text() == "older"
    assert [each.name for each in tmp_path.iterdir() if each.name[0] == "."] == []


CLICK = """<!doctype html><title>wait</title><iframe id="page" src="report.html"
style="border:0;width:1280px;height:900px"></iframe><script>
document.getElementById("page").onload = function () {
  const page = this.contentDocument;
  const pictures = [...page.querySelectorAll("#mistakes figure")];
  const count = () => pictures.filter(each => each.offsetHeight).length + " of " + pictures.length;
  const before = count();
  page.querySelector('.matrix a[href="#m-1-2"]').click();
  setTimeout(() => {
    const top = page.getElementById("m-1-2").getBoundingClientRect().top;
    document.title = `hidden ${before}; shown ${count()}; in sight ${top >= 0 && top < 900}`;
  }, 500);
};</script>"""


@needs_chromium
@pytest.mark.parametrize("case", ["usual", "a thousand", "nasty names"])
def test_chromium_shows_it_without_complaint(tmp_path: Path, case: str) -> None:
    write(tmp_path / "report.html", EDGES[case])
    assert fits(tmp_path)


@needs_chromium
def test_a_link_shows_pictures_that_are_hidden_at_first(tmp_path: Path) -> None:
    facts = some(3)
    mistakes = [replace(facts.mistakes[0], pair=pair) for pair in [(0, 1)] * 24 + [(1, 2)] * 2]
    table = cells([[5, 30, 0], [0, 5, 2], [0, 0, 5]])
    write(tmp_path / "report.html", replace(facts, mistakes=mistakes, confusion=table))
    title = shown(tmp_path, CLICK)
    assert title == "hidden 24 of 26; shown 26 of 26; in sight true"


def test_a_fine_tuned_model_says_where_it_started(tmp_path: Path) -> None:
    facts = some()
    for start, words in (
        ({"weights": "google/vit", "tune": "attention"}, "from google/vit (tune=attention)<"),
        ({"weights": "a & b", "tune": "all"}, "from a &amp; b<"),
    ):
        page = tmp_path / "report.html"
        write(page, replace(facts, recipe=facts.recipe | {"start": start}))
        assert words in page.read_text()
