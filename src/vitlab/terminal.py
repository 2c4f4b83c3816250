"""Tables on stdout."""

from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import Any

from vitlab.errors import escape_controls
from vitlab.units import duration, percent, si, storage

NAMES = {  # of what is no metric
    "accuracy_without": "accuracy without these",
    "majority": "largest class alone",
    "trained_on": "test images trained on",
    "held_out": "held-out images",
    "images_per_second": "images/s",
    "peak_memory": "peak memory",
    "skipped_steps": "skipped steps",
    "bytes": "size",
    "seconds": "time",
}
FORMS: dict[str, Callable[[float], str]] = {
    "accuracy_without": percent,
    "majority": percent,
    "params": lambda value: si(value, 2),
    "macs": lambda value: si(value, 2),
    "bytes": storage,
    "peak_memory": storage,
    "latency": lambda value: f"{1000 * value:.2f} ms",
    "seconds": duration,
    "temperature": lambda value: f"{value:.4g}",
    "images_per_second": lambda value: f"{value:,.0f}",
}
UNTOLD = {"damaged": 0, "skipped_steps": 0, "rollbacks": 0, "temperature": 1}  # say nothing


def readable(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run or an evaluation as rows of a table: name and value.

    A figure with an interval is followed by it: `98.9% (98.1 to 99.4)`. Lists and tables are left
    out, and metrics that say nothing of so few classes.
    """
    from vitlab.evaluation.metrics import METRICS

    rows: list[tuple[str, str]] = []
    ranges, classes = figures.get("intervals", {}), figures.get("classes")
    for key, value in figures.items():
        metric = METRICS.get(key)
        if value is None or isinstance(value, dict | list) or value == UNTOLD.get(key):
            continue
        if metric is not None:
            if not isinstance(classes, list) or metric.tells(len(classes)):
                ends = metric.range(ranges.get(key))
                rows.append((metric.word, metric.text(value) + f" ({ends})" * bool(ends)))
        else:
            rows.append((NAMES.get(key, key.replace("_", " ")), _value(key, value)))
    return rows


def _value(key: str, value: Any) -> str:
    """Format what is no metric."""
    if key in FORMS:
        return FORMS[key](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def print_figures(figures: dict[str, Any]) -> None:
    """Print the figures of a run or an evaluation, one per line."""
    print_table(("figure", "value"), readable(figures))


def main_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics that come first, and all that is no metric; a report has the others."""
    from vitlab.evaluation.metrics import METRICS

    return {key: each for key, each in figures.items() if key not in METRICS or METRICS[key].key}


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures of several runs, one line per run."""
    if not rows:
        return
    texts = [dict(readable(row)) for row in rows]
    head = tuple(dict.fromkeys(name for text in texts for name in text))
    print_table(head, [tuple(text.get(name, "") for name in head) for text in texts])


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None
) -> None:
    """Print rows under their head; in whole lines, if their width is given."""
    from rich import box
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    columns = (Column(Text(escape_controls(each)), no_wrap=width is not None) for each in head)
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(
            *(Text(escape_controls(each, "")) for each in row)
        )  # a name may look like markup
    Console(width=width).print(table)


def print_wide(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their head in whole lines: the first columns, as many as fit.

    The others are named below. What is no terminal gets all of them.

    Args:
        head: a heading for each column
        rows: as many cells each
    """
    from rich.console import Console

    console, left = Console(), list[str]()
    columns = [[title, *cells] for title, cells in zip(head, zip(*rows, strict=True), strict=True)]
    while console.is_terminal and len(columns) > 1 and _room(columns) > console.width:
        left.insert(0, columns.pop()[0])
    titles = ["\n".join(wrap(each[0], _width(each), break_long_words=False)) for each in columns]
    print_table(titles, [*zip(*columns, strict=True)][1:], _room(columns) + 4)
    if left:
        print(f"too wide for this terminal, and in the report: {', '.join(left)}")


def fits_terminal(head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a table has room for its cells in whole lines."""
    from rich.console import Console

    columns = [[title, *cells] for title, *cells in zip(head, *rows, strict=True)]
    return _room(columns) < Console().width


def _width(column: Sequence[str]) -> int:
    """Return the characters of a column, whose title may be broken between words."""
    title, *cells = column
    return max(map(len, [*title.split(), *cells]))


def _room(columns: Sequence[Sequence[str]]) -> int:
    return sum(3 + _width(each) for each in columns)
