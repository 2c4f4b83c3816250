"""A service with the routes that the page asks for, and answers that are made up."""

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from PIL import Image, ImageOps
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from vitlab.serve.pages import page_routes

NASTY = "<img src=x onerror=alert(1)>"
MODELS = [
    {"name": "first", "model": "ViT-B/16", "classes": ["pagoda", NASTY, "dahlia"]},
    {"name": "second", "model": "BiT-R50x1", "classes": ["a", "b"]},
]


async def models(request: Request) -> JSONResponse:
    return JSONResponse({"models": MODELS})


async def attention(request: Request) -> JSONResponse:
    """The middle square of the photo, brightest at its upper left."""
    try:
        photo = ImageOps.exif_transpose(Image.open(io.BytesIO(await request.body())))
    except OSError:
        return JSONResponse({"error": "image 0: not an image", "request": "id-2"}, 422)
    side = min(photo.size)
    across, down = (1 - side / photo.width) / 2, (1 - side / photo.height) / 2
    first = request.query_params["model"] != "second"
    top = [{"class": "pagoda", "probability": 0.9996}, {"class": NASTY, "probability": 0.0004}]
    seen = {
        "image": "image 0",
        "top": top if first else [{"class": "b", "probability": 0.75}],
        "attention": [[1.0, 0.5], [0.5, 0.0]] if first else None,
        "box": [across, down, 1 - across, 1 - down],
    }
    name = request.query_params["model"]
    return JSONResponse({"model": name, "predictions": [seen], "request": "id-1"})


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a free port of 127.0.0.1; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


def application() -> Starlette:
    asked = [Route("/models", models), Route("/attention", attention, methods=["POST"])]
    return Starlette(routes=[*page_routes(), *asked])


def refusal(status: int, **headers: str) -> dict[str, Any]:
    """What Playwright's `route.fulfill` needs to answer with an error."""
    body = json.dumps({"error": f"reason {status}", "request": "id-3"})
    return {"status": status, "body": body, "headers": headers, "content_type": "application/json"}
