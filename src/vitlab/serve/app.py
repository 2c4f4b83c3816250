"""HTTP application of a service: its routes, who may ask them, and the way to the engine."""

import asyncio
import base64
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from vitlab.errors import OptionError, UserError
from vitlab.packages import version_of
from vitlab.serve import bodies, replies
from vitlab.serve.access import check_origin, check_token, has_token
from vitlab.serve.answers import Seen, What
from vitlab.serve.engine import Engine
from vitlab.serve.exchange import MEBI, BodyMemory, Envelope, Exchange, Refused, busy, exchange_of
from vitlab.serve.limits import NAME
from vitlab.serve.logs import log
from vitlab.serve.pages import page_routes
from vitlab.serve.registry import Served
from vitlab.serve.replies import Problem

ABOUT = "Vision Transformers over HTTP: classes, masks, objects, numbers, features, attention."
PNG, TOP = "image/png", 5
SLOW = 1.0  # seconds that a body may take to arrive while it counts as an image that waits
PROBLEMS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "what is asked cannot be answered"},
    "5XX": {"model": Problem, "description": "a failure; 503: try again after Retry-After"},
}
ModelName = Annotated[str, Query(description="the model's name; the first one if it is not given")]
NewName = Annotated[str, Path(pattern=f"^{NAME}$", description="by which requests name the model")]
Top = Annotated[int, Query(ge=1, description="how many classes per image")]


class Serving:
    """A service as its routes know it.

    Args:
        engine: that computes

    Attributes:
        ending: whether the service has been asked to stop
        under_way: requests about images that have no answer yet
        slow: those of them whose bodies have been arriving for more than a second
        counts: `requests` and `images` so far
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.limits = engine, engine.limits
        self.ending, self.under_way, self.slow = False, 0, 0
        self.counts = {"requests": 0, "images": 0}
        self.loading = asyncio.Lock()

    def crowded(self, under_way: int) -> float:
        """Return what `Engine.crowded` does; a body that arrives slowly takes no place of others.

        It holds its memory alone, which is bounded by itself, and may be refused once it is there.
        """
        return self.engine.crowded(under_way - self.slow)

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Count a request as slow if its body takes longer than a second."""
        slow = 0

        def count() -> None:
            nonlocal slow
            slow = 1
            self.slow += slow

        timer = asyncio.get_running_loop().call_later(SLOW, count)
        try:
            yield
        finally:
            timer.cancel()
            self.slow -= slow

    def model(self, name: str) -> Served:
        """Return a model; the first one without a name.

        Raises:
            Refused: 404, there is none.
        """
        models = self.engine.models
        for served in models.values():
            if name in ("", served.card.name):
                return served
        known = ", ".join(list(models)[:10])
        advice = f"choose from {known}" if known else "none is served"
        raise Refused(404, f"unknown model {name[:80]!r}: {advice}")


def application(
    engine: Engine,
    *,
    token: str = "",
    admin_token: str = "",
    hosts: Sequence[str] = (),
    fixed: bool = False,
) -> FastAPI:
    """Return the service as an ASGI application; who calls it starts and stops the engine.

    Args:
        engine: with its models
        token: that requests must carry; empty for none
        admin_token: that requests must carry that change models, and others may; empty for the
            same token. Without either no model can be changed
        hosts: names that requests may call the service by; none for any
        fixed: no request can change a model, even with the token: for one of several replicas
    """
    app = FastAPI(
        title="ViTLab",
        description=ABOUT,
        version=version_of("vitlab"),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host that a client made up
        exception_handlers={RequestValidationError: _invalid, HTTPException: _unknown},
        dependencies=[Depends(_check_query)],
        responses=PROBLEMS,
    )
    app.state.serving = Serving(engine)

    def done(exchange: Exchange) -> None:
        labels = (exchange.route, exchange.method, str(exchange.status))
        seconds = time.perf_counter() - exchange.began
        engine.metrics.request_seconds.labels(*labels).observe(seconds)

    memory = BodyMemory(int(max(engine.limits.max_memory, engine.limits.max_body) * MEBI))
    engine.metrics.gauge("body_bytes", "Bytes of bodies in memory", lambda: memory.used)
    app.add_middleware(Envelope, hosts=hosts, memory=memory, done=done)

    async def check_asker(request: Request) -> None:
        if token:
            check_token(request.headers, token, admin_token)
        elif request.method == "POST":
            check_origin(request.headers)

    async def check_owner(request: Request) -> None:
        if not token and not admin_token:
            raise Refused(403, "models can be changed only if the service has a --token-file FILE")
        check_token(request.headers, token, admin_token)
        if admin_token and not has_token(request.headers, admin_token):
            raise Refused(403, "this token may ask, not change models")

    scheme = [Depends(HTTPBearer(auto_error=False, description="the token of --token-file"))]
    app.include_router(state)
    asker = [*(scheme if token else []), Depends(check_asker)]
    app.include_router(asking, dependencies=asker)
    app.router.routes.extend(page_routes())  # it asks for the token by itself
    if not fixed:
        secret = scheme if token or admin_token else []
        app.include_router(administering, dependencies=[*secret, Depends(check_owner)])
    app.openapi()  # made once, here: it takes longer than a request may
    return app


