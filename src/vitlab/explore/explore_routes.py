"""The explorer over HTTP: its page, what the page asks, and the server until it is stopped."""

import asyncio
import json
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from vitlab.data.decode.formats import format_of
from vitlab.errors import OptionError, one_line
from vitlab.explore import views
from vitlab.explore.dataset_map import DatasetMap, MapJob
from vitlab.explore.explorer import Explorer
from vitlab.explore.gallery import FORMATS, OpenImage
from vitlab.pages.assets import EXPLORE
from vitlab.serve.access import LOCAL
from vitlab.serve.exchange import BodyMemory, Envelope, Refused, busy, exchange_of
from vitlab.serve.pages import page_routes
from vitlab.serve.service import server_of

MOST_BODY = 64 * 2**20  # bytes of an image file
MOST_ASKED = 2**20  # bytes of a question
PATIENCE = 60.0  # seconds in which a body must arrive
NAME = 200  # characters of an image's name
FOREVER = {"Cache-Control": "private, max-age=31536000, immutable"}  # the id is of the content
LEAVE = 1  # seconds for the answers under way, once asked to stop
HOST = "127.0.0.1"
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Answer = Callable[[Request], Awaitable[Response]]


class Routes:
    """What answers the page.

    Args:
        explorer: that knows models and images
    """

    def __init__(self, explorer: Explorer) -> None:
        self.explorer = explorer

    def routes(self) -> list[Route]:
        """Return the routes of the explorer, which only its own page may ask."""
        look = "/api/look/{model:int}/{image}"
        read = {
            "/api/state": self.state,
            "/api/images/{image}": self.picture,
            look: self.look,
            f"{look}/attention/{{token}}": self.attention,
            f"{look}/map/{{kind}}": self.map,
            f"{look}/colors": self.colors,
            f"{look}/mask": self.mask,
            "/api/map": self.points,
            "/api/map/sheet": self.sheet,
            "/api/labels": self.labels,
            "/api/labels.csv": self.label_list,
        }
        written = {
            "/api/images": self.open,
            f"{look}/without": self.without,
            "/api/map/{index:int}": self.open_point,
            "/api/labels": self.give_labels,
        }
        return [
            Route(path, own_page(answer), methods=[method])
            for method, answers in (("GET", read), ("POST", written))
            for path, answer in answers.items()
        ]

    async def state(self, request: Request) -> Response:
        """Return the models and the images that are open."""
        return JSONResponse(
            {
                "models": [each.described() for each in self.explorer.models],
                "images": self.explorer.gallery.described(),
                "map": self.explorer.map_job is not None,
                "limits": {"body": MOST_BODY},
            }
        )

    async def open(self, request: Request) -> Response:
        """Open an image: the body is its file."""
        body = await self._body(request, MOST_BODY)
        name = one_line(request.query_params.get("name", ""))[:NAME] or "image"
        if format_of(body) not in FORMATS:
            *others, last = FORMATS
            raise Refused(415, f"{name}: not a {', '.join(others)} or {last} image")
        image = await self.explorer.gallery.open(body, name)
        return JSONResponse(image.described(), 201)

    async def picture(self, request: Request) -> Response:
        """Return an image for the page."""
        return Response(self._image(request).picture, media_type="image/png", headers=FOREVER)

    async def look(self, request: Request) -> Response:
        """Return what a model makes of an image at first sight."""
        number, image = self._subject(request)
        seen = await self.explorer.look(number, image)
        return JSONResponse(self.explorer.models[number].of_pass(seen))

    async def attention(self, request: Request) -> Response:
        """Return what one token attends to in every head of every layer, as octets."""
        number, image = self._subject(request)
        seen = await self.explorer.look(number, image)
        token = request.path_params["token"]
        layers = seen.pool if token == "pool" else seen.attention
        if not layers:
            why = self.explorer.models[number].why_not["attention"]
            raise OptionError(why if token != "pool" and why else "the model has no attention pool")
        place = 0 if token == "pool" else _whole(token, "token")
        if not 0 <= place < (count := layers[0][0].shape[1]):
            raise OptionError(f"token {place} of {count}: they are counted from 0")
        return Response(views.attended(layers, place), media_type="application/octet-stream")

    async def map(self, request: Request) -> Response:
        """Return a number for each patch."""
        number, image = self._subject(request)
        kind = request.path_params["kind"]
        if kind not in views.UNITS:
            raise Refused(404, f"unknown view {kind[:40]!r}: choose from {', '.join(views.UNITS)}")

        values = await self.explorer.view(
            number,
            image,
            kind,
            label=_given(request, "class"),
            layer=_given(request, "layer"),
            token=_given(request, "token") or 0,
        )
        return JSONResponse(
            {"grid": list(values.shape), "values": values.tolist(), "unit": views.UNITS[kind]}
        )

    async def colors(self, request: Request) -> Response:
        """Return a color for each patch, and the images that share their basis."""
        number, image = self._subject(request)
        found, basis = await self.explorer.colors(number, image, _given(request, "layer"))
        grid = list(found.shape[:2])
        return JSONResponse({"grid": grid, "colors": found.tolist(), "basis": basis})

    async def mask(self, request: Request) -> Response:
        """Return the class of each pixel that a segmenter sees, and their names and colors."""
        number, image = self._subject(request)
        return JSONResponse(await self.explorer.mask(number, image))

    async def without(self, request: Request) -> Response:
        """Return what the prediction becomes where some patches are covered."""
        number, image = self._subject(request)
        asked = _asked(await self._body(request, MOST_ASKED), "patches", "classes")
        shown = self.explorer.models[number]
        classes = asked["classes"]
        if any(not 0 <= each < shown.model.config.classes for each in classes):
            raise OptionError(f"classes: choose from 0 to {shown.model.config.classes - 1}")
        found = await self.explorer.without(number, image, asked["patches"])
        chances = [float(found[each]) for each in classes]
        return JSONResponse({"top": shown.top(found), "chances": chances})

    async def points(self, request: Request) -> Response:
        """Return the map of the data set, or how far it is."""
        made, share, what = self._map_job().state()
        if made is None:
            return JSONResponse({"progress": share, "what": what}, 202)
        return JSONResponse(made.about)

    async def sheet(self, request: Request) -> Response:
        """Return the thumbnails of the map."""
        return Response(self._made().sheet, media_type="image/png")

    async def open_point(self, request: Request) -> Response:
        """Open an image of the map."""
        place: int = request.path_params["index"]
        made = self._made()
        if place >= len(made.images):
            raise Refused(404, f"image {place} of {len(made.images)}: they are counted from 0")
        name, data = await asyncio.to_thread(made.content, place)
        image = await self.explorer.gallery.open(data, name)
        return JSONResponse(image.described(), 201)

    async def labels(self, request: Request) -> Response:
        """Return the labels of the map, and what follows from them."""
        return JSONResponse(await asyncio.to_thread(self._made().labeling.state))

    async def give_labels(self, request: Request) -> Response:
        """Give some images of the map a class, or take theirs away; return what follows."""
        labeling = self._made().labeling
        asked = _asked(await self._body(request, MOST_ASKED), "images")
        if not isinstance(name := asked.get("class"), str):
            raise Refused(400, "class must be a name")
        return JSONResponse(await asyncio.to_thread(labeling.give, asked["images"], name))

    async def label_list(self, request: Request) -> Response:
        """Return the labels as a file that every command reads."""
        text = await asyncio.to_thread(self._made().labeling.as_csv)
        saved = {"Content-Disposition": 'attachment; filename="labels.csv"'}
        return Response(
            text.encode("utf-8", "surrogateescape"), media_type="text/csv", headers=saved
        )

    def _map_job(self) -> MapJob:
        if self.explorer.map_job is None:
            raise Refused(404, "there is no map: start the explorer with --data DATA")
        return self.explorer.map_job

    def _made(self) -> DatasetMap:
        made, _, _ = self._map_job().state()
        if made is None:
            raise busy("the map is not ready: try again soon")
        return made

    async def _body(self, request: Request, most: int) -> bytes:
        """Return the body of a request, within a bound.

        Raises:
            Refused: it is too large, too slow, or cut off.
        """
        exchange = exchange_of(request)
        exchange.expect(most)
        return await exchange.arrived(request.body(), PATIENCE)

    def _subject(self, request: Request) -> tuple[int, OpenImage]:
        """Return the model and the image of a look."""
        number: int = request.path_params["model"]
        if number >= len(self.explorer.models):
            raise Refused(404, f"there is no model {number}: they are counted from 0")
        return number, self._image(request)

    def _image(self, request: Request) -> OpenImage:
        found = self.explorer.gallery.get(request.path_params["image"])
        if found is None:
            raise Refused(404, "this image is no longer open: open it again")
        return found


