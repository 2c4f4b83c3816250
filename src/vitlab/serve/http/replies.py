"""What the service answers, as pydantic models that OpenAPI describes, and how they are made."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from vitlab.errors import one_line
from vitlab.evaluation.classification import Answer as Answered
from vitlab.serve.http.problems import Refused
from vitlab.serve.seen import Seen, ServedModel

Request = Annotated[str, Field(description="the id of the request, also in the log")]
ModelName = Annotated[str, Field(description="the model that answered")]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Answer(BaseModel):
    """Only the fields that it has."""

    model_config = ConfigDict(extra="forbid")


class Problem(Answer):
    """Why there is no answer."""

    error: Annotated[str, Field(description="one line")]
    request: Request


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

    image: Annotated[str, Field(description="the name of the file, or `image 0`")]
    top: list[Likely]
    predicted: Annotated[
        list[str] | None,
        Field(
            description="every class above its threshold; only of a model for several classes "
            "per image"
        ),
    ] = None
    unlike: Annotated[
        bool | None,
        Field(
            description="whether the image is unlike the training images; only of a model that "
            "knows how far images are from them"
        ),
    ] = None
    distance: Annotated[
        float | None, Field(ge=0, description="how far it is from them; above 1 it is unlike them")
    ] = None


class Looked(Prediction):
    """A prediction, and where the model looked."""

    attention: Annotated[
        list[list[Fraction]] | None,
        Field(
            description="where the last layers look, row by row; null for models without attention"
        ),
    ]
    box: Annotated[
        list[float],
        Field(
            description="left, top, right and bottom of the part of the image that the model saw, "
            "as fractions",
            min_length=4,
            max_length=4,
        ),
    ]


class Predictions(Answer):
    """One prediction per image, in their order."""

    model: ModelName
    predictions: list[Prediction | Bad]
    request: Request


class Looks(Answer):
    """One prediction per image, and where the model looked."""

    model: ModelName
    predictions: list[Looked | Bad]
    request: Request


class Features(Answer):
    """The features of each image, in their order."""

    model: ModelName
    features: Annotated[
        list[list[float] | None], Field(description="one list per image; null for a bad one")
    ]
    errors: Annotated[list[Bad], Field(description="the images without features, and why")]
    request: Request


class Model(Answer):
    """A model that is served."""

    name: str
    model: Annotated[str, Field(description="its architecture, as ViT-B/16")]
    classes: list[str]
    image_size: Annotated[list[int], Field(description="rows and columns of its input")]
    features: int
    several: Annotated[bool, Field(description="whether an image may have several classes")]
    trunk: Annotated[str, Field(description="the trunk that it shares; empty if none")]
    bytes: int
    added: Annotated[float, Field(description="seconds since 1970")]
    attention: Annotated[bool, Field(description="whether it can show where it looked")]
    engine: Annotated[str, Field(description="what computes: plain, packed, openvino and so on")]
    precision: Annotated[str, Field(description="what it computes in: fp32 or bf16")]


class Models(Answer):
    """The models that are served."""

    models: list[Model]


class Changed(Answer):
    """A model that was added, replaced or removed."""

    model: str
    status: str
    request: Request


def described(card: ServedModel) -> dict[str, Any]:
    """Return a model as `Model` has it."""
    return {
        "name": card.name,
        "model": card.model,
        "classes": list(card.classes),
        "image_size": list(card.image_size),
        "features": card.features,
        "several": card.several,
        "trunk": card.trunk,
        "bytes": card.bytes,
        "added": card.added,
        "attention": card.attention,
        "engine": card.engine,
        "precision": card.precision,
    }


def predictions(
    names: Sequence[str], seen: Sequence[Seen], card: ServedModel, top: int, looked: bool
) -> list[dict[str, Any]]:
    """Return what each image is, with the keys of `vitlab predict --json`.

    Args:
        names: of the images
        seen: of each image
        card: of the model
        top: classes per image
        looked: whether to add where the model looked
    """
    rows = []
    for number, (name, each) in enumerate(zip(names, seen, strict=True)):
        chances = each.probabilities
        if each.error or chances is None or not np.isfinite(chances).all():
            rows.append(_bad(number, name, each.error or "its probabilities are not numbers"))
            continue
        above = card.thresholds if card.several else None
        answer = Answered.of(name, chances, card.classes, top, above, each.distance)
        row = answer.as_dict()
        if looked:
            row["attention"] = None if each.attention is None else each.attention.tolist()
            row["box"] = list(each.box)
        rows.append(row)
    return rows


def features(names: Sequence[str], seen: Sequence[Seen]) -> dict[str, Any]:
    """Return the features of each image, and the images that have none."""
    rows: list[list[float] | None] = []
    bad = []
    for number, (name, each) in enumerate(zip(names, seen, strict=True)):
        if each.error or each.features is None or not np.isfinite(each.features).all():
            bad.append(_bad(number, name, each.error or "its features are not numbers"))
            rows.append(None)
        else:
            rows.append(each.features.tolist())
    return {"features": rows, "errors": bad}


def _bad(number: int, name: str, reason: str) -> dict[str, str]:
    """Return an image that cannot be used, with the reason as `vitlab predict` words it."""
    reason = one_line(reason.removeprefix(f"image {number}: "))
    return {"image": name, "error": f"{name}: {reason}"}


def check_any_good(bad: Sequence[dict[str, Any]], images: int) -> None:
    """Refuse to answer with nothing but errors.

    Args:
        bad: the images with an error
        images: how many there are

    Raises:
        Refused: 422, no image can be used.
    """
    if bad and len(bad) == images:
        of = f"none of the {images} images can be used; " if images > 1 else ""
        raise Refused(422, f"{of}{bad[0]['error']}")
