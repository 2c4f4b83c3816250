"""What is optional never decides the exit status: caches that cannot be written, fonts, homes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from conftest import call, environment, photo_folder
from vitlab.inspect import plots


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures in two classes, one with a name that few fonts have, and a model of them."""
    place = tmp_path_factory.mktemp("optional")
    photo_folder(place / "photos", {"猫": 12, "red": 12}, 16, 16)
    torch.manual_seed(0)
    shape = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    vitlab.save(vitlab.create(shape, 2, 8, labels=("red", "猫")), place / "model")
    return place


def a_file(place: Path) -> str:
    """No folder."""
    (place / "file").write_text("x")
    return str(place / "file")


PLACES: dict[str, Callable[[Path], str]] = {
    "a file": a_file,
    "below a file": lambda place: f"{a_file(place)}/cache",
    "a device": lambda place: "/dev/full",
    "where nothing can be made": lambda place: "/proc/vitlab/cache",
}
VARIABLES = ("VITLAB_CACHE", "XDG_CACHE_HOME", "HOME")


@pytest.fixture(params=[*PLACES])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A place that cannot be written, which all variables name."""
    found = PLACES[request.param](tmp_path)
    for name in VARIABLES:
        monkeypatch.setenv(name, found)
    return found


COMMANDS = (
    ("probe", "photos", "--from", "model", "--out", "run"),
    ("fewshot", "model", "photos", "--shots", "2"),
    ("finetune", "photos", "--from", "model", "--epochs", "1", "--head-start", "probe"),
    ("predict", "model", "photos"),
    ("evaluate", "model", "photos"),
    ("embed", "model", "photos", "--out", "x.parquet"),
    ("duplicates", "photos"),
    ("prepare", "photos", "copy", "--format", "tar"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_no_cache_no_matter(
    words: tuple[str, ...], place: str, folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "model"):
        (tmp_path / name).symlink_to(folder / name)
    workers = () if words[0] in ("fewshot", "predict") else ("--workers", "0")
    status, out, err = call(capfd, *words, *workers, "--json")
    assert status == 0, err
    json.loads(out)
    if words[0] in ("probe", "fewshot"):
        lines = [line for line in err.splitlines() if "in memory" in line]
        assert len(lines) == 1
        assert lines[0].startswith(f"cannot write {place}")
        assert lines[0].endswith("features are in memory alone; VITLAB_CACHE=FOLDER keeps them")
        assert "features are kept in" not in err
    if words[0] == "prepare":  # its shards have an index, which is kept where it can be
        assert call(capfd, "evaluate", "model", "copy", "--workers", "0", "--json")[0] == 0


def test_the_advice_keeps_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VITLAB_CACHE", str(tmp_path / "new"))
    status, _, err = call(capsys, "fewshot", "model", "photos", "--shots", "2")
    assert status == 0
    assert f"features are kept in {tmp_path / 'new' / 'features'}" in err
    assert len([*(tmp_path / "new" / "features").glob("*.safetensors")]) == 2


def mounted(place: Path, *options: str) -> bool:
    """Mount a small file system in memory, if this user may."""
    place.mkdir()
    words = ["mount", "-t", "tmpfs", *options, "none", str(place)]
    return not subprocess.run(words, capture_output=True, check=False).returncode


def test_a_full_disk_and_one_that_is_read_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    cache = tmp_path / "cache"
    if os.getuid() or not mounted(cache, "-o", "size=64k"):
        pytest.skip("only root can mount")
    try:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("VITLAB_CACHE", str(cache))
        words = ("fewshot", "model", "photos", "--shots", "2", "--json")
        (cache / "rest").write_bytes(bytes(52_000))
        status, full, err = call(capsys, *words)
        assert status == 0
        assert "no space left on device: features are in memory alone" in err
        (cache / "rest").unlink()
        status, kept, err = call(capsys, *words)
        assert "features are kept in" in err
        remount = ["mount", "-o", "remount,ro", str(cache)]
        subprocess.run(remount, check=True)
        status, again, err = call(capsys, *words)
        assert status == 0
        assert "in memory" not in err  # they are there, and are read
        figures = [json.loads(each)["fewshot"] for each in (full, kept, again)]
        assert figures[0] == figures[1] == figures[2]
    finally:
        subprocess.run(["umount", "-l", str(cache)], check=False)


def test_matplotlib_says_nothing_of_its_cache() -> None:
    code = "import vitlab.progress, matplotlib, logging; logging.getLogger('x').warning('heard')"
    for name in ("HOME", "MPLCONFIGDIR"):
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True,
            env=environment(**{name: "/proc/vitlab"}),
        )  # fmt: skip
        assert done.stderr == b"heard\n"  # others' lines, in a program of others


def test_characters_that_no_font_has_are_no_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    """Warnings are errors in tests."""
    monkeypatch.chdir(folder)
    out = tmp_path / "seen"
    status, _, err = call(capfd, "inspect", "model", "photos/猫/000.png", "--out", str(out))
    assert status == 0
    assert "Glyph" not in err
    figure = plots.attention_distance(np.ones((2, 3)), "猫 🐈 \U00012000")
    figure.savefig(tmp_path / "a.png", bbox_inches="tight")


def test_lines_of_other_libraries_reach_nobody(folder: Path, tmp_path: Path) -> None:
    """In the process of the command."""
    code = (
        "import logging, warnings, vitlab.progress, vitlab.__main__ as m; "
        "m.hush(); warnings.warn('w'); logging.getLogger('absl').warning('a'); "
        "logging.getLogger('urllib3.connectionpool').error('b'); "
        "logging.getLogger('vitlab').warning('ours')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True,
                          env=environment())  # fmt: skip
    assert done.stderr == b"ours\n"
