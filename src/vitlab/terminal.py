"""Tables on stdout."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from vitlab.units import readable


def print_figures(figures: dict[str, Any]) -> None:
    """Print the figures of a run or an evaluation, one per line."""
    print_table(("figure", "value"), readable(figures))


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures of several runs, one line per run."""
    if not rows:
        return
    texts = [dict(readable(row)) for row in rows]
    head = tuple(dict.fromkeys(name for text in texts for name in text))
    print_table(head, [tuple(text.get(name, "") for name in head) for text in texts])


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under their head."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*head, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(Text, row))  # as it is: a name may look like markup
    Console().print(table)


def print_wide(head: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> None:
    """Print rows under their head in whole lines: the first columns, as many as fit.

    The others are named below. What is no terminal gets all of them.

    Args:
        head: a heading for each column
        rows: as many cells each
        names: columns that together name a row: where not all columns fit, they become one
    """
    from rich.console import Console

    widths = _widths(head, rows)
    if Console().is_terminal and 3 * len(head) + sum(widths) > Console().width:
        head = (", ".join(head[:names]), *head[names:])
        rows = [(", ".join(filter(None, row[:names])), *row[names:]) for row in rows]
        widths = _widths(head, rows)
    _print_first(head, rows, widths)


def _widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the characters of each column, whose heading may be broken between words."""
    return [
        max([*map(len, column), *map(len, title.split())])
        for title, column in zip(head, zip(*rows, strict=True), strict=True)
    ]


def _print_first(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    from rich.console import Console

    console, count = Console(), len(head)
    while console.is_terminal and count > 1 and 3 * count + sum(widths[:count]) > console.width:
        count -= 1
    titles = [
        "\n".join(wrap(title, width, break_long_words=False))
        for title, width in zip(head, widths, strict=True)
    ]
    _print_whole(titles[:count], [row[:count] for row in rows], 3 * count + sum(widths[:count]))
    if left := ", ".join(head[count:]):
        print(f"too wide for this terminal, and in the report: {left}")


def _print_whole(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(each, no_wrap=True) for each in head), box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=width + 4).print(table)
