"""How the service is; these answers never wait for a model."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from vitlab.serve.http import replies
from vitlab.serve.http.exposition import TEXT, as_text
from vitlab.serve.http.problems import Refused, busy
from vitlab.serve.http.replies import Problem
from vitlab.serve.routes import reference
from vitlab.serve.routes.asking import desk_of

state = APIRouter()  # for those who watch over the service: no token is needed
figures = APIRouter()
NOT_READY = {"model": Problem, "description": "it is warming up, has no model, or is ending"}
LOST = {"model": Problem, "description": "its device is lost, or a batch does not end"}


@state.head("/health", include_in_schema=False)
@state.get("/health", response_model=replies.State, responses={500: LOST})
async def health(request: Request) -> JSONResponse:
    """Return that the service is alive, unless it has to be started anew."""
    if trouble := desk_of(request).engine.trouble:
        raise Refused(500, trouble)
    return JSONResponse({"status": "alive"})


@state.head("/ready", include_in_schema=False)
@state.get("/ready", response_model=replies.State, responses={503: NOT_READY})
async def ready(request: Request) -> JSONResponse:
    """Return whether the service takes requests."""
    desk = desk_of(request)
    if desk.ending:
        raise busy("the service is ending", 10)
    if not desk.engine.ready:
        raise busy(desk.engine.trouble or "no model is served yet: they may be warming up")
    return JSONResponse({"status": "ready"})


@state.get("/docs", response_class=HTMLResponse)
async def docs(request: Request) -> HTMLResponse:
    """Return this description as a page."""
    page = await asyncio.to_thread(reference.page, request.app.openapi())
    return HTMLResponse(page, headers=reference.CSP)


@figures.get("/models", response_model=replies.Models)
async def models(request: Request) -> JSONResponse:
    """Return the models that are served."""
    cards = desk_of(request).engine.cards()
    return JSONResponse({"models": [replies.described(card) for card in cards]})


@figures.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(request: Request) -> Response:
    """Return figures for Prometheus."""
    return Response(as_text(request.app.state.registry), media_type=TEXT)
