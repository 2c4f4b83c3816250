"""`vitlab completion`: a script by which a shell completes commands, options and their values."""

import argparse
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from vitlab.command_table import COMMANDS, Command, command_named
from vitlab.console.leaves import Leaf, all_leaves, kinds_of, shape_of
from vitlab.options import Options, argument


@dataclass(frozen=True, kw_only=True)
class Completion(Options):
    """Options of `vitlab completion`."""

    shell: Literal["bash", "zsh", "fish"] = argument("bash, zsh or fish")


def about() -> str:
    """Return what the help ends with: where each shell looks for such a script."""
    return """

The script of each shell belongs into a file:
  bash  ~/.local/share/bash-completion/completions/vitlab
  zsh   _vitlab, in a folder of your $fpath
  fish  ~/.config/fish/completions/vitlab.fish"""


def run(options: Completion) -> dict[str, Any]:
    """Return the script."""
    import shtab

    return {"shell": options.shell, "script": shtab.complete(_everything(), options.shell)}


def show(result: dict[str, Any]) -> None:
    """Print the script."""
    print(result["script"])


def _everything() -> argparse.ArgumentParser:
    """Return a parser of all commands with all their options."""
    parser = argparse.ArgumentParser("vitlab", description="The Vision Transformer workbench.")
    parsers = parser.add_subparsers()
    for name in sorted(COMMANDS):
        command_parser = parsers.add_parser(name, help=COMMANDS[name].summary)
        for leaf in all_leaves(command_named(name).kind):
            _add(command_parser, leaf)
    return parser


def _add(parser: argparse.ArgumentParser, leaf: Leaf) -> None:
    """Add an option with the words that it may be, or an argument, which may be a file."""
    import shtab

    words = list(leaf.about.choices()) if leaf.about.choices else []
    for kind in kinds_of(leaf.hint):
        words += [str(word) for word in get_args(kind)] if get_origin(kind) is Literal else []
    name, count = (leaf.name, "*") if leaf.about.positional else (leaf.flag, shape_of(leaf)[0])
    if leaf.is_flag:
        place = parser.add_argument(name, action=argparse.BooleanOptionalAction)
    else:
        place = parser.add_argument(name, nargs=count, choices=words or None)
    place.help = leaf.about.help.replace("%", "%%")
    if not words and not leaf.is_flag:
        place.complete = shtab.FILE  # type: ignore[attr-defined]


COMMAND = Command(run, show=show, about=about, is_light=True)
