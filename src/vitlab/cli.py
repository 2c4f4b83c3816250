"""The command line: find the command, parse, run, print. Nothing heavy is imported early."""

import gc
import importlib
import io
import json
import logging
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from vitlab.command_table import COMMANDS, Command, command_named
from vitlab.console.interrupts import Interrupts
from vitlab.console.screen import screen_output
from vitlab.effort import FULL, Effort
from vitlab.errors import (
    ODD,
    OptionError,
    UserError,
    as_user_error,
    cut_long,
    locale_line,
    read_by_command,
    reads_utf8,
)
from vitlab.machine.cores import limit_threads

if TYPE_CHECKING:
    from vitlab.options import Options

HELP = {"-h", "--help", "--help-all"}
VERSION = {"-V", "--version"}
OVERVIEW = """usage: vitlab COMMAND [OPTIONS]

The Vision Transformer workbench. To begin: vitlab finetune PHOTOS, a folder of
class folders; or, without a network, vitlab train digits

commands:
{}

vitlab COMMAND --help lists the options of a command, vitlab --version prints
the version. Results go to stdout (one JSON object with --json), messages to
stderr. Exit status: 0 done, 2 an error you can fix, 1 a bug, 130
interrupted."""


def main(
    argv: Sequence[str] | None = None,
    interrupts: Interrupts | None = None,
    effort: Effort = FULL,
) -> NoReturn:
    """Run a command and exit: 0 done, 2 the user can fix it, 130 interrupted, 1 bug.

    Args:
        argv: the words after `vitlab`; None for those of this process
        interrupts: what handles this process's signals; None to leave them alone
        effort: how thoroughly the figures of a run are worked out
    """
    interrupts = interrupts or Interrupts()
    os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # for what Apple's GPU lacks
    limit_threads()
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may be any bytes
        sys.stdout.reconfigure(errors="backslashreplace")
    with screen_output():
        _answer(list(sys.argv[1:] if argv is None else argv), interrupts, effort)


def _answer(words: list[str], interrupts: Interrupts, effort: Effort) -> NoReturn:
    """Do what the words say, and exit."""
    if words[:1] == ["help"]:  # help COMMAND
        words = [*words[1:], "--help"]
    name = words[0] if words else "--help"
    try:
        if name in HELP:
            print(overview())
        elif name in VERSION:
            from vitlab.packages import version_of

            print(f"vitlab {version_of('vitlab')}")
        else:
            command = command_named(name)
            interrupts.prog = f"vitlab {name}"
            copy_context().run(_run, name, command, words[1:], interrupts, effort)  # quiet or not
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it
        _let_go()
    except (Exception, KeyboardInterrupt) as error:
        if interrupts.asked and not isinstance(error, KeyboardInterrupt):
            error = KeyboardInterrupt()  # what an interrupted import may become
        _explain(error, interrupts.prog)
    sys.exit(0)


def overview() -> str:
    """Return what `vitlab --help` prints."""
    return OVERVIEW.format(
        "\n".join(f"  {name:<10}  {command.summary}" for name, command in COMMANDS.items())
    )


def _explain(error: BaseException, prog: str) -> NoReturn:
    """Exit with one line for the user; a bug keeps its traceback."""
    error = as_user_error(error)
    status, text = 130, str(error) or "interrupted"
    if isinstance(error, UserError):
        status, text = error.status, str(error)
    elif not isinstance(error, KeyboardInterrupt):
        raise error
    _let_go()
    if text and not getattr(error, "quiet", False):
        if not reads_utf8() and ODD.search(text) and (why := locale_line()) not in text:
            text = f"{text} ({why})"
        print(f"{prog}: {cut_long(text)}", file=sys.stderr)
    sys.exit(status)


def _let_go() -> None:
    """Write what is left of the output, or give it up: Python would try again as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@read_by_command()
def _run(
    name: str, command: Command, words: list[str], interrupts: Interrupts, effort: Effort
) -> None:
    """Run one command and print its result once, or print its help."""
    from vitlab.console import leaves, parsing

    prog = interrupts.prog
    kind = command.kind
    asked = [word for word in words if word not in HELP]
    given = parsing.parse(kind, asked)
    as_json = given.pop("json", False)
    if given.pop("quiet", False):
        from vitlab.progress import QUIET

        QUIET.set(True)
    missing = leaves.missing(kind, given)
    if asked != words:
        start = kind if missing else command.options(given)
        from vitlab.console.help_page import help_text

        about = command.about() if command.about else ""
        print(help_text(start, prog, COMMANDS[name].summary, "--help-all" in words) + about)
        return
    if missing:
        raise OptionError(
            f"missing {missing[0]}; usage: {prog} {' '.join(leaves.missing(kind, {}))}"
        )
    options: Any = command.options(given)
    if hasattr(options, "command"):
        options = replace(options, command=f"{prog} {shlex.join(words)}")
    if hasattr(options, "with_effort"):
        options = options.with_effort(effort)
    _begin(command, options, given, prog)
    from vitlab.progress import named_if_slow

    with named_if_slow(prog, not command.lasts, by_itself=False):
        if not command.is_light:
            with named_if_slow("loading PyTorch"):
                import_torch()  # here, while a signal may end the process at once
        interrupts.started()
        result: dict[str, Any] = command.run(options)
    if as_json and result:
        print(json_line(result))  # in ASCII: no locale can spoil it
    elif result:
        from vitlab.terminal import print_figures

        (command.show or print_figures)(result)


def json_line(result: dict[str, Any]) -> str:
    """Return the result of a command as one line of JSON, in ASCII; NaN and infinity are null."""
    try:
        return json.dumps(result, allow_nan=False)
    except ValueError:  # JSON has no such numbers, though Python reads and writes them
        return json.dumps(json.loads(json.dumps(result), parse_constant=lambda name: None))


def import_torch() -> None:
    """Import PyTorch, unless it is there, without looking for garbage: there is none.

    The garbage collector would take a tenth of the import's time; and as much again, twice, when
    Python ends and looks through all that was imported. So that is left out for good.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    torch = importlib.import_module("torch")
    gc.freeze()
    gc.enable()
    if "TORCH_LOGS" not in os.environ:  # what the compiler thinks of the machine
        torch._logging.set_logs(all=logging.CRITICAL)


def _begin(command: Command, options: "Options", given: Iterable[str], prog: str) -> None:
    """Refuse what cannot be there before PyTorch is imported; of several processes, later.

    Several processes agree on an error, so that only one of them reports it.
    """
    from vitlab.console.existence import check_named
    from vitlab.console.leaves import leaves_of
    from vitlab.packages import check_installed

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return
    for leaf in leaves_of(options):
        if leaf.about.check and leaf.name in given:
            check_named(leaf.about.check, leaf.default)
    for package in command.needs:
        check_installed(package, prog)
    if command.begin:
        command.begin(options)