def _serving(request: Request) -> Serving:
    found: Serving = request.app.state.serving
    return found


async def _check_query(request: Request) -> None:
    """Refuse parameters that the route does not have, and those given twice."""
    about = request.app.openapi()["paths"].get(request.scope["route"].path, {})
    parameters = about.get(request.method.lower(), {}).get("parameters", ())
    known = [each["name"] for each in parameters if each["in"] == "query"]
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if name not in known:
            advice = f"choose from {', '.join(known)}" if known else "this address has none"
            raise Refused(400, f"unknown parameter {name[:80]!r}: {advice}")
        if names.count(name) > 1:
            raise Refused(400, f"the parameter {name!r} is given twice")


async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
    """Refuse a parameter of a wrong type, in one line."""
    first = error.errors()[0]
    raise Refused(400, f"{first['loc'][-1]}: {first['msg']}")


async def _unknown(request: Request, error: HTTPException) -> JSONResponse:
    """Refuse an unknown address or method, as everything else is refused."""
    see = "see /openapi.json"
    messages = {404: f"unknown address: {see}", 405: f"this address has other methods: {see}"}
    message = messages.get(error.status_code, str(error.detail))
    raise Refused(error.status_code, message, dict(error.headers or {}))


state = APIRouter()  # for those who watch over the service: no token, and no wait for a model


@state.head("/health", include_in_schema=False)
@state.get("/health", response_model=replies.State)
async def health(request: Request) -> JSONResponse:
    """Return that the service is alive, unless it has to be started anew."""
    if trouble := _serving(request).engine.trouble:
        raise Refused(500, trouble)
    return JSONResponse({"status": "alive"})


@state.head("/ready", include_in_schema=False)
@state.get("/ready", response_model=replies.State)
async def ready(request: Request) -> JSONResponse:
    """Return whether the service takes requests."""
    serving = _serving(request)
    if serving.ending:
        raise busy("the service is ending", 10)
    if not serving.engine.ready:
        reason = serving.engine.trouble
        raise busy(reason or "no model is served yet: they may be warming up")
    return JSONResponse({"status": "ready"})


asking = APIRouter()


@asking.get("/models", response_model=replies.Models)
async def models(request: Request) -> JSONResponse:
    """Return the models that are served."""
    cards = _serving(request).engine.cards()
    return JSONResponse(replies.Models(models=cards).model_dump(mode="json"))


@asking.post(
    "/predict",
    response_model=replies.Predictions,
    responses={200: {"content": {PNG: {"schema": bodies.BINARY}}}},
    openapi_extra=bodies.IMAGES,
)
async def predict(request: Request, model: ModelName = "", top: Top = TOP) -> Response:
    """Return what images show: the likeliest classes, or the mask, objects or numbers of each."""
    bare = PNG in request.headers.get("accept", "")
    found = await _answer(request, model, "classes", top, bare=bare)
    if bare and "mask" in (row := found["predictions"][0]):
        return Response(base64.b64decode(row["mask"]), media_type=PNG)
    return JSONResponse(found)


