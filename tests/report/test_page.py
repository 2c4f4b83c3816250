"""The report: one file, everything escaped, fit for a desktop and a phone."""

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_facts import NASTY, calibrated, cells, nasty, point, some
from report.reading import alone, check_harmless, fits, needs_chromium, read, shown
from vitlab.evaluation.per_class import ClassFigures, Confusion
from vitlab.evaluation.reliability import Bin
from vitlab.report.facts import Doubts, Facts
from vitlab.report.inside.looking import Looked, SeenImage
from vitlab.report.page import Page, Section, Table, common_folder, write_page
from vitlab.report.run_page import FIRST, run_page

EDGES = {
    "usual": some(),
    "two classes": some(2),
    "sixty": some(60),
    "two thousand": some(2000, 3000),
    "one image": replace(some(2, 1), mistakes=[]),
    "gray": some(channels=1),
    "right to left": replace(
        some(2), classes=("\u05db\u05dc\u05d1", "\u0642\u0637"), notes=["\u05db\u05dc\u05d1"]
    ),
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
        inside=Looked(NASTY, [
            SeenImage(NASTY, np.zeros((8, 8), np.uint8), NASTY, ((NASTY, 0.5),), NASTY, {
                "relevance": np.ones((2, 2), np.float32)
            }),
        ], 1),
        doubts=Doubts([nasty()], 1, 1.0, 9),
        recipe={
            "data": {"data": NASTY}, "start": {"weights": NASTY, "tune": NASTY},
            "changes": [{"step": 3, "option": NASTY, "before": NASTY, "after": 2}],  # type: ignore[dict-item]
        },
        versions={"x": NASTY},
    ),
    "no mistakes": replace(some(), mistakes=[], notes=[]),
    "one point": replace(some(), training=[point(1, 2.0, accuracy=0.1, lr=1e-3)], testing=[]),
    "no points": replace(some(), training=[], testing=[]),
    "not finite": replace(some(), training=[point(1, math.nan), point(2, math.inf)]),
    "few figures": replace(some(), figures={"accuracy": 0.5, "top5": None}),
    "an empty class": replace(some(2), per_class=[
        ClassFigures("full", 0.5, 0.25, 1 / 3, 8), ClassFigures("empty", None, None, None, 0),
    ], predicted=[4, 0]),
    "calibrated": calibrated(),
    "empty bins": replace(some(), reliability=[Bin(0, 0.5, 0, 0, 0), Bin(0.5, 1.0, 9, 0.9, 0.8)]),
}  # fmt: skip


def write(file: Path, facts: Facts) -> Path:
    return write_page(file, run_page(facts))


@pytest.mark.parametrize("case", EDGES)
def test_one_file_that_needs_nothing_else(tmp_path: Path, case: str) -> None:
    check_harmless(write(tmp_path / "report.html", EDGES[case]), nasty=case == "nasty names")


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
        "95% interval 81.2 to 93.5%", f"{worst.precision:.1%}", "1.568",
        "120 validation images", "0.2500 (0.1000 to 0.3000)", "12.3% (1.0 to 4.0)",
        "gap 2.0% (ECE)",
        f"<bdi>{facts.confused[0].true}</bdi></th><td><bdi>{facts.confused[0].predicted}</bdi>",
    ):  # fmt: skip
        assert words in text, words
    first = text[text.index('id="worst"') :]
    assert first.index(worst.name) < first.index('id="uses"')
    plain, _ = read(write(tmp_path / "plain.html", EDGES["an empty class"]))
    assert "1 of 2 classes has no test image (empty)" in plain
    assert "temperature" not in plain
    two, _ = read(write(tmp_path / "two.html", EDGES["two classes"]))
    assert "Most confused pairs" not in two  # they are the matrix


def test_the_first_screen_says_what_matters_and_the_rest_folds(tmp_path: Path) -> None:
    """Without scripts: the sections below are `details`, which print and links open."""
    facts = replace(some(), mistakes=[some().mistakes[0]] * 20, notes=["twice", "once", "twice"])
    facts = replace(facts, recipe=facts.recipe | {"pretext": {"task": "classify"}})  # as run.toml
    text, _ = read(write(tmp_path / "report.html", facts))
    first, rest = text.split('<section class="more"')
    for name in ("result", "worst", "mistakes", "uses", "notes"):
        assert f'<section id="{name}"' in first
    assert first.count("<figure>") == FIRST
    assert "vitlab predict RUN IMAGE" in first
    assert first.count("<li>twice</li>") == 1
    sections = re.findall(r'<details id="([\w-]+)"', rest)
    assert {"figures", "classes", "confusion", "calibration", "curves", "cost"} <= set(sections)
    assert "<details open" not in text


