"""From the folder of a run without labels to its report."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.models.cost import cost
from vitlab.models.model import Model
from vitlab.report.gather import APART, EVALUATED, points
from vitlab.report.pretext.pretext_facts import PretextFacts
from vitlab.report.pretext.pretext_page import write
from vitlab.runs.run_folder import RunFolder


def write_pretext_report(
    folder: RunFolder,
    model: Model,
    figures: dict[str, Any],
    pictures: dict[str, NDArray[np.uint8]],
    notes: list[str],
) -> Path:
    """Write a run's `report.html`.

    Args:
        folder: the run's
        model: what the run has saved
        figures: the run's figures, the keys of the command's JSON
        pictures: from `PretextTask.pictures`: uint8 (B, H, W, 3) by column; none where there are
            none
        notes: remarks for the reader

    Returns:
        The report's file.

    Raises:
        DiskError: the file cannot be written.
    """
    tables, journal = folder.tables, folder.journal.read()
    evaluated = [line["kind"] for line in journal if line["kind"] in EVALUATED]
    facts = PretextFacts(
        model=model.config.name,
        run=tables["run"],
        figures=_with_probe(figures, journal),
        training=points(journal, ("train",)),
        testing=points(journal, EVALUATED),
        held_out=evaluated[-1] if evaluated else "held-out",
        pictures=pictures,
        cost=[part for part in cost(model).parts if part.params or part.macs],  # no classifier
        recipe={key: table for key, table in tables.items() if key not in APART},
        versions=tables["versions"],
        notes=notes,
    )
    return write(folder.report, facts)


def _with_probe(figures: dict[str, Any], journal: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures with the last ones of the probe, where they have none."""
    found: dict[str, Any] = {}
    for line in journal:
        if line["kind"] in EVALUATED:
            found |= {key: line[key] for key in ("probe", "knn") if key in line}
    return found | figures
