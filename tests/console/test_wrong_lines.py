"""Wrong command lines and odd data: one line says what is wrong, and nothing is left behind."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from conftest import environment
from console.wrong_lines import make_world, wrong_lines
from forked import Forked

SERVER = Path(__file__).with_name("line_server.py")


@contextmanager
def server(folder: Path) -> Iterator[Any]:
    """A process that answers command lines in a folder."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment(OMP_NUM_THREADS="1", VITLAB_CACHE=str(folder.parent / "cache"),
                        XDG_CACHE_HOME=str(folder.parent / "cache"), COLUMNS="80"),
    ) as process:  # fmt: skip
        assert process.stdin
        assert process.stdout
        assert "ready" in json.loads(process.stdout.readline())

        def ask(words: list[str]) -> dict[str, Any]:
            process.stdin.write(json.dumps(words) + "\n")
            process.stdin.flush()
            return dict(json.loads(process.stdout.readline()))

        yield ask
        process.stdin.close()


def files(folder: Path) -> set[str]:
    """Everything below a folder."""
    return {
        str((Path(place) / name).relative_to(folder))
        for place, folders, names in os.walk(folder)
        for name in (*folders, *names)
    }


def complaints(done: dict[str, Any], new: set[str]) -> list[str]:
    """What is wrong with an answer to a wrong line."""
    lines = done["err"].splitlines()
    errors = [line for line in lines if line.startswith("vitlab")]
    found = []
    if done["ended"] == "silent":
        found.append("silent")
    elif done["ended"]:
        return []  # it was valid, and showed what it did
    elif done["code"] not in (0, 2):
        found.append(f"exit status {done['code']}")
    if "Traceback" in done["err"]:
        found.append("traceback")
    if done["code"] == 2 and (len(errors) != 1 or not lines[-1].startswith("vitlab")):
        found.append("not one line of error")
    if done["code"] == 2 and len(lines[-1]) > 600:
        found.append("a long line")
    if done["code"] == 2 and new:
        found.append(f"left {sorted(new)[:3]}")
    if [name for name in new if Path(name).name.startswith(".") and Path(name).name != ".lock"]:
        found.append(f"left a draft {sorted(new)[:3]}")
    return found


@contextmanager
def forks(folder: Path) -> Iterator[Any]:
    """The same by forks of this process, which has imported nearly everything: for few lines."""

    def ask(words: list[str]) -> dict[str, Any]:
        process = Forked(words)
        return {"code": process.wait(), "err": process.err, "ended": ""}

    with chdir(folder):
        yield ask


def run(
    folder: Path, count: int, seed: int, answering: Any = server, report: Path | None = None
) -> list[str]:
    """Answer wrong lines; return those with complaints."""
    make_world(folder)
    bad = []
    with answering(folder) as ask:
        for words in islice(wrong_lines(folder, seed), count):
            before = files(folder)
            done = ask(words)
            new = files(folder) - before
            for name in sorted(new, reverse=True):
                place = folder / name
                place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
            found = complaints(done, new)
            if report:
                with report.open("a", encoding="utf-8", errors="backslashreplace") as stream:
                    stream.write(json.dumps(done | {"complaints": found}) + "\n")
            if found:
                bad.append(f"{found}: {words!r}: {done['err'][-300:]}")
    return bad


def test_a_sample_of_wrong_lines(tmp_path: Path) -> None:
    assert run(tmp_path / "world", 5, 0, forks) == []


@pytest.mark.campaign
def test_a_thousand_wrong_lines(tmp_path: Path) -> None:
    """VITLAB_LINES sets their number, VITLAB_SEED the seed, VITLAB_REPORT a file of answers."""
    count, seed = (
        int(os.environ.get("VITLAB_LINES", "1000")),
        int(os.environ.get("VITLAB_SEED", "1")),
    )
    place = os.environ.get("VITLAB_REPORT")
    bad = run(tmp_path / "world", count, seed, report=Path(place) if place else None)
    assert not bad, f"{len(bad)} of {count}:\n" + "\n".join(bad)
