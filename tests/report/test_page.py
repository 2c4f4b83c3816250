"""The report: one file, everything escaped, fit for a desktop and a phone."""

import html.parser
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from vitlab.data.labels import SingleLabels
from vitlab.evaluation.metrics import Bin, bins, confusion
from vitlab.evaluation.per_class import ClassFigures, class_figures, confused_pairs
from vitlab.models.model import Part
from vitlab.report.facts import Facts, Judged, Picture, Point
from vitlab.report.page import write

NASTY = "<script>alert(\"x\")</script> & 'quotes' ünïcode"


def some(classes: int = 10, images: int = 300, channels: int = 3) -> Facts:
    """Facts of a middling classifier."""
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, images)
    scores = generator.normal(size=(images, classes)) + 3 * np.eye(classes)[labels]
    probabilities = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    shape = (32, 48, 3) if channels == 3 else (8, 8)
    picture = Picture(generator.integers(0, 256, shape, np.uint8), "some folder/é a.png")
    judged = Judged(picture, "class 1", "class 0", 0.93)
    names = tuple(f"class {i}" for i in range(classes))
    accuracy = float((probabilities.argmax(1) == labels).mean())
    return Facts(
        title="ViT-Ti/2 on digits",
        command="vitlab train digits --out 'runs/my run'",
        figures={
            "accuracy": accuracy, "top5": 0.99, "nll": 0.1, "ece": 0.02, "images": images,
            "params": 674_410, "macs": 11_620_416, "images_per_second": 1383.0,
            "peak_memory": 446_865_408, "seconds": 62.4, "model": "ViT-Ti/2",
        },
        classes=names,
        training=[Point(i, i / 10, 2 / (i + 1), i / 40, 1e-3) for i in range(40)],
        testing=[Point(i, i / 10, 2 / (i + 1), i / 40) for i in range(0, 40, 10)],
        confusion=confusion(probabilities, labels),
        reliability=bins(probabilities, labels),
        mistakes=[judged] * 5,
        examples=[replace(judged, attention=generator.random((4, 6), np.float32))] * 3,
        cost=[Part("stem", 100, 1000), Part("attention", 5000, 90_000)],
        recipe={"recipe": {"epochs": 60}, "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999]}},
        versions={"torch": "2.13.0"},
        notes=["skipped: a.png is damaged"],
        per_class=class_figures(probabilities, SingleLabels(labels), names),
        confused=confused_pairs(probabilities, SingleLabels(labels), names),
    )  # fmt: skip


def calibrated() -> Facts:
    """Facts of a run that was calibrated after training."""
    facts = some()
    ranges = {"nll": [0.1, 0.3], "ece": [0.01, 0.04]}
    before = {"nll": 0.25, "ece": 0.1234, "intervals": ranges}
    after = {"nll": 0.2, "ece": 0.02, "intervals": ranges}
    about = {"temperature": 1.5678, "images": 120, "before": before, "after": after}
    figures = facts.figures | {"calibration": about, "intervals": {"accuracy": [0.8123, 0.9345]}}
    return replace(facts, figures=figures, uncalibrated=facts.reliability)


class References(html.parser.HTMLParser):
    """Everything a page would fetch, and the scripts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "action", "srcset") and value:
                self.found.append(value)
            if key == "aria-labelledby" and value:
                self.labels.append(value)
            if key == "id" and value:
                self.ids.append(value)


def read(file: Path) -> tuple[str, References]:
    text = file.read_text(encoding="utf-8")
    references = References()
    references.feed(text)
    return text, references


EDGES = {
    "usual": some(),
    "two classes": some(2),
    "thirty": some(30),
    "sixty": some(60),
    "a thousand": some(1000, 3000),
    "gray": some(channels=1),
    "nasty names": replace(
        some(3),
        title=NASTY,
        command=NASTY,
        classes=(NASTY, "b" * 200, "c"),
        notes=[NASTY],
        mistakes=[Judged(Picture(np.zeros((8, 8), np.uint8), NASTY), NASTY, NASTY, 0.5)],
        recipe={"data": {"data": NASTY}},
        versions={"x": NASTY},
    ),
    "no mistakes": replace(some(), mistakes=[], notes=[], examples=[]),
    "one point": replace(some(), training=[Point(1, 0.1, 2.0, 0.1, 1e-3)], testing=[]),
    "no points": replace(some(), training=[], testing=[]),
    "not finite": replace(some(), training=[Point(1, 1, math.nan, 0), Point(2, 2, math.inf, 0)]),
    "few figures": replace(some(), figures={"accuracy": 0.5, "top5": None}),
    "an empty class": replace(some(3), per_class=[
        ClassFigures("full", 0.5, 0.25, 1 / 3, 8), ClassFigures("empty", None, None, None, 0),
    ]),
    "calibrated": calibrated(),
    "empty bins": replace(some(), reliability=[Bin(0, 0.5, 0, 0, 0), Bin(0.5, 1.0, 9, 0.9, 0.8)]),
}  # fmt: skip


@pytest.mark.parametrize("case", EDGES)
def test_one_file_that_needs_nothing_else(tmp_path: Path, case: str) -> None:
    text, references = read(write(tmp_path / "report.html", EDGES[case]))
    outside = [each for each in references.found if not each.startswith(("data:", "#"))]
    assert not outside
    assert "@import" not in text
    assert "url(http" not in text
    inside = {each[1:] for each in references.found if each.startswith("#")}
    assert inside <= set(references.ids)
    assert references.labels  # every section has its heading's name
    assert set(references.labels) <= set(references.ids)
    assert len(references.ids) == len(set(references.ids))
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
    assert text.index(worst.name + '</bdi></th><td class="n">') > 0
    plain, _ = read(write(tmp_path / "plain.html", EDGES["an empty class"]))
    assert "1 of 3 classes has no test image" in plain
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


FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--allow-file-access-from-files"
)
MEASURE = """<!doctype html><title>wait</title><iframe id="page" src="report.html"
style="border:0;width:{width}px;height:900px"></iframe><script>
document.getElementById("page").onload = function () {{
  const root = this.contentDocument.documentElement;
  document.title = "width " + root.scrollWidth + " of " + root.clientWidth;
}};</script>"""


@pytest.mark.skipif(not shutil.which("chromium"), reason="Chromium is not installed")
@pytest.mark.parametrize("case", ["usual", "a thousand", "nasty names"])
def test_chromium_shows_it_without_complaint(tmp_path: Path, case: str) -> None:
    write(tmp_path / "report.html", EDGES[case])
    for width in (390, 1280):
        wrapper = tmp_path / f"measure-{width}.html"
        wrapper.write_text(MEASURE.format(width=width))
        words = ["chromium", *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]
        words += ["--virtual-time-budget=5000", "--dump-dom", wrapper.as_uri()]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        assert "CONSOLE" not in done.stderr
        found = re.search(r"<title>width (\d+) of (\d+)</title>", done.stdout)
        assert found, done.stdout[:200]
        assert found[1] == found[2]  # nothing sticks out; a scroll bar may take some of the width


def test_a_fine_tuned_model_says_where_it_started(tmp_path: Path) -> None:
    facts = some()
    for start, words in (
        ({"weights": "google/vit", "tune": "attention"}, "from google/vit (tune=attention)"),
        ({"weights": "a & b", "tune": "all"}, "parameters, fine-tuned from a &amp; b; trained in"),
    ):
        page = tmp_path / "report.html"
        write(page, replace(facts, recipe=facts.recipe | {"start": start}))
        assert words in page.read_text()
