"""The service as a process: from the socket to the last answer."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from vitlab.errors import ServiceError
from vitlab.serve.engine import Engine
from vitlab.serve.http.connection import Connection
from vitlab.serve.http.logs import log
from vitlab.serve.process.watched import Watched
from vitlab.serve.routes.asking import Desk

STATUS = 130  # of a process that a second signal ended
KEEP_ALIVE = 5  # seconds that a connection may wait for its next request
SPARE = 5  # seconds for the last answers after the engine has given up
HEADERS = 16 * 1024  # bytes of the headers of a request
PAUSE = 0.5  # seconds between two looks at whether the engine still computes
NOTICED = 2.0  # seconds in which those who ask for its health see that it failed


class Server(uvicorn.Server):
    """uvicorn, whose signals are handled here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def server_of(app: ASGIApp, seconds: int) -> Server:
    """Return a server of an application, with bounds on its connections.

    Args:
        app: what answers
        seconds: that requests under way have left once it is asked to stop
    """
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=seconds,
        h11_max_incomplete_event_size=HEADERS,
    )
    return Server(config)


class Service:
    """An application on a socket until a signal ends it.

    Args:
        app: from `application`
        engine: the same one
        drain: seconds in which requests under way are answered after the first signal
        watched: a folder whose models are served, if there is one

    Attributes:
        signal: the first signal; 0 before it
    """

    def __init__(
        self, app: FastAPI, engine: Engine, drain: float, watched: Watched | None = None
    ) -> None:
        self.app, self.engine, self.drain, self.signal = app, engine, drain, 0
        self.watched = watched
        self._asked = asyncio.Event()
        self._server = server_of(app, int(drain) + SPARE)

    async def run(self, opened: socket.socket) -> None:
        """Serve until a signal; a second one ends the process at once.

        Raises:
            UserError: the engine cannot be started.
            ServiceError: the device is lost, or a batch does not end.
        """
        with self._signals(asyncio.get_running_loop()):
            serving = asyncio.create_task(self._server.serve([opened]))
            starting = asyncio.create_task(self._start())
            asked = asyncio.create_task(self._asked.wait())
            failing = asyncio.create_task(self._failing())
            ends = {serving, asked, failing}
            await asyncio.wait({starting, *ends}, return_when=asyncio.FIRST_COMPLETED)
            failed = starting.exception() if starting.done() else None
            if failed is None:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            starting.cancel()
            if failing.done():
                failed = failing.result()
            await self._stop(serving, 0 if failing.done() else self.drain)
            for task in (asked, failing):
                task.cancel()
            if failed is not None:
                raise failed

    async def _failing(self) -> ServiceError:
        """Wait until the engine can compute no more; return why."""
        while not (trouble := self.engine.trouble):
            await asyncio.sleep(PAUSE)
        log("failed", logging.ERROR, reason=trouble)
        await asyncio.sleep(NOTICED)
        return ServiceError(f"{trouble}: start the service anew")

    async def _start(self) -> None:
        if self.watched is not None:  # what is there now is served before anyone asks
            await self.watched.begin()
        await self.engine.start()
        log("ready", models=[card.name for card in self.engine.cards()])
        if self.watched is not None:
            await self.watched.watch()

    async def _stop(self, serving: "asyncio.Task[None]", drain: float) -> None:
        """Take no more connections, answer what is under way, and end the engine's processes."""
        desk: Desk = self.app.state.desk
        desk.ending = True
        log("stopping", requests=desk.under_way, seconds=drain)
        self._server.should_exit = True
        await asyncio.wait({serving}, timeout=drain)
        await self.engine.stop(0)  # what still waits gets an error
        await serving
        log("stopped")

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        """Handle SIGTERM and SIGINT while the service runs."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.signal:
                os.write(2, b"vitlab serve: ended at once\n")
                os._exit(STATUS)
            self.signal = number
            loop.call_soon_threadsafe(self._asked.set)

        kept = {each: signal.signal(each, handle) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for each, old in kept.items():
                signal.signal(each, old)