def own_page(answer: Answer) -> Answer:
    """Refuse a request that a page of another site makes: browsers say where it comes from."""

    async def checked(request: Request) -> Response:
        headers = request.headers
        origin = headers.get("origin", "")
        site = headers.get("sec-fetch-site", "")
        own = f"http://{headers.get('host', '')}"
        if (origin and origin.lower() != own.lower()) or site in ("cross-site", "same-site"):
            raise Refused(403, "only the page that this service serves may ask it")
        return await answer(request)

    return checked


def application(explorer: Explorer) -> Starlette:
    """Return the explorer as an ASGI application that only its own page may ask."""
    envelope = Middleware(Envelope, hosts=LOCAL, memory=BodyMemory(4 * MOST_BODY))
    app = Starlette(
        routes=[*page_routes("explore.html", EXPLORE), *Routes(explorer).routes()],
        middleware=[envelope],
    )
    app.router.redirect_slashes = False  # a redirect would repeat the Host that a client made up
    return app


def _given(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return _whole(text, name) if text else None


def _whole(text: str, name: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Refused(400, f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def _asked(body: bytes, *lists: str) -> dict[str, Any]:
    """Return an object that the page sent, with lists of whole numbers under some of its keys.

    Raises:
        Refused: it is anything else.
    """
    try:
        asked: dict[str, Any] = dict.fromkeys(lists, ()) | json.loads(body)
        good = all(type(each) is int for name in lists for each in asked[name])
    except (ValueError, TypeError, RecursionError):
        good = False
    if not good:
        raise Refused(400, f"the body must be an object: lists of numbers in {', '.join(lists)}")
    return asked


# Until it is stopped


def explore(explorer: Explorer, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve the explorer until a signal.

    Args:
        explorer: with its models
        opened: a socket of this machine alone, that listens
        ready: called once the page can be opened

    Raises:
        UserError: a process cannot be started.
        KeyboardInterrupt: there was a signal.
    """
    kept = {each: signal.getsignal(each) for each in SIGNALS}
    try:
        asyncio.run(_explored(explorer, opened, ready))
    finally:
        for each, handler in kept.items():
            signal.signal(each, handler)
    raise KeyboardInterrupt


async def _explored(explorer: Explorer, opened: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGINT or SIGTERM; a second one ends the process."""
    server = server_of(application(explorer), LEAVE)

    def end() -> None:
        if server.should_exit:
            os.write(2, b"vitlab explore: interrupted\n")
            os._exit(130)
        server.should_exit = server.force_exit = True

    for each in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(each, end)
    try:
        await explorer.start()
        ready()
        await server.serve([opened])
    finally:
        await explorer.stop()


def open_browser(url: str) -> None:
    """Open a page in a browser with a window, if one is at hand; nobody waits for it."""

    def show() -> None:
        with suppress(Exception):  # the URL is printed in any case
            webbrowser.open(url)

    if has_window(sys.platform, os.environ):
        threading.Thread(target=show, name="vitlab-browser", daemon=True).start()


def has_window(platform: str, environment: Mapping[str, str]) -> bool:
    """Return whether a browser would open beside this terminal, not within it or far away."""
    if "SSH_CONNECTION" in environment and "BROWSER" not in environment:
        return False
    shown = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    return not platform.startswith("linux") or any(environment.get(name) for name in shown)