def test_sections_without_blocks_and_names_in_one_folder(tmp_path: Path) -> None:
    table = Table("t", ("a", "b"), [("<b>", "1")])
    page = Page("T", sections=[Section("full", "Full", [table]), Section("none", "None", [])])
    text = alone(write_page(tmp_path / "page.html", page))
    assert 'id="full"' in text
    assert 'id="none"' not in text
    assert "&lt;b&gt;" in text
    for names, folder in (
        (["/home/me/a/cat/1.png", "/home/me/a/dog/1.png"], "/home/me/a/"),
        (["/home/me/a/1.png", "/home/me/a/2.png"], "/home/me/a/"),
        (["a.png", "b/c.png"], ""),
        (["row 1", "row 2"], ""),
        ([], ""),
    ):
        assert common_folder(names) == folder


def test_the_same_facts_give_the_same_bytes(tmp_path: Path) -> None:
    facts = some()
    first = write(tmp_path / "a.html", facts).read_bytes()
    assert write(tmp_path / "b.html", facts).read_bytes() == first


def test_a_failed_report_leaves_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("older")
    with pytest.raises(Exception):  # noqa: B017  # any will do
        write(file, replace(some(), per_class=None))
    with pytest.raises(ValueError, match="cannot write"):  # a file is no folder
        write(file / "report.html", some())
    assert file.read_text() == "older"
    assert [each.name for each in tmp_path.iterdir() if each.name[0] == "."] == []


CLICK = """<!doctype html><title>wait</title><iframe id="page" src="report.html"
style="border:0;width:1280px;height:900px"></iframe><script>
document.getElementById("page").onload = function () {
  const page = this.contentDocument, place = page.getElementById("m-1-2");
  const folds = page.getElementById("more-mistakes"), before = folds.open;
  this.contentWindow.location.hash = "m-1-2";
  setTimeout(() => {
    const top = place.getBoundingClientRect().top;
    document.title = `${before}; ${folds.open}; in sight ${top >= 0 && top < 900}`;
  }, 500);
};</script>"""


@needs_chromium
@pytest.mark.parametrize("case", ["usual", "two thousand", "nasty names", "one image"])
def test_chromium_shows_it_without_complaint(tmp_path: Path, case: str) -> None:
    write(tmp_path / "report.html", EDGES[case])
    assert fits(tmp_path)


@needs_chromium
def test_a_link_shows_pictures_that_are_folded(tmp_path: Path) -> None:
    facts = some(3)
    mistakes = [replace(facts.mistakes[0], pair=pair) for pair in [(0, 1)] * FIRST + [(1, 2)] * 2]
    confused = [Confusion("class 1", "class 2", 2, 0.5)]
    table = cells([[5, 30, 0], [0, 5, 2], [0, 0, 5]])
    made = replace(facts, mistakes=mistakes, confusion=table, confused=confused)
    text = write(tmp_path / "report.html", made).read_text()
    assert '<a href="#m-1-2">2</a>' in text
    assert shown(tmp_path, CLICK) == "false; true; in sight true"


HEIGHT = """<!doctype html><title>wait</title><iframe id="page" src="report.html"
style="border:0;width:1280px;height:900px"></iframe><script>
document.getElementById("page").onload = function () {
  document.title = this.contentDocument.documentElement.scrollHeight;
};</script>"""


@needs_chromium
def test_a_report_is_short_before_it_is_unfolded(tmp_path: Path) -> None:
    facts = calibrated()
    long = [replace(each, name=f"a/long folder {n}/a photograph of something {n}.jpeg")
            for n, each in enumerate([facts.mistakes[0]] * 40)]  # fmt: skip
    inside = Looked("m", [SeenImage("a.png", np.zeros((8, 8, 3), np.uint8))], 1)
    made = replace(facts, mistakes=long, unlike=(5, 1), inside=inside)
    write(tmp_path / "report.html", made)
    assert int(shown(tmp_path, HEIGHT)) <= 2500


def test_a_fine_tuned_model_says_where_it_started(tmp_path: Path) -> None:
    facts = some()
    for recipe, start, what, words in (
        ("vit-finetune", {"weights": "google/vit", "tune": "attention"}, "Fine-tuned from",
         "google/vit, tune=attention"),
        ("vit-finetune", {"weights": "a & b", "tune": "all"}, "Fine-tuned from", "a &amp; b"),
        ("probe", {"weights": "a & b", "tune": "head"}, "Head fitted on", "a &amp; b"),
    ):  # fmt: skip
        page = tmp_path / "report.html"
        tables = facts.recipe | {"start": start, "recipe": {"recipe": recipe}}
        write(page, replace(facts, recipe=tables))
        assert re.search(rf"{what}</dt><dd><bdi>{words}<", page.read_text())
