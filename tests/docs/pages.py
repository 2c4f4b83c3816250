"""The code blocks of the documentation, and how to run them."""

import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from vitlab.cli import main
from vitlab.command_table import command_named
from vitlab.console import leaves, parsing
from vitlab.effort import Effort
from vitlab.serve.engine import Engine
from vitlab.serve.limits import split

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, and the line where it begins."""

    language: str
    text: str
    line: int


def script(name: str) -> Any:
    """A program of `benchmarks/` as a module, whatever else has its name."""
    spec = spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    program = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(program)
    return program


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text()
    found = [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, as words; a backslash continues a line, # begins a remark."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def understood(name: str, given: list[str]) -> Any:
    """The options that a command makes of its words, all of them checked."""
    command = command_named(name)
    kind = command.kind
    values = parsing.parse(kind, given)
    assert not leaves.missing(kind, values), given
    values = {name: each for name, each in values.items() if name not in ("json", "quiet")}
    return command.options(values)


def begun(name: str, *words: str) -> None:
    """Begin a command that would not end; what it serves is loaded, and has answered once."""
    options = understood(name, [*words, "--port", "0"])
    begin = command_named(name).begin
    assert begin is not None
    begin(options)
    for each in getattr(options, "models", ()):
        Engine(device="cpu").add(*split(each))


def run(page: Path, effort: Effort) -> None:
    """Run the `python` and `sh` blocks of a page in order, in one process, here.

    Python blocks share their names. Of shell blocks only `vitlab` commands can be run. Blocks in
    other languages (`py`, `text`, `toml`) are for reading.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page, "python", "sh"):
        if block.language == "python":
            text = "\n" * block.line + block.text  # errors name the page's own line
            exec(compile(text, str(page), "exec"), names)
            continue
        for program, *words in commands(block):
            assert program == "vitlab", f"{page.name}:{block.line} runs {program}"
            if words[0] in ("serve", "explore"):
                begun(*words)
                continue
            with pytest.raises(SystemExit) as stop:
                main(words, effort=effort)
            assert not stop.value.code, f"{page.name}:{block.line}: vitlab {shlex.join(words)}"
