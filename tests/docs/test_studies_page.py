"""The study of the tutorial on studies is a study: it runs, and its claims are about its rows."""

from pathlib import Path

import pytest

import vitlab
from docs.pages import ROOT, blocks
from vitlab.recipes.recipe import Host


def test_the_study_of_your_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks(ROOT / "docs" / "tutorials" / "study.md", "py")
    names: dict[str, object] = {"__name__": "__main__"}
    asked: list[object] = []

    def shorter(study: object, data: str, out: str, budget: str) -> None:
        asked.append((data, out, budget))
        host = Host(device="cpu")
        result = vitlab_study(study, data, tmp_path, epochs=0.1, seeds=1, at_once=1, host=host)
        assert [row["name"] for row in result["rows"]] == [
            "token-none", "token-tenth", "mean-none", "mean-tenth",
        ]  # fmt: skip
        assert {claim["verdict"] for claim in result["claims"]} <= {
            "not seen",
            "no effect to compare",
        }

    vitlab_study = vitlab.study
    monkeypatch.setattr(vitlab, "study", shorter)
    exec(compile(block.text, "study.md", "exec"), names)
    assert asked == [("digits", "runs/warm-up", "2m")]
    assert (tmp_path / "report.html").is_file()
