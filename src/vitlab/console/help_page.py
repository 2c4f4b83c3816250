"""The text of `--help`: what a command does, and its options with their types and defaults."""

import textwrap
from collections.abc import Iterable, Iterator
from inspect import get_annotations

from vitlab.console.leaves import OF_ALL, Leaf, Start, groups_of, leaves_of, spelled
from vitlab.options import Options

COLUMN, WIDTH = 25, 80  # where help begins, and the most characters of a line
HELP_ALL = "--help-all"
SHARED = ("vitlab.commands", "vitlab.recipes.recipe")  # have the options that commands share


def help_text(start: Start, prog: str, summary: str, whole: bool = False) -> str:
    """Return the text of `--help`: the command's own options, or all, with their groups.

    Args:
        start: options whose values are shown as the defaults, or their class
        prog: the command itself, `vitlab train`
        summary: what it does
        whole: all options, as with `--help-all`
    """
    leaves = list(leaves_of(start))
    places = [leaf for leaf in leaves if leaf.about.positional]
    titles, own = _groups(start)
    usage = " ".join(["usage:", prog, *(_place(leaf) for leaf in places), "[OPTIONS]"])
    lines = [usage, "", *textwrap.wrap(summary, WIDTH)]
    if places:
        lines += ["", " positional arguments", *_entries(places)]
    lines += ["", " options", *_entry("-h, --help", "show this help message and exit")]
    if titles:
        lines += _entry(HELP_ALL, "show every option and exit")
    lines += _entries([*own, *OF_ALL])
    if titles and not whole:
        lines += ["", f" more options, with {HELP_ALL}"]
        for title, (about, group) in titles.items():
            lines += _entry(f"{title} ({len(group)})", about)
    for title, (about, group) in titles.items() if whole else ():
        wrapped = textwrap.wrap(about, WIDTH - 2, initial_indent="  ", subsequent_indent="  ")
        lines += ["", f" {title} options", *wrapped, *_entries(group)]
    return "\n".join(lines)


def _groups(start: Start) -> tuple[dict[str, tuple[str, list[Leaf]]], list[Leaf]]:
    """Return groups of options by title, with their summaries, and the options before them.

    What has a position instead of a name is no option.
    What matters first (`FIRST` of the options' class) comes before the groups that it is from.
    """
    there = {leaf.name: leaf for leaf in leaves_of(start) if not leaf.about.positional}
    first = [name for name in getattr(start, "FIRST", ()) if name in there]
    rest = set(there) - set(first)
    own = [there[name] for name in first]
    shared = _shared(start)
    others = [leaf for leaf in leaves_of(start, nested=False) if leaf.name in rest]
    own += sorted(others, key=lambda leaf: leaf.name in shared)
    groups = {}
    for name, group in sorted(groups_of(start), key=lambda each: each[0] in shared):
        names = [leaf.name for leaf in leaves_of(group, nested=False)]
        if mine := [there[each] for each in names if each in rest]:
            title = f"other {name}" if name in there else name  # an option has the name already
            groups[title.replace("_", " ")] = summary_of(group), mine
    return groups, own


def _shared(start: Start) -> set[str]:
    """Return the options and groups that a command has in common with others: they come last."""
    kinds = (start if isinstance(start, type) else type(start)).__mro__
    shared = [each for each in kinds if each.__module__ in SHARED]
    return {name for each in shared for name in get_annotations(each)}


def _place(leaf: Leaf) -> str:
    return spelled(leaf) if leaf.is_required else f"[{spelled(leaf)}]"


def _entries(leaves: Iterable[Leaf]) -> Iterator[str]:
    """Yield the lines of options: name, type, help, when it applies, default."""
    for leaf in leaves:
        only = f"; only {leaf.about.only.words}" if leaf.about.only else ""
        default = "" if leaf.default in (None, "", ()) else f" (default: {_shown(leaf.default)})"
        default = " (required)" if leaf.is_required else default
        name = _place(leaf) if leaf.about.positional else spelled(leaf)
        yield from _entry(name, leaf.about.help + only + default)


def _entry(name: str, text: str) -> list[str]:
    """Return a name and its text in two columns; a long name has lines of its own."""
    blank = " " * COLUMN
    about = textwrap.wrap(text, WIDTH, initial_indent=blank, subsequent_indent=blank)
    if len(name) + 4 <= COLUMN and about:
        return [f"  {name}".ljust(COLUMN) + about[0].strip(), *about[1:]]
    pieces = name.replace(",", ", ").split(" ") if len(name) > WIDTH - 2 else [name]
    wrapped = textwrap.wrap(" ".join(pieces), WIDTH, initial_indent="  ", subsequent_indent="  ")
    return [*wrapped, *about]


def summary_of(group: Options) -> str:
    """Return the first paragraph of a group's docstring; nothing under `python -OO`."""
    kind = type(group)
    text = (kind.__doc__ or "").split("\n\n")[0]
    return "" if text.startswith(f"{kind.__name__}(") else " ".join(text.split())


def _shown(value: object) -> str:
    """Format a default as it would be typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
