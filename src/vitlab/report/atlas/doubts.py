"""The labels of test images that are likely wrong, as a report shows them."""

from vitlab.data.sources.source import Source
from vitlab.errors import ImageError
from vitlab.evaluation.label_errors import LabelErrors, Suspect
from vitlab.evaluation.predictions import Predictions
from vitlab.models.model import Model
from vitlab.report.album import picture
from vitlab.report.atlas.plotted import Doubt, Doubts

SHOWN = 24  # with pictures


def doubts_of(model: Model, source: Source, predictions: Predictions, found: LabelErrors) -> Doubts:
    """Return the section, with the pictures of the likeliest errors."""
    shown = [_doubt(model, source, predictions, each) for each in found.suspects[:SHOWN]]
    several = predictions.labels.several
    return Doubts(shown, len(found.suspects), found.estimated, found.images, several)


def _doubt(model: Model, source: Source, predictions: Predictions, each: Suspect) -> Doubt:
    index = int(predictions.indices[each.place])
    try:
        shown = picture(source, index, model).pixels
    except ImageError:
        shown = None
    given, better = (
        ", ".join(source.classes[number] for number in classes) or "none"
        for classes in (each.given, each.better)
    )
    single = not predictions.labels.several
    other = float(predictions.probabilities[each.place, each.better[0]]) if single else None
    return Doubt(shown, source.name(index), given, better, each.own, other)
