"""`make gpu`: parts in processes of their own, kept, resumed, stopped in time, and read off."""

import contextlib
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from absent import without
from conftest import environment
from docs.pages import ROOT
from steady import PATIENCE

pytestmark = pytest.mark.benchmarks

FOLDER = ROOT / "benchmarks"
ABSENT = ("shtab", "datasets", "pytorch_optimizer", "simplejpeg", "tomli_w", "sklearn",
          "matplotlib", "jinja2", "threadpoolctl", "onnx", "fastapi", "peft",
          "torchao")  # fmt: skip


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("gpu")


def call(gpu: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", *words])
    gpu.main()


@pytest.mark.slow
def test_a_dry_run_needs_torch_timm_and_transformers_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(without(*ABSENT))
    around = environment(TORCH_COMPILE_DISABLE="1")  # compiling takes half of the time
    around["PYTHONPATH"] = os.pathsep.join([str(tmp_path), around["PYTHONPATH"]])
    words = ["--dry-run", "--out", str(tmp_path / "out"), "--parts", "rates", "inference"]
    done = subprocess.run(
        [sys.executable, str(FOLDER / "gpu.py"), *words], env=around, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # of a rate in bf16, which some processors emulate
    assert re.search(r"\| inference, share of the rate \| at least 0.6 \| \d", done.stdout)
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| bf16 | 128 |" in report
    for form in (
        "ours",
        "ours accelerated",
        "timm",
        "transformers",
        "ours compiled",
        "timm compiled",
    ):
        assert f"| {form} |" in report, form
    assert str(ROOT) not in report
    assert sys.executable not in report
    kept = json.loads((tmp_path / "out" / "parts" / "rates.json").read_text())
    assert (kept["state"], kept["about"]["device"]) == ("done", "cpu")


def test_a_second_call_goes_on_and_tries_again_what_failed(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, made, bad = [0.0], [], {"rates", "train"}

    def run(words: list[str], limit: float, dry: bool) -> dict[str, Any]:
        part = next(p for p in gpu.PARTS if gpu.command(p, dry, tmp_path, None) == words)
        made.append(part.name)
        assert limit <= part.limit
        clock[0] += 100
        state = "failed" if part.name in bad else "done"
        kept = {"command": words[1:], "state": state, "seconds": 100.0, "date": "2026-11-22"}
        return kept | {"stdout": f"of {part.name}", "stderr": "why", "status": 0}

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(gpu, "lacks", lambda words: "")
    monkeypatch.setattr(gpu.time, "monotonic", lambda: clock[0])
    words = ("--dry-run", "--out", str(tmp_path))
    usual = [part.name for part in gpu.PARTS if not part.asked]
    with pytest.raises(SystemExit, match="1"):
        call(gpu, monkeypatch, *words)
    assert (len(made), made[:4]) == (6, usual[:4])
    assert f"{len(usual) - 6} parts are left" in capsys.readouterr().out
    bad.clear()
    first = list(made)
    for _ in range(4):
        with contextlib.suppress(SystemExit):
            call(gpu, monkeypatch, *words)
    again = made[len(first) :]
    assert again[-2:] == ["rates", "train"]  # the failed ones, after all that were missing
    assert sorted(first + again[:-2]) == sorted(usual)
    report = (tmp_path / "report.md").read_text()
    assert all(f"of {name}\n" in report for name in usual)
    assert "## CIFAR-10 from scratch\nNot measured." in report


def test_results_of_another_machine_are_not_mixed_in(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "rates.json").write_text('{"about": {"device": "another"}}')
    with pytest.raises(SystemExit, match=r"was measured with.*another.*choose another folder"):
        call(gpu, monkeypatch, "--dry-run", "--out", str(tmp_path))


def test_without_a_gpu_it_says_what_would_work(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="2"):
        call(gpu, monkeypatch)
    assert "finds no GPU: add --dry-run" in capsys.readouterr().err


def test_rows_are_kept_of_a_part_that_is_stopped_or_fails(gpu: Any) -> None:
    code = f"print('| a |', flush=True); import time; time.sleep({PATIENCE})"
    parts = (gpu.run([sys.executable, "-c", code], limit, True) for limit in (0.5, 5.0, 50.0))
    stopped = next(part for part in parts if part["stdout"])  # had it time to print
    assert (stopped["state"], stopped["stdout"]) == ("stopped", "| a |\n")
    failed = gpu.run([sys.executable, "-c", "print('| b |', flush=True); 1 / 0"], PATIENCE, True)
    assert (failed["state"], failed["stdout"]) == ("failed", "| b |\n")
    assert "ZeroDivisionError" in failed["stderr"]


TABLES = """a line
| model | batch | form | images/s | share |
| --- | --- | --- | --- | --- |
| B/16 | 64 | ours | 1,000.5 | 41.0% |
| B/16 | 64 | ours compiled | 3,000.0 | 63.5% |
| B/16 | 64 | timm compiled | 2,000.0 | 42.3% |

| model | batch | 36x1 | 18x2 wide |
| --- | --- | --- | --- |
| S | 1 | 100.0 (1.00) | 190.0 (1.90) |
| S | 64 | 100.0 (1.00) | 95.0 (0.95) |
"""


def test_goals_are_read_off_the_tables(gpu: Any) -> None:
    report = importlib.import_module("gpu_report")
    kept = {name: {"stdout": TABLES, "state": "done"} for name in ("inference", "parallel-graphs")}
    text = report.goals(kept, dry=False)
    assert "| inference, share of the rate | at least 0.6 | 0.635 | yes |" in text
    assert "| inference, images/s over timm compiled | at least 1.25 | 1.500 | yes |" in text
    assert "| S18x2 over S36x1, one image, graphs | at least 1.8 | 1.900 | yes |" in text
    assert "| S18x2 over S36x1, worst batch, graphs | at least 1 | 0.950 | no |" in text
    assert "| B18x2 over B36x1, one image, graphs | at least 1.8 | not measured | |" in text
    assert "| ViT-L/16 at rate 0.4, images/s over timm | at least 1.4 | not measured | |" in text


def test_time_in_which_a_kernel_ran_is_counted_once(gpu: Any) -> None:
    joined = importlib.import_module("gpu_profile").joined
    assert joined([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0), (5.2, 5.5)]) == 4.0
    assert joined([]) == 0.0


def test_every_part_names_options_that_its_script_has(gpu: Any) -> None:
    """Read from the source: a GPU is needed to run them as they stand."""
    for part in gpu.PARTS:
        script = FOLDER / part.words.split()[0]
        if script.suffix != ".py" or not script.exists():
            continue
        known = script.read_text()
        for word in f"{part.words} {part.dry}".split():
            if word.startswith("--") and word != "--help":
                assert f'"{word}"' in known, (part.name, word)
