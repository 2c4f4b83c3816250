"""Refused command lines, a table: the line, the files that it names, and what is said.

Tables of `*.toml` beside this file have rows `"line" = "message"`, and those of `contents.toml`
rows `"content of a file" = "message"`. A name in braces is the place of files that a function of
`files.py` makes; `…` at the end of a message stands for what a library or a machine adds. The
line of error has `vitlab COMMAND: ` before it.
"""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import refusals.data_files
import refusals.weights_files
import refusals.zip_files  # noqa: F401, whose makers these rows name
from conftest import call
from golden.rules import without_progress
from refusals.files import MAKERS
from vitlab.command_table import COMMANDS

LEARNING = ("train", "finetune", "pretrain", "probe")  # first they say what they begin
LONGEST = 600  # characters of a line of error
NAME = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Refusal:
    """A line, and what is said of it.

    Attributes:
        line: words after `vitlab`, with names of files in braces
        message: likewise
        file: in which `content` stands, from the folder of the tests' files; "" for none
        content: what is wrong, where the files are right
    """

    line: str
    message: str
    file: str = ""
    content: str = ""


def _tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every table by its name."""
    for file in sorted(Path(__file__).parent.glob("*.toml")):
        for topic, table in tomllib.loads(file.read_text(encoding="utf-8")).items():
            yield f"{file.stem}, {topic}", table


def _refusals() -> Iterator[tuple[str, Refusal]]:
    """Every row, with a name for its test."""
    for topic, table in _tables():
        if "contents" not in table:
            for line, message in table.items():
                yield f"{topic}: {line!a}", Refusal(line, message)
            continue
        for content, message in table["contents"].items():
            refusal = Refusal(table["line"], message, table["file"], content)
            yield f"{topic}: {content!a}", refusal


REFUSALS = dict(_refusals())


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the named files are made, each by the first line that asks for it."""
    return tmp_path_factory.mktemp("refusals")


def _fill_in(text: str, root: Path) -> str:
    """Return a text with places instead of names, whose files are there."""
    for name in NAME.findall(text):
        if not (root / name).exists():
            (root / name).mkdir()
            MAKERS[name](root / name)
    return NAME.sub(lambda found: str(root / found[1]), text)


def _read_times(line: str, root: Path) -> dict[Path, int]:
    """When each of the files that a line names was last changed."""
    return {
        file: file.lstat().st_mtime_ns
        for name in NAME.findall(line)
        for file in (root / name).rglob("*")
    }


def test_every_name_is_that_of_files_and_all_files_are_named() -> None:
    texts = [f"{each.line} {each.message} {each.file}" for each in REFUSALS.values()]
    assert {name for text in texts for name in NAME.findall(text)} == {*MAKERS}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_is_refused_in_one_line(
    name: str, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refusal = REFUSALS[name]
    root = tmp_path if refusal.file else root
    words = [_fill_in(word, root) for word in shlex.split(refusal.line)]
    if refusal.file:
        Path(_fill_in(refusal.file, root)).write_text(refusal.content, encoding="utf-8")
    before = _read_times(refusal.line, root)
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, ""), err
    *first, last = err.splitlines(keepends=True)
    title = without_progress("".join(first))
    assert title.count("\n") <= (words[0] in LEARNING), err
    command = f"vitlab {words[0]}" if words[0] in COMMANDS else "vitlab"
    expected = f"{command}: {_fill_in(refusal.message, root)}"
    if expected.endswith("…"):
        last = last[: len(expected) - 1] + "…\n"
    assert last == f"{expected}\n"
    assert len(last) <= LONGEST
    assert _read_times(refusal.line, root) == before
    assert not list(Path().iterdir())  # no runs/ either
