"""Effort: tests take less of it, and nothing that a run learns or keeps says how much."""

import json
from pathlib import Path

import pytest

from conftest import BRIEF, QUICK, call
from vitlab.effort import Effort
from vitlab.evaluation.intervals import RESAMPLES, affordable
from vitlab.recipes.recipe import Host


def test_it_is_no_option() -> None:
    brief = Host(workers=0, effort=BRIEF)
    assert brief.as_table() == Host(workers=0).as_table()
    assert Host.from_dict(brief.as_dict()).effort == Effort()
    assert (brief.draws_report, Host().draws_report) == (False, True)
    assert not Host(report="no").draws_report
    assert "effort=" in repr(brief)


def test_resamples_are_at_most_so_many() -> None:
    assert [affordable(1000), affordable(1000, 100), affordable(10**9)] == [1000, 100, 200]
    assert affordable(10**9, 100) == 100
    assert affordable(1000, 0) == 0
    assert Effort().resamples == RESAMPLES


def test_a_command_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = []
    for name, effort in (("brief", BRIEF), ("more", Effort(report=False))):
        words = ("train", "digits", *QUICK, "--check-duplicates", "no", "--out", name, "--json")
        code, out, err = call(capsys, *words, effort=effort)
        assert code == 0, err
        found.append(json.loads(out))
        assert not Path(name, "report.html").exists()
        assert not {"effort", "resamples"} & set(Path(name, "run.toml").read_text().split())
    brief, more = found
    assert brief["nll"] == more["nll"]
    assert brief["intervals"]["nll"] != more["intervals"]["nll"]
    assert brief["intervals"]["nll"] == pytest.approx(more["intervals"]["nll"], rel=0.1)
