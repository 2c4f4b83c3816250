"""The service's own page: drop a photo, see its classes and where the model looked."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vitlab.pages.assets import SERVICE, asset, media_type

# Scripts and styles of this service alone: text from a model or a file name can run nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def page_routes() -> list[Route]:
    """Return the routes of the page: `GET /`, and `GET /page/NAME` for what it asks for.

    They need no token: the page asks for it.
    """
    files = [Route(f"/page/{name}", _sent(name), include_in_schema=False) for name in SERVICE]
    return [Route("/", _sent("service.html"), include_in_schema=False), *files]


def _sent(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers with one file, which is read now."""
    content, kind = asset(name), media_type(name)

    async def send(request: Request) -> Response:
        return Response(content, media_type=kind, headers=HEADERS)

    return send