@asking.post("/attention", response_model=replies.Predictions, openapi_extra=bodies.IMAGES)
async def attention(request: Request, model: ModelName = "", top: Top = TOP) -> JSONResponse:
    """Return the likeliest classes of images, and where the model looked."""
    return JSONResponse(await _answer(request, model, "attention", top))


@asking.post("/features", response_model=replies.Features, openapi_extra=bodies.IMAGES)
async def features(request: Request, model: ModelName = "") -> JSONResponse:
    """Return the features of images: what the classifier sees."""
    return JSONResponse(await _answer(request, model, "features"))


async def _answer(
    request: Request, model: str, what: What, top: int = 0, *, bare: bool = False
) -> dict[str, Any]:
    """Ask the engine about the images of a request; what it refuses, the middleware answers.

    The model is taken here, once, and answers even if it is replaced or removed meanwhile. A mask
    that is to come `bare`, as a PNG, is of one image.
    """
    serving, exchange = _serving(request), exchange_of(request)
    if not serving.engine.ready:
        raise busy("the service is not ready: try again soon")
    served = serving.model(model)
    card = served.card
    exchange.model = card.name
    serving.engine.check(1, served, what)  # before the body is read
    if what == "classes" and top != TOP and (kind := card.answers) != what:
        raise Refused(400, f"top is of classes, and this model answers with {kind}: leave it out")
    serving.under_way += 1
    try:
        with serving.arriving():
            names, images = await bodies.photos(request, serving.limits)
        exchange.images = len(images)
        if bare and card.answers == "masks" and len(images) > 1:
            raise Refused(400, f"{PNG} holds one mask: send one image, or accept application/json")
        serving.counts["requests"] += 1
        serving.counts["images"] += len(images)
        seen = await _unless_left(exchange, serving.engine.answer(images, served, what))
    finally:
        serving.under_way -= 1
    found = replies.answered(names, seen, card, what, top)
    return {"model": card.name, **found, "request": exchange.id}


async def _unless_left(exchange: Exchange, answer: Any) -> list[Seen]:
    """Wait for the engine, as long as the client does.

    Raises:
        Refused: the client has left, or the engine has ended.
    """
    answering, leaving = asyncio.create_task(answer), asyncio.create_task(exchange.left())
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise Refused(400, "the client has left")
        found: list[Seen] = answering.result()
        return found
    except asyncio.CancelledError:
        if answering.cancelled():  # by the engine
            raise busy("the service is ending") from None
        raise
    finally:
        answering.cancel()
        leaving.cancel()


administering = APIRouter()


@administering.put(
    "/models/{name}",
    response_model=replies.Changed,
    responses={201: {"model": replies.Changed, "description": "the model was added"}},
    openapi_extra=bodies.MODEL,
)
async def put(request: Request, name: NewName) -> JSONResponse:
    """Add or replace a model by its safetensors file; a delta's base must be served."""
    serving, exchange = _serving(request), exchange_of(request)
    exchange.model = name
    if serving.loading.locked():
        raise busy("another model is being loaded: try again soon", 5)
    async with serving.loading, bodies.model(request, serving.limits.max_model * MEBI) as source:
        try:
            old = await asyncio.to_thread(serving.engine.put, name, source)
        except UserError as error:
            raise Refused(422, str(error)) from None
    return _changed(exchange, "replaced" if old else "added", 200 if old else 201)


@administering.delete("/models/{name}", response_model=replies.Changed)
async def delete(request: Request, name: NewName) -> JSONResponse:
    """Remove a model; requests that wait for it are answered."""
    serving, exchange = _serving(request), exchange_of(request)
    exchange.model = serving.model(name).card.name
    try:
        await asyncio.to_thread(serving.engine.remove, name)
    except OptionError as error:  # another request was faster
        raise Refused(404, str(error)) from None
    return _changed(exchange, "removed", 200)


def _changed(exchange: Exchange, status: str, number: int) -> JSONResponse:
    log(f"model {status}", model=exchange.model, request=exchange.id)
    content = {"model": exchange.model, "status": status, "request": exchange.id}
    return JSONResponse(content, number)
