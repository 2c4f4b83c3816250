"""The page of a service for people, with its files."""

from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vitlab.pages.assets import SERVICE, asset, media_type

# Scripts and styles of this service alone: text from a model or a file name can run nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}


def page_routes(page: str = "service.html", files: Sequence[str] = SERVICE) -> list[Route]:
    """Return the routes of a page: `GET /`, and `GET /page/NAME` for what it asks for.

    They need no token: the page of the service asks for it.
    """
    parts = [Route(f"/page/{name}", _sent(name), include_in_schema=False) for name in files]
    return [Route("/", _sent(page), include_in_schema=False), *parts]


def _sent(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers with one file, which is read now."""
    content, kind = asset(name), media_type(name)

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return send
