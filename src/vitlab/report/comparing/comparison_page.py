"""A comparison of runs as one self-contained HTML file: no network, no scripts, no other files."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from vitlab.data.sources.source import Source
from vitlab.errors import UserError
from vitlab.evaluation.examined import reopened
from vitlab.evaluation.metrics import METRICS
from vitlab.report.comparing import comparison_tables as tables
from vitlab.report.comparing import verdicts
from vitlab.report.comparing.disagreements import Gallery, galleries
from vitlab.report.comparing.entry import Entry
from vitlab.report.comparing.recipes_apart import differing, options_in, surroundings
from vitlab.report.comparing.run_comparison import Compared
from vitlab.report.facts import Point
from vitlab.report.page import soft
from vitlab.report.table_page import save_page, templates
from vitlab.units import percent

if TYPE_CHECKING:
    from markupsafe import Markup

AXES = (("epoch", "epochs"), ("step", "steps"), ("seconds", "seconds of training"))
COSTS = {
    "params": "parameters",
    "macs": "multiply-adds per image",
    "seconds": "seconds of training",
    "images_per_second": "images/s in training",
}


@dataclass(frozen=True)
class Axis:
    """The curves against one quantity: its key, its name, and panels with their titles."""

    key: str
    name: str
    panels: "list[tuple[str, Markup]]"


def write_comparison(file: Path, compared: Compared, command: str = "") -> Path:
    """Write a comparison as one HTML file that needs no other; return the file.

    Raises:
        DiskError: the file cannot be written.
    """
    from vitlab.report.drawings.overlays import swatch  # slow to import

    environment = templates()
    environment.filters |= {"percent": percent, "soft": soft}
    head, rows, ends = tables.run_table(compared)
    shown, unseen = _galleries(compared)
    classes = tables.class_rows(compared.entries)
    text = environment.get_template("compare.html.jinja").render(
        compared=compared,
        entries=compared.entries,
        title=f"{len(compared.entries)} runs compared",
        lead=verdicts.lead(compared),
        head=head,
        rows=rows,
        ends=ends,
        links=[_link(each, file) for each in compared.entries],
        swatch=swatch,
        pairs=tables.pair_table(compared) if compared.same else None,
        differences=tables.difference_table(compared),
        seeds=tables.seed_tables(compared),
        axes=_curves(compared.entries),
        options=differing(compared.entries),
        alike=_alike(compared.entries),
        around=surroundings(compared.entries),
        classes=classes[: tables.CLASSES],
        all_classes=len(classes),
        costs=tables.cost_table(compared.entries),
        drawn_costs=_costs(compared),
        galleries=shown,
        unseen=unseen,
        command=command,
    )
    return save_page(file, text)


def _link(entry: Entry, page: Path) -> str:
    """Return the address of a run's own report as seen from the page; empty if there is none."""
    if entry.report is None:
        return ""
    place = os.path.relpath(entry.report.resolve(), page.resolve().parent)
    return quote(place.encode("utf-8", "surrogateescape"))


def _alike(entries: Sequence[Entry]) -> int:
    """Count the options that are the same in all runs whose recipes are known."""
    known = [options_in(each.recipe) for each in entries if each.recipe]
    names = {name for each in known for name in each}
    return len(names) - len([row for row in differing(entries) if row.option in names])


def _curves(entries: Sequence[Entry]) -> list[Axis]:
    """Return the curves against each quantity that at least one run has."""
    from vitlab.report.drawings.overlays import Series, overlay

    several = any(point.map is not None for each in entries for point in each.testing)
    panels: list[tuple[str, str, bool, Callable[[Point], float | None], bool]] = [
        ("train", "Training loss", False, lambda point: point.loss, False),
        ("loss", "Loss on held-out images", True, lambda point: point.loss, False),
        ("mark", "mAP" if several else "Accuracy on held-out images", True,
         lambda point: point.map if several else point.accuracy, True),
        ("probe", "10-shot accuracy", True, lambda point: point.probe, True),
        ("knn", "20-NN accuracy", True, lambda point: point.knn, True),
    ]  # fmt: skip
    axes = []
    for key, name in AXES:
        drawn = []
        for panel, title, measured, value, share in panels:
            lines = []
            for run, entry in enumerate(entries):
                own = [
                    (float(x), y)
                    for point in (entry.testing if measured else entry.training)
                    if (x := getattr(point, key)) is not None and (y := value(point)) is not None
                ]
                lines.append(Series(run, [x for x, _ in own], [y for _, y in own], measured))
            if drawing := overlay(f"{panel}-{key}", title, lines, name, share=share):
                drawn.append((title, drawing))
        if drawn:
            axes.append(Axis(key, name, drawn))
    return axes


def _costs(compared: Compared) -> "list[Markup]":
    """Return cost against accuracy, for each cost in which runs differ."""
    from vitlab.report.drawings.overlays import Spot, cost_against

    first, drawings = verdicts.first_figure(compared), []
    for key, title in COSTS.items():
        spots = [
            Spot(number, cost, value, each.interval(first))
            for number, each in enumerate(compared.entries)
            if (cost := each.number(key)) is not None and (value := each.number(first)) is not None
        ]
        if len({spot.cost for spot in spots}) > 1:
            drawings.append(cost_against(key, spots, title, METRICS[first].word))
    return drawings


def _galleries(compared: Compared) -> tuple[list[Gallery], str]:
    """Return the images on which runs disagree, and why they cannot be shown, if they cannot."""
    if compared.same is None:
        return [], ""
    source, of, reason = _pictured(compared)
    found = galleries(compared.same, source, of)
    return found, "" if source else reason


def _pictured(compared: Compared) -> tuple[Source | None, int, str]:
    """Return the test images of the first run whose data is at hand, and the place of that run."""
    assert compared.same is not None
    reason = ""
    for place, number in enumerate(compared.same.runs):
        try:
            return reopened(compared.entries[number].folder).test, place, ""
        except UserError as error:
            reason = reason or str(error)
    return None, 0, reason
