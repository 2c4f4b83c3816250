"""Tables on stdout."""

from collections.abc import Sequence
from typing import Any

from vitlab.units import readable


def print_figures(figures: dict[str, Any]) -> None:
    """Print the figures of a run or an evaluation, one per line."""
    print_table(("figure", "value"), readable(figures))


def print_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print rows under their head."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*head, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
