"""Pages of a service: the one for people with its files, and the API reference at /docs."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vitlab.pages.assets import SERVICE, asset, media_type

# Scripts and styles of this service alone: text from a model or a file name can run nothing.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
REFERENCE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'",
}
# Every route of the OpenAPI description in plain HTML, without a script.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ info.title }}: API</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.45 ui-monospace, monospace }
pre { overflow-x: auto; padding: .75rem; border: 1px solid #8886; border-radius: .4rem }
summary { cursor: pointer; padding: .4rem 0 }
.verb { display: inline-block; min-width: 4.5rem; font-weight: 600 }
td, th { text-align: left; vertical-align: top; padding: .2rem 1rem .2rem 0 }
</style>
</head>
<body>
<h1>{{ info.title }}</h1>
<p>{{ info.description }}</p>
<p>The same as OpenAPI: <a href="openapi.json">openapi.json</a></p>
<h2>Routes</h2>
{% for path, verbs in paths.items() %}{% for verb, route in verbs.items() %}
<details id="{{ route.operationId }}">
<summary><code><span class="verb">{{ verb | upper }}</span>{{ path }}</code> {{ route.summary }}
</summary>
{% if route.description %}<p>{{ route.description }}</p>{% endif %}
{% if route.parameters %}<table><tr><th>parameter</th><th>in</th><th></th></tr>
{% for each in route.parameters %}<tr><td><code>{{ each.name }}</code></td><td>{{ each.in }}</td>
<td>{{ each.description }}</td></tr>
{% endfor %}</table>{% endif %}
{% if route.requestBody %}<p>Body:
{% for kind in route.requestBody.content %}<code>{{ kind }}</code> {% endfor %}</p>{% endif %}
<table><tr><th>status</th><th></th><th>answer</th></tr>
{% for status, each in route.responses.items() %}<tr><td>{{ status }}</td>
<td>{{ each.description }}</td>
<td>{% for kind, content in each.content.items() %}
{% set name = content.schema["$ref"] | last_part %}
{% if name %}<a href="#{{ name }}">{{ name }}</a>
{% else %}<code>{{ kind }}</code>{% endif %}{% endfor %}</td></tr>
{% endfor %}</table>
</details>
{% endfor %}{% endfor %}
<h2>Answers</h2>
{% for name, schema in components.schemas.items() %}
<h3 id="{{ name }}">{{ name }}</h3>
<p>{{ schema.description }}</p>
<pre>{{ pretty(schema.properties) }}</pre>
{% endfor %}
</body>
</html>
"""


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


def reference(openapi: dict[str, Any]) -> str:
    """Return the page /docs as HTML; every text in it is escaped."""
    environment = Environment(autoescape=True)
    environment.filters["last_part"] = lambda text: (text or "").rpartition("/")[2]
    return environment.from_string(PAGE).render(
        **openapi, pretty=lambda value: json.dumps(value, indent=1)
    )
