"""`vitlab train`: JSON, the recipe on the command line, resuming, refusals."""

import json
from pathlib import Path

import pytest

from conftest import QUICK, call


def test_train_prints_one_json_object(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, photos: Path
) -> None:
    words = ["train", str(photos), "--out", str(tmp_path / "r"), "--json", "--seed", "4", *QUICK]
    words += ["--dropout", "0.1", "--no-flip", "--precision", "bf16"]
    code, out, err = call(capsys, *words)
    assert code == 0, err
    figures = json.loads(out)
    assert figures["run"] == str(tmp_path / "r")
    assert Path(figures["report"]).is_file()
    recipe = (tmp_path / "r" / "run.toml").read_text()
    for line in ("seed = 4", "dropout = 0.1", "flip = false", 'precision = "bf16"', "epochs = 1"):
        assert line in recipe
    assert "vitlab train" in recipe
    again = ["train", "--out", str(tmp_path / "r"), "--resume", "--json"]
    code, out, err = call(capsys, *again)
    assert (code, json.loads(out)) == (0, figures)


def test_a_run_is_not_overwritten(capsys: pytest.CaptureFixture[str], digits_run: Path) -> None:
    code, _, err = call(capsys, "train", "digits", "--out", str(digits_run))
    assert code == 2
    advice = "pass --resume to continue it, or choose another --out"
    assert err == f"vitlab train: {digits_run} already contains a run: {advice}\n"
    code, _, err = call(
        capsys, "train", "digits", "--out", str(digits_run), "--resume", "--lr", "0.5"
    )
    assert code == 2
    assert "was started with lr=" in err
    assert "not 0.5: leave the option out" in err
