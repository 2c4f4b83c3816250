"""The file of a detector: queries and heads in `detect.safetensors`, beside the run's model."""

from pathlib import Path

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.files import DETECT
from vitlab.models.heads.detect import BoxClasses, BoxHead, Detector, check_boxes
from vitlab.models.model import Model
from vitlab.weights.beside import HeadFile, load_beside


def load_detector(run: str | Path) -> Detector:
    """Load the detector of a run of `--task detect`.

    Raises:
        WeightsError: none is there, or it is damaged or of another model.
    """
    model, about, tensors = load_beside(run, BOXES)
    head = BoxHead(model.config, about)
    head.load_state_dict(tensors)
    return Detector(model, head)


def _expect_tensors(model: Model, about: BoxClasses) -> dict[str, Tensor]:
    """Return the tensors of a head, without memory."""
    if not about.classes:
        raise OptionError("it has no classes")
    check_boxes(model.config, about)
    with torch.device("meta"):
        return BoxHead(model.config, about).state_dict()


BOXES = HeadFile(DETECT, BoxClasses, _expect_tensors, "vitlab train DATA --task detect")
