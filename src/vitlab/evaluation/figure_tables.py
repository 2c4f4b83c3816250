"""Tables of figures of boxes and of numbers, a line for each class or target."""

from collections.abc import Sequence
from typing import Any

from vitlab.evaluation.metrics import METRICS
from vitlab.units import percent


def table_of_boxes(
    classes: Sequence[dict[str, Any]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a heading and a line for each class of `box_figures` that is there, worst first."""
    there = sorted((each for each in classes if each["objects"]), key=lambda each: each["ap50"])
    return ("class", "AP50", "AP", "objects"), [
        (each["class"], percent(each["ap50"]), percent(each["ap"]), f"{each['objects']:,}")
        for each in there
    ]


def table_of_targets(
    rows: Sequence[dict[str, Any]],
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a heading and a line for each target of `target_figures`, with intervals."""
    names = [key for key in rows[0] if key in METRICS]

    def cell(row: dict[str, Any], name: str) -> str:
        form = percent if METRICS[name].unit == "percent" else "{:.4g}".format
        if row[name] is None:
            return ""
        ends = " to ".join(map(form, row["intervals"].get(name, ())))
        return form(row[name]) + f" ({ends})" * bool(ends)

    head = ("target", *(METRICS[name].title for name in names))
    return head, [(row["target"], *(cell(row, name) for name in names)) for row in rows]
