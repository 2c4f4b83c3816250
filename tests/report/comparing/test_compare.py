"""`vitlab compare` as a person uses it, on copies of one small run that are changed by hand."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitlab
from conftest import call
from made_facts import NASTY
from vitlab.commands.pretrain import Pretrain
from vitlab.commands.train import Train
from vitlab.console.leaves import all_leaves
from vitlab.errors import OptionError
from vitlab.evaluation.answers import SingleAnswers
from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.paired_tests import mcnemar
from vitlab.evaluation.run_predictions import kept, reopened
from vitlab.models.names import shape_of
from vitlab.report.comparing.compared_run import options_in
from vitlab.runs.kept_arrays import read_arrays, write_arrays
from vitlab.runs.run_folder import RunFolder


def changed(run: Path, place: Path, seed: int, wrong: int = 0, **fields: str) -> RunFolder:
    """A copy of a run with another seed, other fields in run.toml, and more mistakes."""
    folder = RunFolder(shutil.copytree(run, place))
    text = (place / "run.toml").read_text()
    for name, value in {"seed": str(seed), **fields}.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1, name
    (place / "run.toml").write_text(text)
    answers = answers_of(folder)
    chosen = np.random.default_rng(seed).permutation(np.flatnonzero(answers.right))[:wrong]
    guess, rank = answers.guess.copy(), answers.rank.copy()
    guess[chosen], rank[chosen] = (guess[chosen] + 1) % 10, 1
    found = read_arrays(folder.predictions, dict)
    assert found is not None
    write_arrays(folder.predictions, found[0] | {"guess": guess, "rank": rank}, found[1])
    return folder


def answers_of(folder: RunFolder) -> SingleAnswers:
    found = kept(folder)
    assert found is not None
    assert isinstance(found.answers, SingleAnswers)
    return found.answers


@pytest.fixture
def runs(digits_run: Path, tmp_path: Path) -> list[RunFolder]:
    """Three runs: the second and third differ in their seed alone, and from the first in more."""
    return [
        changed(digits_run, tmp_path / "runs" / "a", 0),
        changed(digits_run, tmp_path / "runs" / "b", 1, 30, lr="0.5", mixup="0.2"),
        changed(digits_run, tmp_path / "runs" / "c", 2, 20, lr="0.5", mixup="0.2"),
    ]


def test_figures_tests_recipes_and_a_page(
    runs: list[RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(each.path) for each in runs]
    out = tmp_path / "pages" / "compare.html"
    code, printed, said = call(capsys, "compare", *words, "--out", str(out), "--json")
    assert code == 0, said
    found: dict[str, Any] = json.loads(printed)
    first = runs[0].result()
    assert first is not None
    assert [each["name"] for each in found["runs"]] == ["a", "b", "c"]
    assert found["runs"][0]["accuracy"] == first["accuracy"]
    assert found["runs"][0]["intervals"] == first["intervals"]
    right = [answers_of(each).right for each in runs]
    for pair, (one, other) in zip(found["pairs"], ((0, 1), (0, 2), (1, 2)), strict=True):
        assert (pair["first"], pair["second"]) == (words[one], words[other])
        counts = [int((right[a] & ~right[b]).sum()) for a, b in ((one, other), (other, one))]
        assert [pair["only_first"], pair["only_second"]] == counts
        assert pair["p"] == mcnemar(*counts)
        gap = right[other].mean() - right[one].mean()
        assert pair["differences"]["accuracy"]["value"] == pytest.approx(gap)
    assert found["images"] == 359
    lrs = [f"{RunFolder(each).recipe.optimizer.lr:g}" for each in words]
    assert found["recipe"] == {"--seed": ["0", "1", "2"], "--mixup": ["0", "0.2", "0.2"],
                               "--lr": lrs}  # fmt: skip
    (group,) = found["seeds"]
    assert (group["seeds"], group["runs"]) == ([1, 2], words[1:])
    assert group["std"]["accuracy"] == 0  # the journals are the same
    notes = " ".join(found["notes"])
    assert "training losses are different quantities: the runs differ in --mixup" in notes
    assert "b: accuracy" in notes  # it answers otherwise than its journal says
    page = out.read_text()
    assert found["report"] == str(out)
    assert page.count('<path d="M1 5h30"') == 3 * 3  # three runs in three places
    assert "../runs/a/report.html" in page
    assert "No two recipes can be tested against each other" in page  # the first is a single run
    assert "<script" not in page
    assert not re.findall(r"(?:src|srcset|action)=\"(?!data:)", page)
    ids = re.findall(r"\bid=\"([^\"]+)\"", page)
    assert len(ids) == len(set(ids))
    assert {"tests", "curves", "recipe", "cost", "disagreements"} <= set(ids)
    assert set(re.findall(r"href=\"#([^\"]+)\"", page)) <= set(ids)
    lost = ~right[0] & ~right[1] & ~right[2]
    assert f"All wrong</bdi>: {lost.sum()} images" in page
    alone = right[0] & ~right[1] & ~right[2]
    assert f"Only 1 a is right</bdi>: {alone.sum()} image" in page
    assert page.count("<figure>") > 20
    code, printed, _ = call(capsys, "compare", *words[:2])
    assert code == 0
    assert "second minus first" in printed


def test_the_most_confident_mistakes_come_first(runs: list[RunFolder], tmp_path: Path) -> None:
    one, other = (answers_of(each) for each in runs[:2])
    vitlab.compare([each.path for each in runs[:2]], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    section = page[page.index("is right</bdi>:") :]
    names = re.findall(r"<bdi dir=\"ltr\">digit (\d+)</bdi>", section[: section.index("</ul>")])
    found = kept(runs[0])
    assert found is not None
    mine = np.flatnonzero(one.right & ~other.right)
    best = mine[np.argsort(-other.confidence[mine], kind="stable")]
    source = reopened(runs[0]).test
    want = [source.name(int(found.indices[place])).split()[-1] for place in best[: len(names)]]
    assert names == want
    assert len(names) == 16
    told = re.findall(r"</bdi>: (\d+) images?</b>(, the 16 with)?", page)
    assert {bool(cut) for _, cut in told} == {True, False}
    assert [bool(cut) for _, cut in told] == [int(count) > 16 for count, _ in told]
    head = page.split('<section id="figures"')[1].split("</thead>")[0]
    shown = {each.title for each in METRICS.values() if each.key or each.of == "training"}
    assert {"Accuracy"} < set(re.findall("<th[^>]*>([^<]+)</th>", head)) - {"Run"} <= shown
    assert "has the higher accuracy on 359 test images" in page
    assert "more than chance explains (McNemar" in page


def test_what_cannot_be_compared_is_said_and_the_rest_goes_on(
    runs: list[RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, unfinished, lost = runs
    lines = unfinished.journal.file.read_text().splitlines(keepends=True)
    unfinished.journal.file.write_text("".join(lines[:-1]))
    lost.predictions.unlink()
    shutil.rmtree(lost.model)
    out = tmp_path / "page.html"
    words = [str(each.path) for each in runs]
    code, _, said = call(capsys, "compare", *words, "--out", str(out))
    assert code == 0
    assert "b is not finished: it has curves and a recipe, but no figures" in said
    assert "c: not compared image by image, because" in said
    assert "contains no model" in said
    page = out.read_text()
    assert 'id="disagreements"' not in page
    assert "no two of them can be compared image by image" in page
    assert "Training loss" in page
    journal = whole.journal.file
    journal.write_text("".join(lines[:-1]))
    found = vitlab.compare([whole.path, unfinished.path], out, replace=True)
    assert not found["pairs"]
    assert "none of them finished" in out.read_text()


def test_other_test_images_are_counted_or_left_out(runs: list[RunFolder], tmp_path: Path) -> None:
    """By what each image is recognized by; labels that differ leave an image out."""

    def keep(folder: RunFolder, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        arrays, about = read_arrays(folder.predictions, dict) or ({}, {})
        write_arrays(folder.predictions, arrays | change(arrays), about)

    one, two, three = runs
    words = [each.path for each in runs]
    keep(two, lambda arrays: {name: each[:300] for name, each in arrays.items()})
    keep(two, lambda arrays: {"truth": np.r_[(arrays["truth"][:7] + 1) % 10, arrays["truth"][7:]]})
    notes = vitlab.compare(words)["notes"]
    assert "7 images that are labeled otherwise in another run are left out" in notes
    whole = "compared on the 293 test images that all have in common; each run has 300 to 359"
    assert whole in notes
    keep(three, lambda arrays: {"keys": ~arrays["keys"]})
    found = vitlab.compare(words)
    assert any(each.startswith("c was tested on other images") for each in found["notes"])
    assert [(pair["first"], pair["second"]) for pair in found["pairs"]] == [
        (str(one.path), str(two.path))
    ]
    notes = vitlab.compare(words[1:])["notes"]
    assert any(each.startswith("no two runs were tested on the same images") for each in notes)


def test_images_that_are_gone_are_counted(digits_run: Path, tmp_path: Path) -> None:
    """Data at another place: answers are kept, pictures are not."""
    folders = [changed(digits_run, tmp_path / name, seed, 5 * seed, data='"gone"')
               for seed, name in enumerate(("one", "two"))]  # fmt: skip
    page = tmp_path / "page.html"
    found = vitlab.compare([each.path for each in folders], page)
    assert found["pairs"][0]["only_first"] == 5
    assert "The images are not at hand (no such file or folder: gone)" in page.read_text()
    for folder in folders:
        folder.predictions.unlink()
    found = vitlab.compare([each.path for each in folders])
    assert not found["pairs"]
    assert (
        "one: not compared image by image, because no such file or folder: gone" in found["notes"]
    )


def test_names_of_others_do_not_break_the_page(runs: list[RunFolder], tmp_path: Path) -> None:
    kinds: list[RunFolder] = []
    for number, folder in enumerate(runs[:2]):
        arrays, about = read_arrays(folder.predictions, dict) or ({}, {})
        classes = [NASTY, "\udce9", *about["classes"][2:]]
        write_arrays(folder.predictions, arrays, about | {"classes": classes})
        place = tmp_path / f"<b>&{number}\udce9"
        folder.path.rename(place)
        kinds.append(RunFolder(place))
    vitlab.compare([each.path for each in kinds], tmp_path / "page.html", command=NASTY)
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<b>&" not in page


def test_one_folder_of_several_runs_may_be_named_by_itself(digits_run: Path) -> None:
    """Its letters are no folders."""
    with pytest.raises(OptionError, match=r"^there is only one run: name at least two"):
        vitlab.compare(digits_run)
    with pytest.raises(OptionError, match=r"^there is only one run: name at least two"):
        vitlab.compare(str(digits_run))


def test_a_campaign_stands_for_its_runs(runs: list[RunFolder], tmp_path: Path) -> None:
    (tmp_path / "runs" / "campaign.json").write_text("{}")
    found = vitlab.compare([tmp_path / "runs"])
    assert [each["name"] for each in found["runs"]] == ["a", "b", "c"]


@pytest.mark.parametrize("model", ["ViT-Ti/16", "BiT-R50x1"])
def test_options_are_spelled_as_on_the_command_line(model: str) -> None:
    recipe = vitlab.recipe("small", model=model, data="digits")
    commands = Train(recipe=recipe), Pretrain(recipe=vitlab.recipe("mae", model=model))
    known = {f"--{leaf.word.replace('_', '-')}" for each in commands for leaf in all_leaves(each)}
    found = options_in(recipe)
    assert set(found) <= known
    assert found["--seed"] == 0
    assert found["--from"] == ""
    assert found["--test-fraction"] == 0.2
    full = replace(recipe, model=type(recipe.model)(model=model, **shape_of(model)))
    assert set(options_in(full)) == set(found)
