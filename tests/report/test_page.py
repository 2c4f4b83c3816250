"""The report: one file, everything escaped, fit for a desktop and a phone."""

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import photo
from made_facts import NASTY, calibrated, cells, nasty, point, some
from made_pretext import a_run
from report.reading import alone, check_harmless, needs_chromium, shown
from vitlab.data.duplicates.finding import Comparison, Pairs
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.evaluation.per_class import ClassFigures, Confusion
from vitlab.evaluation.reliability import Bin
from vitlab.report.facts import Doubts
from vitlab.report.inside.looking import Looked, SeenImage
from vitlab.report.page import Page, ReportTable, Section, common_folder, write_page
from vitlab.report.pairs_page import write_pairs
from vitlab.report.pretext_report import pretext_page
from vitlab.report.run_page import FIRST, run_page
from vitlab.report.thumbnails import of_source

EDGES = {
    "usual": calibrated(),
    "sixty, gray": some(60, channels=1),
    "two thousand": some(2000, 3000),
    "one image": replace(  # and names from right to left
        some(2, 1), mistakes=[], classes=("\u05db\u05dc\u05d1", "\u0642\u0637"),
        per_class=[ClassFigures("\u05db\u05dc\u05d1", 0.5, 0.25, 1 / 3, 1)],
        notes=["\u05db\u05dc\u05d1"],
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
    "hardly anything": replace(
        some(), mistakes=[], notes=[], testing=[], figures={"accuracy": 0.5, "top5": None},
        training=[point(1, math.nan, lr=1e-3), point(2, math.inf)],
        reliability=[Bin(0, 0.5, 0, 0, 0), Bin(0.5, 1.0, 9, 0.9, 0.8)],
    ),
    "an empty class": replace(some(2), training=[], testing=[], per_class=[
        ClassFigures("full", 0.5, 0.25, 1 / 3, 8), ClassFigures("empty", None, None, None, 0),
    ], predicted=[4, 0], classes=("full", "empty")),
}  # fmt: skip
Written = Callable[[str], Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Writes the page of one of the edges, once, into a folder of its own."""
    folder = tmp_path_factory.mktemp("pages")

    def of(case: str) -> Path:
        file = folder / case / "report.html"
        return file if file.is_file() else write_page(file, run_page(EDGES[case]))

    return of


@pytest.mark.parametrize("case", EDGES)
def test_one_file_that_needs_nothing_else(written: Written, case: str) -> None:
    check_harmless(written(case), nasty=case == "nasty names")


def test_figures_intervals_classes_and_pairs_are_told(written: Written) -> None:
    facts, text = calibrated(), written("usual").read_text().replace("&#39;", "'")
    worst = min(facts.per_class, key=lambda each: each.f1 or 0)
    assert worst.precision is not None
    for words in (
        f"{facts.figures['accuracy']:.1%}", "674.4 k", "11.62 M", "447 MB", "1 min 2 s", "1,383",
        "runs/my run", "skipped: a.png is damaged", "betas", "2.13.0",
        "95% interval 81.2 to 93.5%", f"{worst.precision:.1%}", "1.568",
        "120 validation images", "0.2500 (0.1000 to 0.3000)", "12.3% (1.0 to 4.0)",
        "gap 2.0% (ECE)",
        f"<bdi>{facts.confused[0].true}</bdi></th><td><bdi>{facts.confused[0].predicted}</bdi>",
    ):  # fmt: skip
        assert words in text, words
    first = text[text.index('id="worst"') :]
    assert first.index(worst.name) < first.index('id="uses"')
    two = written("an empty class").read_text()
    assert "1 of 2 classes has no test image (empty)" in two
    assert "temperature" not in two
    assert "Most confused pairs" not in two  # they are the matrix


def test_the_first_screen_says_what_matters_and_the_rest_folds(tmp_path: Path) -> None:
    """Without scripts: the sections below are `details`, which print and links open."""
    facts = replace(some(), mistakes=[some().mistakes[0]] * 20, notes=["twice", "once", "twice"])
    facts = replace(facts, recipe=facts.recipe | {"pretext": {"task": "classify"}})  # as run.toml
    text = write_page(tmp_path / "report.html", run_page(facts)).read_text()
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
    table = ReportTable("t", ("a", "b"), [("<b>", "1")])
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


def test_a_page_of_no_pairs_says_so(tmp_path: Path) -> None:
    none, digits = np.zeros(0, np.int64), open_to_learn("digits")
    pairs = Pairs(none, none, none.astype(np.float64), none.astype(bool), (2, 0))
    compared = Comparison(digits.train, digits.test, pairs, ["a.png"], 1.0)
    text = alone(write_pairs(tmp_path / "page.html", compared, "T"))
    for words in (
        "No near-duplicates were found.", "None of the 359 test images", "2 images are blank",
        "damaged: a.png",
    ):  # fmt: skip
        assert words in text, words
    photo(0, 60, 40).save(tmp_path / "photo.png")
    drawn = of_source(open_images([str(tmp_path / "photo.png")], "none").every(), 0)
    assert drawn.startswith("data:image/jpeg;base64,")  # as such a page shows photographs


def test_a_failed_report_leaves_the_older_one(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text("older")
    broken = Page("T", sections=[Section("a", "b", [ReportTable("t", ("a",), None)])])  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_page(file, broken)
    with pytest.raises(ValueError, match="cannot write"):  # a file is no folder
        write_page(file / "report.html", Page("T"))
    assert file.read_text() == "older"
    assert [each.name for each in tmp_path.iterdir() if each.name[0] == "."] == []


@needs_chromium
def test_chromium_shows_it_without_complaint(written: Written, tmp_path: Path) -> None:
    """On a phone and a desktop; short before it is unfolded; a link unfolds what it leads to."""
    facts = calibrated()
    long = [replace(each, name=f"a/long folder {n}/a photograph of something {n}.jpeg")
            for n, each in enumerate([facts.mistakes[0]] * 40)]  # fmt: skip
    inside = Looked("m", [SeenImage("a.png", np.zeros((8, 8, 3), np.uint8))], 1)
    mistakes = [replace(facts.mistakes[0], pair=pair) for pair in [(0, 1)] * FIRST + [(1, 2)] * 2]
    made = {
        "long": run_page(replace(facts, mistakes=long, unlike=(5, 1), inside=inside)),
        "linked": run_page(replace(
            some(3), mistakes=mistakes, confusion=cells([[5, 30, 0], [0, 5, 2], [0, 0, 5]]),
            confused=[Confusion("class 1", "class 2", 2, 0.5)],
        )),
        "pretext": pretext_page(a_run(side=16, points=5)),
    }  # fmt: skip
    for name, page in made.items():
        write_page(tmp_path / f"{name}.html", page)
    for case in ("two thousand", "nasty names", "one image"):
        shutil.copy(written(case), tmp_path / f"{case}.html")
    assert '<a href="#m-1-2">2</a>' in (tmp_path / "linked.html").read_text()
    found = shown(tmp_path)
    assert len(found) == 2 * 6
    assert {name for name, each in found.items() if each["wide"] != each["room"]} == set()
    assert found["long.html 1280"]["high"] <= 2800
    assert found["linked.html 1280"]["link"] is True
