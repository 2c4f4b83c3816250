"""Replies of a service, as pydantic models that OpenAPI describes, and how they are made."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from vitlab.evaluation.classified_image import ClassifiedImage as Answered
from vitlab.files import HEADS
from vitlab.serve.answers import Seen, What
from vitlab.serve.exchange import Refused
from vitlab.serve.registry import ServedModel

Fraction = Annotated[float, Field(ge=0, le=1)]


class Answer(BaseModel):
    """Only the fields that it has."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Problem(Answer):
    """Why there is no answer."""

    error: str
    """one line"""
    request: str
    """the id of the request, also in the log"""


class State(Answer):
    """How the service is."""

    status: str


class Likely(Answer):
    """A class and its probability."""

    class_: Annotated[str, Field(alias="class")]
    probability: Fraction


class Bad(Answer):
    """An image that cannot be used."""

    image: str
    error: str


class Prediction(Answer):
    """The likeliest classes of an image, best first."""

    image: str
    """the name of the file, or `image 0`"""
    top: list[Likely]
    predicted: list[str] | None = None
    """every class above its threshold; only of a model for several classes per image"""
    unlike: bool | None = None
    """whether the image is unlike the training images, if the model knows how far it is"""
    distance: Annotated[float | None, Field(ge=0)] = None
    """how far it is from them; above 1 it is unlike them"""
    attention: list[list[Fraction]] | None = None
    """of /attention: where the last layers look, row by row; null for models without attention"""
    box: Annotated[list[float] | None, Field(min_length=4, max_length=4)] = None
    """of /attention: left, top, right, bottom of what the model saw, as fractions of the image"""


class MaskReply(Answer):
    """The class of each pixel of an image."""

    image: str
    shares: dict[str, Fraction]
    """of the pixels, by class, the largest first"""
    mask: Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
    """a PNG of the size of the image, in base64; Accept: image/png gives it alone, as it is"""


class Located(Likely):
    """An object: its class and probability, and where it is."""

    box: Annotated[list[float], Field(min_length=4, max_length=4)]
    """left, top, right and bottom, in pixels of the upright image"""


class ObjectsReply(Answer):
    """The objects in an image, likeliest first."""

    image: str
    objects: list[Located]


class NumbersReply(Answer):
    """The numbers of an image, in the units of the training data."""

    image: str
    values: dict[str, float]
    deviations: dict[str, float] | None = None
    """standard deviations, of a model that knows them"""


class Predictions(Answer):
    """One answer per image, in their order: what the model answers with."""

    model: str
    predictions: list[Prediction | MaskReply | ObjectsReply | NumbersReply | Bad]
    request: str


class Features(Answer):
    """The features of each image, in their order."""

    model: str
    features: list[list[float] | None]
    """one list per image; null for a bad one"""
    errors: list[Bad]
    """the images without features, and why"""
    request: str


class Models(Answer):
    """The models that are served."""

    models: list[ServedModel]


class Changed(Answer):
    """A model that was added, replaced or removed."""

    model: str
    status: str
    request: str


def answered(
    names: Sequence[str], seen: Sequence[Seen], card: ServedModel, what: What, top: int
) -> dict[str, Any]:
    """Return what each image is, with the keys of `vitlab predict --json`, or its features.

    Args:
        names: of the images
        seen: of each image
        card: of the model
        what: was asked
        top: classes per image

    Raises:
        Refused: 422, no image can be used.
    """
    rows: list[Any] = []
    bad = []
    for number, (name, each) in enumerate(zip(names, seen, strict=True)):
        headed = what == "classes" and card.answers in HEADS.values()
        numbers = each.features if what == "features" else each.probabilities
        values: NDArray[Any] = np.array(np.nan) if numbers is None else numbers
        if each.error or not (each.found if headed else np.isfinite(values).all()):
            reason = each.error or "the model gives numbers that are not finite"
            reason = f"{name}: {reason.removeprefix(f'image {number}: ')}"
            bad.append({"image": name, "error": reason})
            rows.append(None if what == "features" else bad[-1])
        elif headed:
            rows.append({"image": name} | (each.found or {}))
        elif what == "features":
            rows.append(values.tolist())
        else:
            above = card.thresholds if card.several else None
            row = Answered.of(name, values, card.classes, top, above, each.distance).as_dict()
            if what == "attention":
                row["attention"] = None if each.attention is None else each.attention.tolist()
                row["box"] = list(each.box)
            rows.append(row)
    if bad and len(bad) == len(names):
        of = f"none of the {len(bad)} images can be used; " if len(bad) > 1 else ""
        raise Refused(422, f"{of}{bad[0]['error']}")
    if what == "features":
        return {"features": rows, "errors": bad}
    return {"predictions": rows}
