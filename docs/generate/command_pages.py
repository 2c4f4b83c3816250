"""The command reference: what `vitlab COMMAND --help-all` prints, for every command."""

import contextlib
import io
import os
from unittest import mock

from vitlab.cli import main
from vitlab.command_table import COMMANDS

COLUMNS = "80"


def commands_page() -> str:
    """Return the page, one section per command, in the order of `vitlab --help`."""
    lines = [
        "# Commands",
        "",
        "Each section is what the command prints with `--help-all`; `--help` leaves out the groups",
        "of options that few people use. Results go to stdout (one JSON object with `--json`),",
        "progress and messages to stderr. Exit status: 0 done, 2 an error",
        "that you can fix (one line says what and how), 75 not all done (try again later), 130",
        "interrupted, 1 a bug.",
        "",
        *_block("vitlab --help", help_text("--help")),
    ]
    for name in COMMANDS:
        lines += [
            f"## vitlab {name}",
            "",
            *_block(f"vitlab {name} --help-all", help_text(name, "--help-all")),
        ]
    return "\n".join(lines)


def help_text(*words: str) -> str:
    """Return what `vitlab WORDS` prints, for a terminal of 80 columns."""
    printed = io.StringIO()
    with (
        mock.patch.dict(os.environ, {"COLUMNS": COLUMNS, "NO_COLOR": "1"}),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main(words)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def _block(command: str, text: str) -> list[str]:
    return ["```text", f"$ {command}", text, "```", ""]
