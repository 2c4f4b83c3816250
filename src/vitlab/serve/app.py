"""The application: what answers, who may ask, and what every answer has in common."""

import time
from collections.abc import Sequence
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from prometheus_client import CollectorRegistry
from starlette.exceptions import HTTPException
from starlette.responses import Response

from vitlab.packages import version_of
from vitlab.serve.engine import Engine
from vitlab.serve.http.access import check_owner, check_token
from vitlab.serve.http.arrival import MEBI, Held
from vitlab.serve.http.exchange import Envelope, Exchange
from vitlab.serve.http.exposition import OfEngine, Requests
from vitlab.serve.http.problems import Refused
from vitlab.serve.http.replies import Problem
from vitlab.serve.http.uploads import Uploads
from vitlab.serve.limits import Limits
from vitlab.serve.routes import image_routes, model_routes, state_routes
from vitlab.serve.routes.asking import Desk
from vitlab.serve.service_page import page_routes

ABOUT = "Vision Transformers over HTTP: classes, features, and where the model looked."


def application(
    engine: Engine,
    *,
    limits: Limits | None = None,
    token: str = "",
    hosts: Sequence[str] = (),
    fixed: bool = False,
) -> FastAPI:
    """Return the service as an ASGI application; who calls it starts and stops the engine.

    Args:
        engine: with its models
        limits: of requests; the engine's own limits should be the same
        token: that requests must carry; empty for none, and then no model can be changed
        hosts: names that requests may call the service by; none for any
        fixed: no request can change a model, even with the token: for one of several replicas
    """
    limits = limits or Limits()
    held = Held(int(max(limits.max_memory, limits.max_body) * MEBI))
    registry = CollectorRegistry()
    registry.register(OfEngine(engine))
    requests = Requests(registry)
    requests.held.set_function(lambda: held.bytes)
    app = FastAPI(
        title="ViTLab",
        description=ABOUT,
        version=version_of("vitlab"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host that a client made up
        exception_handlers={RequestValidationError: _invalid, HTTPException: _unknown},
    )
    app.state.desk, app.state.token = Desk(engine, limits, held), token
    app.state.registry = registry
    app.state.uploads = Uploads(limits.max_model * MEBI)

    def done(exchange: Exchange) -> None:
        requests.add(exchange, time.perf_counter() - exchange.began)

    app.add_middleware(Envelope, hosts=hosts, done=done)
    _add_routes(app, token, fixed)
    app.openapi()  # made once, here: it takes longer than a request may
    return app


def _add_routes(app: FastAPI, token: str, fixed: bool) -> None:
    """Add all routes; with a token, those that tell or do anything need it."""
    scheme = HTTPBearer(auto_error=False, description="the token of --token-file")
    needs = [Depends(scheme), Depends(_checked_token)] if token else []
    wrong: dict[int | str, dict[str, Any]] = {}
    if token:
        wrong[401] = {"model": Problem, "description": "no token, or a wrong one"}
    app.include_router(state_routes.state)
    for router in (state_routes.figures, image_routes.router):
        app.include_router(router, dependencies=needs, responses=wrong)
    app.router.routes.extend(page_routes())  # it asks for the token by itself
    if fixed:
        return
    owner = [*needs, Depends(_checked_owner)]
    app.include_router(model_routes.router, dependencies=owner, responses=wrong)


async def _checked_token(request: Request) -> None:
    check_token(request.headers, request.app.state.token)


async def _checked_owner(request: Request) -> None:
    check_owner(request.app.state.token)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    """Refuse a parameter of a wrong type, in one line."""
    first = error.errors()[0]
    raise Refused(400, f"{first['loc'][-1]}: {first['msg']}")


async def _unknown(request: Request, error: HTTPException) -> Response:
    """Refuse an unknown address or method, as everything else is refused."""
    messages = {404: "unknown address: see /docs", 405: "this address has other methods: see /docs"}
    message = messages.get(error.status_code, str(error.detail))
    raise Refused(error.status_code, message, dict(error.headers or {}))
