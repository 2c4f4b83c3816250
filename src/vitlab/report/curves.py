"""Learning curves of a run."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vitlab.report.drawings.charts import Line, lines
from vitlab.report.drawings.drawing import BLUE, WARM, finite
from vitlab.report.facts import Facts, Point
from vitlab.report.page import Block, Plot, Plots, Prose

Value = Callable[[Point], float | None]
SHORT = 2.5  # epochs: shorter runs are drawn against steps


def learning_curves(facts: Facts, own: Sequence[Plot] = ()) -> list[Block]:
    """Return loss, accuracy, probes and learning rate, each that has enough points, and the words.

    Args:
        facts: of the run
        own: drawings of a pretext task, after the loss
    """
    apart, held_out = other_losses(facts), f"{facts.held_out} images"
    rated = () if facts.several else facts.training
    loss: Value = lambda point: point.loss  # noqa: E731
    if apart:
        losses = [
            panel("training-loss", "Training loss", facts.training, (), loss, best="low"),
            panel("loss", f"Loss on {held_out}", (), facts.testing, loss, facts.held_out, "low"),
        ]
    else:
        losses = [panel("loss", "Loss", facts.training, facts.testing, loss, facts.held_out, "low")]
    shares: list[tuple[str, str, Sequence[Point], str, Value]] = [
        ("accuracy", "Accuracy", rated, facts.held_out, lambda p: p.accuracy),
        ("map", "mAP", (), facts.held_out, lambda p: p.map),
        ("agreed", "Agreement with the teacher", facts.training, "", lambda p: p.own.get("agreed")),
        ("probe", "10-shot accuracy", (), "probe", lambda p: p.probe),
        ("knn", "20-NN accuracy", (), "probe", lambda p: p.knn),
    ]
    drawn = [
        panel(
            name, title, training, facts.testing if ends and not (name == "accuracy" and
            facts.several) else (), value, ends, "high", share=True,
        )
        for name, title, training, ends, value in shares
    ]  # fmt: skip
    rate = panel("rate", "Learning rate", facts.training, (), lambda point: point.lr)
    plots = [each for each in (*losses, *own, *drawn, rate) if each is not None]
    return [Plots(plots), *_words(facts, apart)] if plots else []


def panel(
    name: str,
    title: str,
    training: Sequence[Point],
    testing: Sequence[Point],
    value: Value,
    held_out: str = "",
    best: str = "",
    *,
    share: bool = False,
) -> Plot | None:
    """Draw one quantity; None if it has too few values.

    Args:
        name: unique on the page
        title: of the drawing
        training: points of the training images
        testing: points of the images that are evaluated
        value: of a point; None or NaN if there is none
        held_out: what the evaluated images are called
        best: which end is better, `high` or `low`; empty if neither is
        share: whether values are written in percent
    """
    steps = max((point.epoch for point in (*training, *testing)), default=0.0) < SHORT
    drawn = []
    for label, points, color in (("training", training, BLUE), (held_out, testing, WARM)):
        pairs = [(point.step if steps else point.epoch, value(point)) for point in points]
        there = [(x, y) for x, y in pairs if y is not None]
        x, y = [x for x, _ in there], [y for _, y in there]
        end = best if color == WARM else ""
        drawn.append(Line(label, x, y, color, marked=color == WARM, best=end))
    drawing = lines(name, title, drawn, "step" if steps else "epoch", share=share)
    return Plot(title, drawing) if drawing else None


def _words(facts: Facts, apart: Sequence[str]) -> list[Prose]:
    """Return how the curves are read."""
    text = f"Points are evaluations on the {facts.held_out} images. " if facts.testing else ""
    if facts.training:
        text = "Training values are of the images of each step while the model learns from them"
        text += ", faint, with their moving average" * (len(facts.training) > 20)
        text += f"; points are evaluations on the {facts.held_out} images. "
    if apart and facts.training and facts.testing:
        text += (
            f"The training loss includes {', '.join(apart)}, the {facts.held_out} loss does not: "
            "they are different quantities. "
        )
    if "Mixup" in apart or "CutMix" in apart:
        text += "Of mixed images, the class with the larger share counts as right. "
    losses = finite([point.loss for point in (*facts.training, *facts.testing)])
    if lost := int(np.isnan(losses).sum()):
        text += (
            f"{lost} recorded {'loss is' if lost == 1 else 'losses are'} infinite or not a number "
            "and cannot be drawn."
        )
    return [Prose(text.strip(), note=True)]


def other_losses(facts: Facts) -> list[str]:
    """Return why the training loss is not the quantity that is measured on held-out images."""
    objective: dict[str, Any] = facts.recipe.get("objective", {})
    kind, balance = objective.get("loss", "softmax"), objective.get("balance", "none")
    words = softened(facts)
    if facts.several and kind == "sigmoid":
        words.append("a sum over the classes")
    if not facts.several and kind != "softmax":
        words.append("a sigmoid per class")
    if balance in ("weights", "focal"):
        words.append("weights of the classes" if balance == "weights" else "focal loss")
    return words + ["a loss function of its own"] * bool(facts.recipe.get("code", {}).get("loss"))


def softened(facts: Facts) -> list[str]:
    """Return what the run was trained with that keeps confidence below accuracy."""
    objective, augment = (facts.recipe.get(name, {}) for name in ("objective", "augment"))
    smoothing = objective.get("label_smoothing")
    words = [f"label smoothing ({smoothing:g})"] if smoothing else []
    return words + [name for name in ("Mixup", "CutMix") if augment.get(name.lower())]
