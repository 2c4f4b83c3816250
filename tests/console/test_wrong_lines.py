"""Wrong command lines and odd data: one line says what is wrong, and nothing is left behind."""

import json
import os
from contextlib import chdir
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from console.wrong_lines import make_world, wrong_lines
from forked import Forked


def files(folder: Path) -> set[str]:
    """Everything below a folder."""
    return {
        str((Path(place) / name).relative_to(folder))
        for place, folders, names in os.walk(folder)
        for name in (*folders, *names)
    }


def complaints(code: int, err: str, new: set[str]) -> list[str]:
    """What is wrong with an answer to a wrong line."""
    lines, found = err.splitlines(), []
    if code not in (0, 2):
        found.append(f"exit status {code}")
    if "Traceback" in err:
        found.append("traceback")
    if code == 2:
        errors = [line for line in lines if line.startswith("vitlab")]
        if len(errors) != 1 or lines[-1] != errors[0] or len(lines[-1]) > 600:
            found.append("not one short line of error")
        if new:
            found.append(f"left {sorted(new)[:3]}")
    if [name for name in new if Path(name).name.startswith(".") and Path(name).name != ".lock"]:
        found.append(f"left a draft {sorted(new)[:3]}")
    return found


def run(folder: Path, count: int, seed: int, report: str = "") -> list[str]:
    """Answer wrong lines in forks of this process, which has imported nearly everything."""
    make_world(folder)
    bad = []
    with chdir(folder):
        for words in islice(wrong_lines(folder, seed), count):
            before, process = files(folder), Forked(words)
            code = process.wait()
            new = files(folder) - before
            for name in sorted(new, reverse=True):
                place = folder / name
                place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
            answer: dict[str, Any] = {"words": words, "code": code, "err": process.err}
            answer["complaints"] = complaints(code, process.err, new)
            if report:
                with Path(report).open("a", encoding="utf-8", errors="backslashreplace") as stream:
                    stream.write(json.dumps(answer) + "\n")
            if answer["complaints"]:
                bad.append(f"{answer['complaints']}: {words!r}: {process.err[-300:]}")
    return bad


def test_a_sample_of_wrong_lines(tmp_path: Path) -> None:
    assert run(tmp_path / "world", 5, 0) == []


@pytest.mark.campaign
def test_a_thousand_wrong_lines(tmp_path: Path) -> None:
    """VITLAB_LINES sets their number, VITLAB_SEED the seed, VITLAB_REPORT a file of answers."""
    count, seed = (
        int(os.environ.get(name, usual))
        for name, usual in (("VITLAB_LINES", "1000"), ("VITLAB_SEED", "1"))
    )
    bad = run(tmp_path / "world", count, seed, os.environ.get("VITLAB_REPORT", ""))
    assert not bad, f"{len(bad)} of {count}:\n" + "\n".join(bad)
