"""The design of a study: its arms, the figures it measures, and the paper's claims."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from vitlab.data.splits import Splits
from vitlab.experiments.cells import Row
from vitlab.models.model import Model
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import Base
from vitlab.studies.claims import Claim
from vitlab.units import percent, si


@dataclass(frozen=True)
class Arm:
    """One setting of a study: it is trained once per seed.

    Attributes:
        name: of its runs' folders, and of the row in a claim
        recipe: what it learns; its epochs are relative to those of the other arms
        cells: what sets it apart, in the columns of `Study.head`
        paper: the paper's figures, by the names of the study's columns
        after: the arm whose model of the same seed it starts from; empty for random weights
        rates: factors of the recipe's learning rate, of which the best on held-out training images
            is used; while it is the first or the last one, up to three more are tried beyond it;
            none for the recipe's own; a single one where the user's are not searched either
        row: whether it is a row of the table, rather than a step on the way to others
        x: its place on the horizontal axis of the picture, if that is a number
        line: the line of the picture that it belongs to; empty for all of them
        guide: the arm whose model is its tokenizer or its teacher; that one is trained once, with
            the first seed
        macs: multiply-adds of its training, those of an epoch of the first arm that has any being
            1: for comparisons at equal computation, in place of the recipe's epochs; 0 for these
        rate_of: the arm whose choice among its `rates` is this one's too
    """

    name: str
    recipe: Recipe
    cells: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)
    after: str = ""
    rates: tuple[float, ...] = ()
    row: bool = True
    x: float | None = None
    line: str = ""
    guide: str = ""
    macs: float = 0.0
    rate_of: str = ""


@dataclass(frozen=True)
class Trained:
    """A finished run, for what a study measures of it beside its own figures.

    Attributes:
        model: the trained model, on the CPU
        recipe: that it was trained by
        splits: the images of the recipe's data
        folder: of the run; files may be left in it
        device: where to compute
        downstream: images that pre-trained models are transferred to; None for the recipe's own
    """

    model: Model
    recipe: Recipe
    splits: Splits
    folder: Path
    device: torch.device
    downstream: Splits | None = None


Measure = Callable[[Trained], dict[str, float]]
"""A function of a module, so that its name can be sent to another process."""


@dataclass(frozen=True)
class Column:
    """A figure of the table.

    Attributes:
        key: its name among the figures of a run
        title: its heading
        show: how a value is written
        spread: how a standard deviation is written; None as a value
        once: whether it is the same for all seeds, such as a number of parameters
    """

    key: str
    title: str
    show: Callable[[float], str] = percent
    spread: Callable[[float], str] | None = None
    once: bool = False


def share_column(key: str, title: str) -> Column:
    """Return the column of a share, whose deviations are in percentage points."""
    return Column(key, title, percent, lambda share: f"{100 * share:.1f}")


ACCURACY = share_column("accuracy", "test accuracy")
FEW_SHOT = share_column("few_shot", "5-shot")
NLL = Column("nll", "NLL", "{:.3f}".format)
TRAIN_LOSS = Column("train_loss", "training loss", "{:.3f}".format)
PARAMS = Column("params", "parameters", lambda count: si(count, 2), once=True)
MACS = Column("macs", "multiply-adds", lambda count: si(count, 2), once=True)
FLOPS = Column("flops", "operations of training", "{:.3g}".format, once=True)
IMAGES = Column("train_images", "training images", "{:,.0f}".format, once=True)
RATE = Column("images_per_second", "images/s in training", "{:,.0f}".format, once=True)
STEP = Column("step_seconds", "ms per step", lambda seconds: f"{1000 * seconds:.1f}")
UPDATE = Column("update_ms", "ms per update", "{:.1f}".format)
RANK = Column("feature_rank", "directions (RankMe)", "{:.1f}".format)
FLOATS = Column("floats", "floats per parameter", "{:.2f}".format, once=True)
COLUMNS = {
    each.key: each
    for each in (
        ACCURACY, FEW_SHOT, NLL, TRAIN_LOSS, PARAMS, MACS, FLOPS, IMAGES, RATE, STEP, UPDATE,
        RANK, FLOATS
    )
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """The figure of a study: a dot per arm, or lines, one for each `Arm.line`, if `x` says of what.

    Attributes:
        y: the column that is drawn
        x: what the horizontal axis of lines counts: the arms' x
        log: whether it is logarithmic
        by: the column that is the horizontal axis, in place of the arms' x
    """

    y: str = "accuracy"
    x: str = ""
    log: bool = False
    by: str = ""


@dataclass(frozen=True)
class Study:
    """A table or a figure of a paper: a grid of recipes and a layout.

    Attributes:
        title: what it shows
        source: where it is from: `ViT, Table 8`
        head: headings of `Arm.cells`
        arms: makes the arms for a budget
        columns: the figures of the table; the first one is that of the claims, unless they say
        measure: what is measured of each run beside its own figures
        claims: what the paper says
        picture: the figure
        note: what a reader must know of the table
        findings: makes sentences from the rows, such as a fit to all of them
    """

    title: str
    source: str
    head: tuple[str, ...]
    arms: Callable[[Base], Iterable[Arm]]
    columns: tuple[Column, ...] = (ACCURACY, NLL, TRAIN_LOSS)
    measure: Measure | None = None
    claims: tuple[Claim, ...] = ()
    picture: Picture = Picture()
    note: str = ""
    findings: Callable[[Sequence[Row]], Sequence[str]] | None = None
