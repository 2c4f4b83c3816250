"""Tables on stdout."""

from collections.abc import Sequence
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
