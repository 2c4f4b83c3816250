"""The runs that tests share: made once, again where that failed, and watched for changes."""

from pathlib import Path

import pytest

from six_runs import SixRuns


def test_the_first_who_asks_makes_a_run_and_a_change_is_noticed(tmp_path: Path) -> None:
    made = list[Path]()

    def make(place: Path) -> None:
        made.append(place)
        (place / "run").mkdir()
        (place / "run" / "run.toml").write_text("seed = 0")
        if len(made) == 1:
            raise OSError("no space left on device")

    makers = {"tiny": make}
    mine, other = SixRuns(tmp_path / "shared", makers), SixRuns(tmp_path / "shared", makers)
    with pytest.raises(OSError, match="no space left"):
        mine.folder("tiny")
    assert mine.folder("tiny") == other.folder("tiny") == tmp_path / "shared" / "tiny" / "run"
    assert len(made) == 2
    (mine.folder("tiny") / ".lock").touch()  # who reads a run may leave it
    assert mine.changed() == other.changed() == []
    (mine.folder("tiny") / "report.html").touch()
    (mine.folder("tiny") / "run.toml").write_text("seed = 11")
    assert mine.changed() == ["tiny/run/report.html", "tiny/run/run.toml"]
