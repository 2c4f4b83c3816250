"""`--report no`: everything but the page, and nothing that names a file that does not exist."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

import vitlab
from conftest import TINY, call
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.report import gather, pretext_report
from vitlab.runs.run_folder import RunFolder
from vitlab.training import ending

QUICK = TINY | {"epochs": 1, "batch": 256}
WITHOUT = Host(report="no", check_duplicates="no")
SPEEDS = ("images_per_second", "peak_memory", "seconds", "run", "report")


@pytest.fixture
def _no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is done for a page alone."""

    def fail(*_: Any) -> None:
        raise AssertionError("nobody wants this page")

    monkeypatch.setattr(gather, "write_report", fail)
    monkeypatch.setattr(gather, "survey", fail)
    monkeypatch.setattr(pretext_report, "write_pretext_report", fail)
    monkeypatch.setattr(ending, "_pictures", fail)


def kept(metrics: dict[str, Any]) -> str:
    return json.dumps({key: value for key, value in metrics.items() if key not in SPEEDS})


@pytest.mark.usefixtures("_no_page")
@pytest.mark.parametrize(("name", "data"), [("digits", "digits"), ("mae", "photos")])
def test_no_page_is_made_and_none_is_named(
    name: str, data: str, tmp_path: Path, photos: Path
) -> None:
    recipe = vitlab.recipe(name, data=data if data == "digits" else str(photos), **QUICK)
    run = vitlab.train(recipe, tmp_path / "run", host=WITHOUT)
    folder = RunFolder(run.folder)
    assert not folder.report.exists()
    for found in (run.metrics, folder.result(), folder.journal.read()[-1]):
        assert found is not None
        assert found["run"] == str(run.folder)
        assert "report" not in found
    again = vitlab.train(recipe, run.folder, host=WITHOUT, resume=True)
    assert again.metrics == folder.result()


def test_all_but_the_page_is_the_same_also_to_those_who_look_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = vitlab.recipe("digits", data="digits", **QUICK, patience=1)
    runs = [
        vitlab.train(recipe, tmp_path / name, host=Host(report=report, check_duplicates="no"))
        for name, report in (("with", "yes"), ("without", "no"))
    ]
    one, other = (each.folder for each in runs)
    assert {each.name for each in one.iterdir()} - {each.name for each in other.iterdir()} == {
        "report.html"
    }
    assert kept(runs[0].metrics) == kept(runs[1].metrics)
    assert sha256(one / "model/model.safetensors") == sha256(other / "model/model.safetensors")
    answers = [load_file(each / "predictions.safetensors") for each in (one, other)]
    assert all((answers[0][name] == answers[1][name]).all() for name in answers[0])
    page = tmp_path / "compare.html"
    assert not call(capsys, "compare", str(one), str(other), "--out", str(page))[0]
    assert "with/report.html" in page.read_text()
    assert "without/report.html" not in page.read_text()
    words = ("evaluate", str(other), "digits", "--calibrate", "--json")
    code, printed, said = call(capsys, *words)
    assert not code, said
    assert "report" not in json.loads(printed)
    assert not (other / "report.html").exists()
    line = ["train", "digits", "--report", "no", "--out", str(other), "--resume"]
    code, printed, said = call(capsys, *line)
    assert not code, said
    assert "report.html" not in printed + said
    (one / "report.html").unlink()  # what was removed by hand is not named either
    assert "report" not in (RunFolder(one).result() or {})
