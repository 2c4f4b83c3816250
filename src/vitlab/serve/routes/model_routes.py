"""Models that are added, replaced and removed while the service runs."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import JSONResponse

from vitlab.errors import UserError
from vitlab.serve.http import replies
from vitlab.serve.http.logs import log
from vitlab.serve.http.problems import Refused, refused
from vitlab.serve.http.replies import Problem
from vitlab.serve.model_names import NAME
from vitlab.serve.routes.asking import desk_of, exchange_of

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "a malformed name or body"},
    403: {"model": Problem, "description": "the service was started without a token"},
}
LOADING: dict[int | str, dict[str, Any]] = {
    201: {"model": replies.Changed, "description": "the model was added"},
    408: {"model": Problem, "description": "a body that arrives too slowly"},
    413: {"model": Problem, "description": "a body that is too large"},
    422: {"model": Problem, "description": "not a model, or its base is not served"},
    503: {"model": Problem, "description": "another model is being loaded"},
    507: {"model": Problem, "description": "the disk is full"},
}
GONE: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "an unknown model"}}
BINARY = {"type": "string", "format": "binary"}
FILES = {
    "type": "object",
    "properties": {"file": {"type": "array", "items": BINARY, "minItems": 2, "maxItems": 2}},
    "required": ["file"],
    "additionalProperties": False,
}
BODY = {
    "requestBody": {
        "required": True,
        "description": "a delta, or another model in one safetensors file; or a form with the "
        "config.json and the model.safetensors that vitlab.save wrote",
        "content": {
            "application/octet-stream": {"schema": BINARY},
            "multipart/form-data": {"schema": FILES},
        },
    }
}
Name = Annotated[str, Path(pattern=f"^{NAME}$", description="by which requests name the model")]
router = APIRouter(responses=ERRORS)


@router.put("/models/{name}", response_model=replies.Changed, responses=LOADING, openapi_extra=BODY)
async def put(request: Request, name: Name) -> JSONResponse:
    """Add or replace a model by the bytes of its file; a delta's base must be served."""
    engine, exchange = desk_of(request).engine, exchange_of(request)
    exchange.model = name
    async with request.app.state.uploads.model(request) as source:
        old = any(card.name == name for card in engine.cards())
        try:
            await asyncio.to_thread(engine.replace if old else engine.add, name, source)
        except UserError as error:
            raise Refused(422, str(error)) from None
    status = "replaced" if old else "added"
    log(f"model {status}", model=name, request=exchange.id)
    content = {"model": name, "status": status, "request": exchange.id}
    return JSONResponse(content, 200 if old else 201)


@router.delete("/models/{name}", response_model=replies.Changed, responses=GONE)
async def delete(request: Request, name: Name) -> JSONResponse:
    """Remove a model; requests that wait for it get an error."""
    desk, exchange = desk_of(request), exchange_of(request)
    exchange.model = desk.card(name).name
    try:
        await asyncio.to_thread(desk.engine.remove, name)
    except UserError as error:
        raise refused(error) from None
    log("model removed", model=name, request=exchange.id)
    return JSONResponse({"model": name, "status": "removed", "request": exchange.id})
