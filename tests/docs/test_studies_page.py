"""The study of the tutorial on studies is a study: it runs, and its claims are about its rows."""

from functools import partial
from pathlib import Path

import pytest

import vitlab
from conftest import fewer_digits
from docs.pages import ROOT, blocks
from studies.small import HOST, untimed
from vitlab.studies import study as engine


def test_the_study_of_your_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks(ROOT / "docs" / "tutorials" / "study.md", "py")
    asked: list[object] = []
    whole = partial(vitlab.study, epochs=0.1, seeds=1, at_once=1, host=HOST)

    def shorter(study: object, data: str, out: str, budget: str) -> None:
        asked.append((data, out, budget))
        result = whole(study, data, tmp_path)
        assert [row["name"] for row in result["rows"]] == [
            "token-none", "token-tenth", "mean-none", "mean-tenth",
        ]  # fmt: skip
        verdicts = {claim["verdict"] for claim in result["claims"]}
        assert verdicts <= {"not seen", "no effect to compare"}

    monkeypatch.setattr(vitlab, "study", shorter)
    monkeypatch.setattr(engine, "timed", untimed)
    with fewer_digits():
        exec(compile(block.text, "study.md", "exec"), {"__name__": "__main__"})
    assert asked == [("digits", "runs/warm-up", "2m")]
    assert (tmp_path / "report.html").is_file()
