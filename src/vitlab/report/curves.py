"""Learning curves of a run, or of several runs beside each other."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vitlab.evaluation.metrics import METRICS, main_of
from vitlab.report.charts import DENSE, WARM, Line, finite, lines, of_run
from vitlab.report.facts import Point, RunFacts
from vitlab.report.page import Block, Plot, Plots, Prose
from vitlab.units import percent

SHORT = 2.5  # epochs: shorter runs are drawn against steps
LEGEND = 6  # runs whose values a legend names


@dataclass(frozen=True)
class Curve:
    """A quantity of the journal that is drawn.

    Attributes:
        title: of the drawing
        share: whether values are written in percent
        best: which end is better, `high` or `low`; empty if neither is
        of: what is shown of a value
        note: how to read it
    """

    title: str
    share: bool = False
    best: str = ""
    of: Callable[[float], float] = float
    note: str = ""

    def shown(self, value: float) -> str:
        """Format a value of the journal."""
        own = self.of(value)
        if self.share:
            return percent(own)
        return f"{own:,.0f}" if 1000 <= abs(own) < math.inf else f"{own:.3g}"


PROBES = {"probe": "10-shot accuracy", "knn": "20-NN accuracy"}
CURVES = {
    "accuracy": Curve("Accuracy", True, "high"),
    "map": Curve("mAP", True, "high"),
    "agreed": Curve("Agreement with the teacher", True, "high"),
    **{key: Curve(title, True, "high") for key, title in PROBES.items()},
    "lr": Curve("Learning rate"),
}
LOSS = Curve("Loss", best="low")


def learning_curves(facts: RunFacts, own: dict[str, Curve] | None = None) -> list[Block]:
    """Return loss, accuracy, probes and learning rate, each that has enough points, and the words.

    Args:
        facts: of the run
        own: quantities of a pretext task by their keys, drawn after the loss
    """
    apart, both = other_losses(facts), (facts.training, facts.testing)
    panels: list[tuple[str, Curve, Sequence[Point], Sequence[Point]]] = [("loss", LOSS, *both)]
    if apart:
        held_out = replace(LOSS, title=f"Loss on {facts.held_out} images")
        panels = [("loss", replace(LOSS, title="Training loss"), facts.training, ()),
                  ("loss", held_out, (), facts.testing)]  # fmt: skip
    usual = {key: curve for key, curve in CURVES.items() if key != "accuracy" or not facts.several}
    panels += [(key, curve, *both) for key, curve in ((own or {}) | usual).items()]
    plots, last = [], max((each.epoch for some in both for each in some), default=0.0)
    across = "step" if last < SHORT else "epoch"
    for number, (key, curve, training, testing) in enumerate(panels):
        ends = "probe" if key in PROBES else facts.held_out
        drawn = [
            Line("training", *_values(training, key, across, curve.of)),
            Line(
                ends, *_values(testing, key, across, curve.of), WARM, marked=True, best=curve.best
            ),
        ]
        drawing = lines(f"curve-{number}", curve.title, drawn, across, share=curve.share)
        plots += [Plot(curve.title, drawing)] if drawing else []
    return [Plots(plots), _words(facts, apart)] if plots else []


def compared_curves(runs: Sequence[RunFacts]) -> list[Plot]:
    """Return the curves of several runs, each in its color, against epochs."""
    main = main_of({key for each in runs for point in each.testing for key in point.values})
    panels, plots = [("loss", "Training loss"), ("loss", "Loss on held-out images")], []
    if main and main.name != "loss":
        panels.append((main.name, f"{main.title} on held-out images"))
    for number, (key, title) in enumerate([*panels, *PROBES.items()]):
        drawn = []
        for run, each in enumerate(runs):
            points = each.testing if number else each.training
            drawn.append(of_run(run, f"{run + 1}", *_values(points, key, "epoch"), bool(number)))
        share, legend = METRICS[key].unit == "percent", len(runs) <= LEGEND
        drawing = lines(f"curve-{number}", title, drawn, "epochs", share=share, legend=legend)
        plots += [Plot(title, drawing)] if drawing else []
    return plots


def _values(
    points: Sequence[Point], key: str, across: str, of: Callable[[float], float] = float
) -> tuple[list[float], list[float]]:
    """Return steps or epochs, and the values there."""
    there = [each for each in points if key in each.values]
    return [getattr(each, across) for each in there], [of(each.values[key]) for each in there]


def _words(facts: RunFacts, apart: Sequence[str]) -> Prose:
    """Return how the curves are read."""
    text = f"Points are evaluations on the {facts.held_out} images. " if facts.testing else ""
    if facts.training:
        text = "Training values are of the images of each step while the model learns from them"
        text += ", faint, with their moving average" * (len(facts.training) > DENSE)
        text += f"; points are evaluations on the {facts.held_out} images. "
    if apart and facts.training and facts.testing:
        text += (
            f"The training loss includes {', '.join(apart)}, the {facts.held_out} loss does not: "
            "they are different quantities. "
        )
    if "Mixup" in apart or "CutMix" in apart:
        text += "Of mixed images, the class with the larger share counts as right. "
    every = (*facts.training, *facts.testing)
    losses = finite([each.values["loss"] for each in every if "loss" in each.values])
    if lost := int(np.isnan(losses).sum()):
        text += (
            f"{lost} recorded {'loss is' if lost == 1 else 'losses are'} infinite or not a number "
            "and cannot be drawn."
        )
    return Prose(text.strip(), note=True)


def other_losses(facts: RunFacts) -> list[str]:
    """Return why the training loss is not the quantity that is measured on held-out images."""
    kind = facts.option("objective", "loss") or "softmax"
    balance = {"weights": "weights of the classes", "focal": "focal loss"}
    words = softened(facts)
    if kind == "sigmoid" and facts.several:
        words.append("a sum over the classes")
    if kind != "softmax" and not facts.several:
        words.append("a sigmoid per class")
    if (chosen := facts.option("objective", "balance")) in balance:
        words.append(balance[chosen])
    return words + ["a loss function of its own"] * bool(facts.option("code", "loss"))


def softened(facts: RunFacts) -> list[str]:
    """Return what the run was trained with that keeps confidence below accuracy."""
    smoothing = facts.option("objective", "label_smoothing")
    words = [f"label smoothing ({smoothing:g})"] if smoothing else []
    return words + [name for name in ("Mixup", "CutMix") if facts.option("augment", name.lower())]
