"""Both clients behind one interface, so that a test meets the one and the other."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import httpx2

import vitlab

URL = "http://service.test:8000/vit"
Handler = Callable[[httpx2.Request], httpx2.Response]


class Both:
    """One interface for both clients: the calls of the second are awaited."""

    def __init__(
        self, kind: str, handler: Handler | None, url: str, token: str, **terms: Any
    ) -> None:
        transport = None if handler is None else httpx2.MockTransport(handler)
        make = {"Client": vitlab.Client, "AsyncClient": vitlab.AsyncClient}[kind]
        self.client: Any = make(url, token, transport=transport, **terms)
        self.loop = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            result = getattr(self.client, name)(*args, **named)
            return self.loop.run_until_complete(result) if inspect.isawaitable(result) else result

        return call


Make = Callable[..., Both]
