"""The text of `--help`: what a command does, and every option with its type, text and default."""

import contextlib
import io
import re
from dataclasses import field, make_dataclass

from vitlab.console.leaves import (
    JSON,
    Leaf,
    Start,
    groups_of,
    leaves_of,
    required,
    spelled,
)
from vitlab.console.tyro_fields import run_tyro, tyro_field
from vitlab.options import Options


def help_text(start: Start, prog: str, summary: str) -> str:
    """Return the text of `--help`: every option with its type, help and default.

    Args:
        start: options whose values are shown as the defaults, or their class
        prog: the command itself, `vitlab train`
        summary: what it does
    """
    box = io.StringIO()
    with contextlib.redirect_stdout(box), contextlib.suppress(SystemExit):
        run_tyro(_nested_class(start, summary), ["--help"], prog)
    lines = [line.rstrip() for line in box.getvalue().splitlines()]
    text = "\n".join(line for line in lines if set(line) - set(" -") or not line)  # no rules
    places = [spelled(leaf) for leaf in leaves_of(start) if leaf.about.positional]
    for place in set(places) & set(required(start)):  # argparse knows no required list
        text = text.replace(f"[{place}]", f"{place}  ")
    usage = " ".join(["usage:", prog, *places, "[OPTIONS]"])
    text = text.replace("\n other-", "\n other ")
    text = re.sub(r"\Ausage:.*?\n\n", f"{usage}\n\n", text, flags=re.DOTALL)
    return re.sub(r"\n+(?=\n  )", "", text).rstrip()  # no gaps between options


def _nested_class(start: Start, summary: str) -> type:
    """Make a dataclass for tyro to lay out the help of, with one class per group of options.

    What matters first (`FIRST` of the options' class) comes before the groups that it is from.
    """
    shown = {leaf.name: leaf for leaf in leaves_of(start)}
    first = [name for name in getattr(start, "FIRST", ()) if name in shown]
    rest = set(shown) - set(first)
    own = [shown[name] for name in first]
    own += [leaf for leaf in leaves_of(start, nested=False) if leaf.name in rest]
    made = [tyro_field(leaf) for leaf in (*own, Leaf("json", bool, JSON, False))]
    for name, group in groups_of(start):
        leaves = leaves_of(group, nested=False)
        if mine := [tyro_field(leaf) for leaf in leaves if leaf.name in rest]:
            kind = make_dataclass(name, mine, namespace={"__doc__": summary_of(group)})
            title = f"other_{name}" if name in shown else name  # an option has the name already
            made.append((title, kind, field(default_factory=kind)))
    return make_dataclass("Options", made, namespace={"__doc__": summary})


def summary_of(group: Options) -> str:
    """Return the first paragraph of a group's docstring; nothing under `python -OO`."""
    kind = type(group)
    text = (kind.__doc__ or "").split("\n\n")[0]
    return "" if text.startswith(f"{kind.__name__}(") else " ".join(text.split())
