"""What is asked about images: their classes, their features, and where the model looked."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse

from vitlab.serve.http import replies
from vitlab.serve.http.bodies import described
from vitlab.serve.http.replies import Problem
from vitlab.serve.routes.asking import Asked, desk_of

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "a malformed body or parameter"},
    404: {"model": Problem, "description": "an unknown model"},
    408: {"model": Problem, "description": "a body that arrives too slowly"},
    413: {"model": Problem, "description": "a body that is too large, or too many images"},
    415: {"model": Problem, "description": "an unsupported type of body"},
    422: {"model": Problem, "description": "no image can be used"},
    503: {"model": Problem, "description": "the queue is full: try again after Retry-After"},
    504: {"model": Problem, "description": "no answer within the time allowed"},
}
BODY = {"requestBody": described()}
Name = Annotated[str, Query(description="the model's name; the first one if it is not given")]
Top = Annotated[int, Query(ge=1, description="how many classes per image")]
router = APIRouter(responses=ERRORS)


@router.post("/predict", response_model=replies.Predictions, openapi_extra=BODY)
async def predict(request: Request, model: Name = "", top: Top = 5) -> JSONResponse:
    """Return the likeliest classes of images."""
    async with desk_of(request).ask(request, model, "classes") as asked:
        return _predictions(asked, top, looked=False)


@router.post("/attention", response_model=replies.Looks, openapi_extra=BODY)
async def attention(request: Request, model: Name = "", top: Top = 5) -> JSONResponse:
    """Return the likeliest classes of images, and where the model looked."""
    async with desk_of(request).ask(request, model, "attention") as asked:
        return _predictions(asked, top, looked=True)


@router.post("/features", response_model=replies.Features, openapi_extra=BODY)
async def features(request: Request, model: Name = "") -> JSONResponse:
    """Return the features of images: what the classifier sees."""
    async with desk_of(request).ask(request, model, "features") as asked:
        found = replies.features(asked.names, asked.seen)
        replies.check_any_good(found["errors"], len(asked.names))
        return JSONResponse({"model": asked.card.name, **found, "request": asked.request})


def _predictions(asked: Asked, top: int, *, looked: bool) -> JSONResponse:
    rows = replies.predictions(asked.names, asked.seen, asked.card, top, looked)
    replies.check_any_good([row for row in rows if "error" in row], len(rows))
    content = {"model": asked.card.name, "predictions": rows, "request": asked.request}
    return JSONResponse(content)
