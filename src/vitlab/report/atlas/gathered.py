"""Gathering both sections from a model's predictions."""

from vitlab.data.sources.source import Source
from vitlab.evaluation.label_errors import find_label_errors
from vitlab.evaluation.predictions import Predictions
from vitlab.models.model import Model
from vitlab.report.atlas.doubts import doubts_of
from vitlab.report.atlas.image_map import image_map
from vitlab.report.atlas.plotted import Atlas

LEAST = 100  # images: the thresholds of confident learning, and a map, need some of each class


def atlas(model: Model, source: Source, predictions: Predictions) -> Atlas | None:
    """Return both sections; None if there are fewer than `LEAST` images."""
    if len(predictions.indices) < LEAST:
        return None
    found = find_label_errors(predictions.probabilities, predictions.labels)
    doubts = doubts_of(model, source, predictions, found)
    doubted = [each.place for each in found.suspects[: len(doubts.shown)]]
    return Atlas(doubts, image_map(model, source, predictions, doubted))
