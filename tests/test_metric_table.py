"""A metric is one entry: added here, it is found wherever figures are."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, SHOWN, call, photo_folder
from vitlab.evaluation.answers import Weighted
from vitlab.evaluation.metrics import METRICS, Metric
from vitlab.recipes.recipe import Host
from vitlab.weights.publish import card

TINY = {"model": "ViT(width=16,depth=1,heads=2,mlp=32)/8", "steps": 2, "batch": 8, "warmup": 0.0}
DOCS = Path(__file__).parent.parent / "docs" / "evaluation.md"
OWN = Metric(
    "sure", "Share of sure answers", "share of images with a confidence above 50%",
    lambda given: given.mean(given.answers.confidence > 0.5),
    interval="wilson", least=1, hub="own_metric",
)  # fmt: skip


@pytest.fixture
def own() -> Any:
    """The metric in the table, until the test ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METRICS, "sure", OWN)
        yield OWN


def test_a_new_metric_is_found_wherever_figures_are(
    own: Metric, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = str(photo_folder(tmp_path / "photos", {"blue": 30, "red": 30}, 16, 16))
    recipe = vitlab.recipe("small", data, **TINY)
    seeds = vitlab.repeat(recipe, tmp_path / "seeds", 2, host=Host(workers=0, effort=SHOWN))
    assert {"sure"} <= seeds["mean"].keys() & seeds["std"].keys() & seeds["intervals"].keys()
    assert "share of sure answers" in Path(seeds["report"]).read_text()
    runs = [row["run"] for row in seeds["runs"]]
    assert "Share of sure answers" in Path(runs[0], "report.html").read_text()
    assert own.note in Path(runs[0], "report.html").read_text()

    code, text, err = call(capsys, "evaluate", runs[0], data, "--json")
    assert code == 0, err
    figures = json.loads(text)
    low, high = figures["intervals"]["sure"]
    assert 0 <= low <= figures["sure"] <= high <= 1
    text = call(capsys, "evaluate", runs[0], data)[1]
    assert own.word in text
    assert own.text(figures["sure"]) in text
    assert own.range((low, high)) in text
    assert own.note in " ".join(call(capsys, "evaluate", "--help")[1].split())

    compared = vitlab.compare(runs, tmp_path / "page.html")
    assert all("sure" in each for each in compared["runs"])
    assert "sure" in compared["pairs"][0]["differences"]
    assert "sure" in compared["seeds"][0]["mean"]
    assert (tmp_path / "page.html").read_text().count("Share of sure answers") >= 2

    model = vitlab.load(runs[0])
    model.provenance["metrics"] = figures | {"data": "user/photos"}
    shown = card(model, "user/model")
    assert f"| share of sure answers | {figures['sure']:.4f} |" in shown
    assert "type: own_metric" in shown


def test_a_new_metric_is_in_the_folds(own: Metric, tmp_path: Path) -> None:
    data = str(photo_folder(tmp_path / "photos", {"blue": 8, "red": 8}, 16, 16))
    recipe = vitlab.recipe("small", data, **TINY)
    folds = vitlab.cross_validate(recipe, tmp_path / "folds", 2, host=Host(workers=0, effort=BRIEF))
    assert {"sure"} <= folds.keys() & folds["mean"].keys() & folds["intervals"].keys()
    assert "share of sure answers" in Path(folds["report"]).read_text()


def test_every_entry_says_what_it_is() -> None:
    for name, metric in METRICS.items():
        assert (metric.name, metric.note[:1]) == (name, metric.note[:1].strip())
        usual = metric.title[0].isupper() or metric.title[0].isdigit()
        assert usual or metric.title in ("mAP", "mIoU")
        assert (metric.of in ("training", "masks", "boxes", "numbers")) == (metric.fn is None)
    titles = [each.title for each in METRICS.values()]
    assert len(set(titles)) == len(titles)


def test_titles_within_a_sentence() -> None:
    words = {name: each.word for name, each in METRICS.items()}
    assert (words["accuracy"], words["macro_f1"], words["top5"]) == (
        "accuracy", "macro F1", "top-5 accuracy",
    )  # fmt: skip
    assert (words["map"], words["nll"], words["kappa"], words["brier"]) == (
        "mAP", "NLL", "Cohen's kappa", "Brier score",
    )  # fmt: skip


def test_the_docs_say_from_how_many_images_each_has_an_interval() -> None:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    for metric in METRICS.values():
        least = str(metric.least) if metric.interval else "never"
        row = [line for line in lines if line.startswith(f"| {least} | ")]
        assert not metric.fn or any(f"`{metric.name}`" in line for line in row), metric.name


def test_a_metric_takes_any_weights(own: Metric) -> None:
    import numpy as np

    from vitlab.evaluation.answers import SingleAnswers

    answers = SingleAnswers.of(np.array([[0.4, 0.3, 0.3], [0.8, 0.1, 0.1]]), np.array([0, 1]))
    weights = np.array([[1.0, 1.0], [1.0, 3.0]])
    assert own.fn is not None
    assert own.fn(Weighted(answers, weights)).tolist() == [0.5, 0.75]
