"""What programs read is the same in every locale; lines name the locale where it is the cause."""

import io
import json
import logging
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vitlab
from conftest import environment, photo_folder
from vitlab.cli import json_line, main
from vitlab.errors import DataError
from vitlab.serve.logs import Lines

NAMES = ("Über", "猫 😀")
ODD = "caf\udce9.png"  # no UTF-8
ENCODINGS = [("utf-8", "strict"), ("ascii", "surrogateescape"), ("cp1252", "replace")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of odd names in classes of odd names, and a model of these classes."""
    place = tmp_path_factory.mktemp("odd")
    photos = photo_folder(place / "photos", dict.fromkeys(NAMES, 3), 16, 16)
    first, second, third = sorted((photos / NAMES[0]).iterdir())
    first.rename(first.with_name("Ü 😀.png"))
    second.rename(second.with_name(ODD))
    third.write_bytes(b"x")
    third.rename(third.with_name("bad\udcff.png"))
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 8, labels=NAMES)
    vitlab.save(model, place / "model")
    return place


def printed(encoding: str, errors: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> bytes:
    """Run a command whose stdout has an encoding; return its bytes."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding, errors)
    monkeypatch.setattr(sys, "stdout", stream)
    with pytest.raises(SystemExit) as stop:
        main(words)
    stream.flush()
    assert not stop.value.code
    return stream.buffer.getvalue()  # type: ignore[attr-defined]


COMMANDS = (
    ("predict", "model", "photos"),
    ("evaluate", "model", "photos", "--workers", "0"),
    ("duplicates", "photos", "--workers", "0"),
    ("load-check", "model"),
)


MEASURED = ("seconds", "images_per_second", "saved", "peak_memory")


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_json_is_the_same_in_every_encoding(
    words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = []
    for encoding, errors in ENCODINGS:
        text = printed(encoding, errors, monkeypatch, *words, "--json").decode("ascii")
        result = json.loads(text, parse_constant=pytest.fail)
        found.append({key: result[key] for key in result if key not in MEASURED})
    assert all(each == found[0] for each in found)
    if words[0] == "predict":
        images = [each["image"] for each in found[0]["predictions"]]
        assert f"photos/{NAMES[0]}/{ODD}" in images
        assert {each["class"] for each in found[0]["predictions"][-1]["top"]} == set(NAMES)


@pytest.mark.parametrize(("encoding", "errors"), ENCODINGS)
def test_lines_for_people_end_in_no_traceback(
    encoding: str, errors: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert printed(encoding, errors, monkeypatch, "predict", "model", "photos")
    assert printed(encoding, errors, monkeypatch, "duplicates", "photos", "--workers", "0")


def test_numbers_that_json_lacks_are_null() -> None:
    result = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": "NaN ü", "d": {"e": None}}
    text = json_line(result)
    assert text.isascii()
    parsed = {"a": None, "b": [None, None, 1.5], "c": "NaN ü", "d": {"e": None}}
    assert json.loads(text, parse_constant=pytest.fail) == parsed


def test_lines_of_the_service_are_json_in_every_locale() -> None:
    record = logging.LogRecord("vitlab.serve", logging.INFO, "", 0, "request", None, None)
    record.fields = {"model": NAMES[1], "image": ODD}
    line = Lines().format(record)
    assert line.isascii()
    assert json.loads(line)["model"] == NAMES[1]


@pytest.mark.parametrize("layout", ["parquet", "tar"])
def test_prepare_lists_damaged_images_of_odd_names(
    layout: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = ("prepare", "photos", str(tmp_path / "out"), "--format", layout, "--workers", "0")
    printed("ascii", "strict", monkeypatch, *words)
    (line,) = (tmp_path / "out" / "bad.jsonl").read_text(encoding="utf-8").splitlines()
    assert "udcff.png: not a JPEG" in json.loads(line)["error"]


def test_a_name_that_no_text_can_hold_is_one_line(tmp_path: Path) -> None:
    model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 2, 8, labels=("a", "\udce9 b"))
    with pytest.raises(DataError, match=r"^the name '\\udce9 b' is not Unicode: rename it$"):
        vitlab.save(model, tmp_path / "model")
    assert not any(tmp_path.iterdir())


OLD = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # names of files are ASCII
TWICE = """
import contextlib
from vitlab.cli import main
for data in ("photos", "list.csv", "model/no \\u00e9"):
    with contextlib.suppress(SystemExit):
        main(["train", data, "--out", "run"])
"""


def test_an_old_locale_is_named_as_the_cause(folder: Path) -> None:
    """Not the names, which are UTF-8 and which a list spells right."""
    rows = "".join(f"photos/{NAMES[0]}/Ü 😀.png,{name}\n" for name in "ab")
    (folder / "list.csv").write_text("path,label\n" + rows, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", TWICE], env=environment(**OLD), cwd=folder, capture_output=True,
        check=True,
    )  # fmt: skip
    lines = [line for line in done.stderr.decode("ascii").splitlines() if "set PYTHONUTF8" in line]
    for line, cause in zip(lines, ("the class name", "do not exist", "no such file"), strict=True):
        assert cause in line
        assert "rename it" not in line
        assert line.count("the locale (LC_ALL=C) reads file names as ascii: set PYTHONUTF8=1") == 1
