"""Heads of runs that answer with masks, boxes or numbers, by the keys of `vitlab predict`."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.evaluation.detection import detections, objects_of
from vitlab.evaluation.estimates import named_estimates
from vitlab.evaluation.segmentation import (
    Scene,
    maps_of,
    mask_image,
    most_pixels,
    segmented,
    shares,
)
from vitlab.files import head_of
from vitlab.models.config import ModelConfig
from vitlab.models.heads.detect import Detector
from vitlab.models.heads.regress import Regressor
from vitlab.models.heads.segment import Segmenter, check_spec
from vitlab.precision import Engine, ServePrecision
from vitlab.serve.decoders import Decoded, Wanted
from vitlab.weights.detector import load_detector
from vitlab.weights.regressor import load_regressor
from vitlab.weights.segmenter import load_segmenter

Head = Segmenter | Detector | Regressor
Kind = Literal["classes", "features", "masks", "boxes", "numbers"]
Row = dict[str, Any]

LOADERS: dict[str, Callable[[str | Path], Head]] = {
    "masks": load_segmenter,
    "boxes": load_detector,
    "numbers": load_regressor,
}
LONGEST = 16  # times its width that an image may be high, and the reverse: windows take time
SCORES = 2**30  # of an image's own pixels: about 8 seconds of one core


def load_head(source: str | Path) -> Head | None:
    """Load a run whose head answers with something else than classes; None of any other weights.

    Raises:
        DataError: a segmenter of images of any size.
        WeightsError: it is damaged.
    """
    place = Path(source).expanduser()
    if not (kind := head_of(place)):
        return None
    head = LOADERS[kind](place)
    if isinstance(head, Segmenter):
        check_spec(head.model.config.images)
    return head


def form_of(head: Head, precision: ServePrecision, engine: Engine) -> tuple[ServePrecision, Engine]:
    """Return the precision and the engine of a head, if what was asked for fits it.

    Raises:
        OptionError: the message says what works.
    """
    if isinstance(head, Regressor):  # a linear layer on features, which have every other form
        fit, works, form = precision != "int8", "auto, fp32 or bf16", (precision, engine)
    else:
        fit = precision in ("auto", "fp32") and engine in ("auto", "plain")
        works, form = "auto or fp32, engine=auto or plain", ("fp32", "plain")
    if not fit:
        raise OptionError(
            f"precision={precision}, engine={engine} are not for runs of {told(head)['answers']}: "
            f"choose precision={works}"
        )
    return form


def told(head: Head | ModelConfig) -> dict[str, Any]:
    """Return what a head, or a model without one, answers with, as fields of `ServedModel`."""
    match head:
        case Segmenter(about=about):
            return {"answers": "masks", "classes": about.classes, "numbers": about.values}
        case Detector(about=found):
            return {"answers": "boxes", "classes": found.classes}
        case Regressor(about=known):
            return {"answers": "numbers", "targets": known.targets}
    return {"answers": "classes" if head.classes else "features", "classes": head.class_names}


def wanted_by(config: ModelConfig, head: Head | None) -> Wanted:
    """Return what images are decoded to: for a segmenter all of it, for windows."""
    wanted = Wanted.by(config)
    if not isinstance(head, Segmenter):
        return wanted
    scale, classes = head.about.scale, len(head.about.classes)
    most = min(round(LONGEST * max(1, scale) ** 2 * config.area), most_pixels(classes))
    own = SCORES // classes
    return replace(wanted, most=most * config.channels, scale=scale, pixels=own)


def masks(segmenter: Segmenter, images: Sequence[Decoded]) -> list[Row | None]:
    """Return the shares of classes and the mask of each image, a PNG in base64; or None.

    None is of outputs that are not finite, here and below.
    """
    spec, about, rows = segmenter.model.config.images, segmenter.about, list[Row | None]()
    scenes = [Scene(number, each.pixels, each.size, None) for number, each in enumerate(images)]
    device = next(segmenter.parameters()).device
    for found in maps_of(segmenter.coarse, scenes, spec, device):
        labels, stream = segmented(found, spec).predicted, io.BytesIO()
        mask_image(labels, about).save(stream, "PNG")
        row = {
            "shares": shares(labels, about),
            "mask": base64.b64encode(stream.getvalue()).decode(),
        }
        rows.append(row if found.maps.isfinite().all() else None)
    return rows


def boxes(detector: Detector, images: Tensor, decoded: Sequence[Decoded]) -> list[Row | None]:
    """Return the objects in each of a batch of normalized images, (B, channels, H, W)."""
    chances, places = detector(images)
    fine = chances.isfinite().flatten(1).all(1).tolist()
    rows = zip(detections(chances, places), decoded, fine, strict=True)
    classes = detector.about.classes
    return [
        {"objects": objects_of(own, each.size, classes)} if ok else None for own, each, ok in rows
    ]


def numbers(regressor: Regressor, features: Tensor) -> list[Row | None]:
    """Return the numbers of each image by its features, (B, features)."""
    found = regressor.estimates(features.float().flatten(1).cpu().numpy())
    rows = named_estimates(found, regressor.about.targets)
    return [
        row if np.isfinite(own).all() else None for row, own in zip(rows, found.values, strict=True)
    ]
