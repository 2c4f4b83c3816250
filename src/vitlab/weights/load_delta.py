"""Loading deltas: as they were saved, without their base, or their base alone."""

import logging
from pathlib import Path

from vitlab.models.model import Model
from vitlab.weights.deltas import Delta
from vitlab.weights.formats.format_api import Hints
from vitlab.weights.load import base_model, place_of, recognize
from vitlab.weights.matching import collect


def load_delta(file: str | Path) -> Delta | None:
    """Return a delta as it was saved, without its base; None for a model of any other format.

    Raises:
        WeightsError: no model there, or a damaged file.
    """
    source, reading = recognize(place_of(file), Hints())
    if reading.base is None:
        return None
    for note in reading.notes:
        logging.getLogger("vitlab").warning(note)
    tensors = collect(reading, source)
    about = dict(reading.provenance or {})
    return Delta(reading.config, tensors, reading.base, about, reading.seen, reading.unlike)


def load_base(of: Delta, file: str | Path) -> Model:
    """Load the base of a delta from where the delta says that it is.

    Args:
        of: the delta
        file: that it was read from

    Raises:
        WeightsError: it is not there, or is another model.
    """
    path = place_of(file)
    return base_model(of.base, path, None, (path.resolve(),), of.config)
