"""The report of a run without labels: what it says, and that it needs nothing else."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_facts import NASTY
from made_pretext import a_run
from report.reading import alone, check_harmless
from six_runs import run_in
from vitlab.report.facts import Point, RunFacts
from vitlab.report.next_steps import next_steps
from vitlab.report.page import write_page
from vitlab.report.pretext_report import (
    FIGURES,
    TASKS,
    key_cards,
    lead,
    own_figures,
    pretext_page,
)
from vitlab.runs.run_folder import RunFolder

FEW = replace(a_run(), training=a_run().training[:3], testing=a_run().testing[:1])
EDGES = {
    "nothing known": replace(
        FEW, figures={"task": "mae"}, training=[], testing=[], pictures={}, cost=[], recipe={},
        notes=[], run={},
    ),
    "not finite": replace(
        FEW, testing=[],
        training=[Point(1, 1, {"loss": math.nan}), Point(2, 2, {"loss": math.inf})],
        figures={"loss": math.nan, "task": "mae"},
    ),
    "nasty names": replace(
        FEW, model=NASTY, run={"command": NASTY, "started": NASTY, "fingerprint": NASTY},
        figures=FEW.figures | {"device": NASTY, "run": NASTY, NASTY: 1.0},
        testing=[Point(1, 1, {"loss": 2.0, NASTY: 1.0})], training=[], notes=[NASTY],
        pictures={NASTY: np.zeros((2, 8, 8, 3), np.uint8)},
        recipe={"data": {"data": NASTY}, "pretext": {"tokenizer": NASTY, "target": NASTY},
                "start": {"weights": NASTY}},
        versions={"x": NASTY},
    ),
}  # fmt: skip


def write(file: Path, facts: RunFacts) -> Path:
    return write_page(file, pretext_page(facts))


@pytest.mark.parametrize("case", EDGES)
def test_one_file_that_needs_nothing_else(tmp_path: Path, case: str) -> None:
    check_harmless(write(tmp_path / "report.html", EDGES[case]), nasty=case == "nasty names")


def test_what_was_learned_is_told(tmp_path: Path) -> None:
    text = alone(write(tmp_path / "report.html", a_run(side=16))).replace("&#39;", "'")
    for words in (
        "<bdi>BEiT on my photos</bdi></h1>",
        "ViT-Ti/4 learned to predict the codes of hidden patches (40% of each image), from 45,000 "
        "images without labels. Its loss on held-out images is 3.751.",
        "mean of 1,024 images; 3.577 in training", "42.1%", "10-shot accuracy", "48.8%",
        "45,000 training, 1,024 held out", "runs/tokens", "5.7 M", "361.62 M", "1 h 8 min",
        "vitlab finetune DATA --from 'runs/my run'", "vitlab fewshot 'runs/my run' DATA",
        "skipped: a.png is damaged", "the stem of this model mixes patches", "Spread of answers",
        'alt="6: image · masked · agreement · decoded, 4"',
        "hidden patches: green where the predicted code",
        "Code agreement against epoch: training 49.2%", "10-shot accuracy against epoch: ",
    ):  # fmt: skip
        assert words in text, words
    assert text.count('<img src="data:image/png') == 6 * 4
    assert text.index('id="pictures"') < text.index('id="uses"') < text.index('id="curves"')
    assert "ccuracy of" not in text
    assert "test images" not in text


def test_each_task_has_its_words() -> None:
    said = [lead(a_run(task, 8, 4)) for task in TASKS]
    assert len(set(said)) == len(TASKS)
    assert said[0].startswith("ViT-Ti/4 learned to predict the mean color of hidden patches (40% ")
    masking = [task for task, text in zip(TASKS, said, strict=True) if "hidden" in text]
    assert masking == ["masked-patch", "beit", "mae"]
    asking = "vitlab predict 'runs/my run' IMAGE…"
    own = {
        "tokenizer": "vitlab pretrain 'some/my photos' --task beit --tokenizer 'runs/my run'",
        "detect": f"{asking} --out found", "segment": f"{asking} --out masks", "regress": asking,
    }  # fmt: skip
    for task in TASKS:
        lines = [line for _, line in next_steps(a_run(task, 8, 4)).items]
        first = [line for line in lines if line.startswith("vitlab")]
        assert any(line.startswith("tar -czf") for line in lines) == (task != "tokenizer")
        if task in own:
            assert first == [own[task]]
        else:
            kinds = [each.split()[1] for each in first]
            assert kinds == ["finetune", "fewshot", "embed", "inspect"]


def test_a_figure_is_shown_as_its_words_have_it() -> None:
    values = {"agreement": 0.12345, "entropy": math.log(4321), "some_new_figure": 0.012345}
    own = own_figures(replace(FEW, training=[], testing=[Point(1, 1, {"loss": 1.0} | values)]))
    assert [each.shown(values[key]) for key, each in own.items()] == ["12.3%", "4,321", "0.0123"]
    assert own["entropy"].shown(1e9) == "inf"
    assert own["some_new_figure"].title == "Some new figure"
    shares = {key for key, each in FIGURES.items() if each.share}
    assert {key for key in FIGURES if key.endswith("accuracy")} < shares
    assert shares >= {"agreement", "box_overlap", "dead_features"}
    cards = {card.label: card.value for card in key_cards(a_run(side=8))}
    assert cards == {
        "Held-out loss": "3.751", "Code agreement": "42.1%", "Spread of answers": "2.1",
        "10-shot accuracy": "48.8%",
    }  # fmt: skip


def test_a_figure_of_the_test_images_has_its_interval() -> None:
    figures = {"ap50": 0.9, "intervals": {"ap50": [0.85, 0.93]}}
    own = replace(FEW, training=[], testing=[], figures=figures)
    assert ("AP50", "90.0%", "85.0 to 93.0") in [
        (card.label, card.value, card.range) for card in key_cards(own)
    ]


def test_a_run_writes_it(unlabeled_run: Path) -> None:
    run = run_in(unlabeled_run)
    page = alone(run.folder / "report.html")
    points = [each for each in RunFolder(run.folder).journal.read() if each["kind"] == "held-out"]
    assert f"{points[-1]['knn']:.1%}</dd>" in page
    assert f"Its loss on held-out images is {run.metrics['loss']:.4g}." in page
    assert page.count('<img src="data:image/png') == 8 * 3
    assert "Color error" in page
    said = unlabeled_run.with_name("said").read_text()
    assert said.count("20-NN accuracy on digits") == len(points)
    assert run.metrics["knn"] == points[-1]["knn"]
    assert run.metrics["loss"] == points[-1]["loss"]
    assert "20-NN accuracy</dt><dd" in page
    assert f"vitlab finetune DATA --from {run.folder}" in page
    assert "<bdi>head</bdi>" not in page
