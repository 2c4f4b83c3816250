"""The labels that are likely wrong, as a table: a row per image, likeliest error first.

| column | content |
| --- | --- |
| image | the file's path, or the source's name for the image |
| label, labels | the class or classes it is labeled with |
| likely | the class or classes it likely has |
| p_label | probability of the label |
| p_likely | probability of the likely class |
| margin | probability of the label minus the largest of another class, from -1 to 0 |

Where images have several labels, p_label and margin are those of the class most in doubt, and
there is no p_likely.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.data.sources.protocol import Source
from vitlab.evaluation.answers import Floats
from vitlab.evaluation.predictions import Predictions
from vitlab.evaluation.review.label_errors import LabelErrors, Suspect, find_label_errors
from vitlab.evaluation.rows import table_to

LEARNED = (
    "a model repeats the wrong labels that it has learned: of training images, vitlab train DATA "
    "--folds 5 finds more label errors"
)


@dataclass(frozen=True)
class Suspects:
    """Suspects with the names of their images and classes: what a table of them holds.

    Attributes:
        found: the labels that are likely wrong
        probabilities: (n, classes), that they were found in
        classes: their names
        name: what to call the image of a row of probabilities
        several: whether images have several labels
    """

    found: LabelErrors
    probabilities: Floats
    classes: Sequence[str]
    name: Callable[[int], str]
    several: bool

    @property
    def names(self) -> list[str]:
        """The columns, in order."""
        likely = [] if self.several else ["p_likely"]
        return ["image", self._column, "likely", "p_label", *likely, "margin"]

    @property
    def numbers(self) -> set[str]:
        """The columns of numbers."""
        return {"margin", "p_label", "p_likely"}

    @property
    def lists(self) -> set[str]:
        """The columns of lists."""
        return {self._column, "likely"} if self.several else set()

    def columns(self) -> dict[str, list[Any]]:
        """Return all rows, column by column."""
        rows = [self.row(each) for each in self.found.suspects]
        return {name: [row[name] for row in rows] for name in self.names}

    def row(self, each: Suspect) -> dict[str, Any]:
        """Return one row, by column."""
        given, better = ([self.classes[n] for n in own] for own in (each.given, each.better))
        row: dict[str, Any] = {"image": self.name(each.place)}
        if self.several:
            row |= {"labels": given, "likely": better}
        else:
            row |= {"label": given[0], "likely": better[0]}
            row["p_likely"] = float(self.probabilities[each.place, each.better[0]])
        return row | {"p_label": each.own, "margin": each.margin}

    @property
    def _column(self) -> str:
        return "labels" if self.several else "label"


def suspects_in(source: Source, done: Predictions) -> Suspects:
    """Find the labels of a source's images that are likely wrong.

    Args:
        source: the images
        done: a model's predictions of them
    """
    return Suspects(
        find_label_errors(done.probabilities, done.labels),
        done.probabilities,
        source.classes,
        lambda place: source.name(int(done.indices[place])),
        done.labels.several,
    )


def write_suspects(file: Path, suspects: Suspects) -> dict[str, Any]:
    """Write the table, and return its summary.

    Args:
        file: that `check_file` accepted
        suspects: what it holds

    Returns:
        `file`, `listed` (its rows) and `expected` (how many labels are estimated to be wrong in
        all).

    Raises:
        DiskError: the file cannot be written.
    """
    with table_to(file, suspects) as write:
        write(suspects.columns())
    found = suspects.found
    return {"file": str(file), "listed": len(found.suspects), "expected": found.estimated}
