"""The service as a process: from the options of `vitlab serve` to the last answer."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import start_http_server
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlab.errors import FailedError
from vitlab.graphs.int8_form import int8_form
from vitlab.precision import Engine as EngineName
from vitlab.precision import ServePrecision
from vitlab.progress import named_if_slow
from vitlab.serve.access import hosts_of, is_loopback, listen, read_token, url_of
from vitlab.serve.app import Serving, application
from vitlab.serve.engine import Engine
from vitlab.serve.faster import Faster
from vitlab.serve.limits import Limits
from vitlab.serve.logs import log, log_to_stderr
from vitlab.serve.overload import shedding
from vitlab.serve.watched import Watched

STATUS = 130  # of a process that a second signal ended
AGAIN = 75  # of one that can compute no more, and has to be started again
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


def server_of(app: ASGIApp, seconds: int, http: type[asyncio.Protocol] = H11Protocol) -> Server:
    """Return a server of an application, with bounds on its connections.

    Args:
        app: what answers
        seconds: that requests under way have left once it is asked to stop
        http: the protocol of a connection
    """
    config = uvicorn.Config(
        app,
        http=http,
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
        faster: what times engines while the service runs, if they are to be timed

    Attributes:
        signal: the first signal; 0 before it
    """

    def __init__(
        self,
        app: FastAPI,
        engine: Engine,
        drain: float,
        watched: Watched | None = None,
        faster: Faster | None = None,
    ) -> None:
        self.app = app
        self.engine = engine
        self.drain = drain
        self.signal = 0
        self.watched = watched
        self.faster = faster
        self._asked = asyncio.Event()
        serving: Serving = app.state.serving
        http = shedding(serving.crowded, partial(engine.metrics.count, "shed", "", 1))
        self._server = server_of(app, int(drain) + SPARE, http)

    async def run(self, opened: socket.socket) -> None:
        """Serve until a signal; a second one ends the process at once.

        Raises:
            UserError: the engine cannot be started.
            ServiceError: the device is lost, or a batch does not end.
        """
        with self._signals(asyncio.get_running_loop()):
            serving = asyncio.create_task(self._server.serve([opened]))
            failing = asyncio.create_task(self._failing())
            starting = asyncio.create_task(self._start())
            tasks = {serving, failing, starting, asyncio.create_task(self._asked.wait())}
            ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await self._stop(serving, 0 if failing.done() else self.drain)
            for task in tasks:
                task.cancel()
            for task in ended:
                task.result()  # or its error

    async def _failing(self) -> None:
        """Wait until the engine can compute no more."""
        while not (trouble := self.engine.trouble):
            await asyncio.sleep(PAUSE)
        log("failed", logging.ERROR, reason=trouble)
        await asyncio.sleep(NOTICED)
        error = FailedError(f"{trouble}: start the service anew")
        error.status = AGAIN
        raise error

    async def _start(self) -> None:
        """Start the engine, and watch the folder as long as the service runs."""
        if self.watched is not None:  # what is there now is served before anyone asks
            await self.watched.begin()
        log("starting decoders")
        with named_if_slow("starting the processes that decode"):
            await self.engine.start()
        log("ready", models=[card.name for card in self.engine.cards()])
        lasting = [each.watch() for each in (self.watched, self.faster) if each is not None]
        await asyncio.gather(*lasting, asyncio.Event().wait())

    async def _stop(self, serving: "asyncio.Task[None]", drain: float) -> None:
        """Take no more connections, answer what is under way, and end the engine's processes."""
        serving_app: Serving = self.app.state.serving
        serving_app.ending = True
        log("stopping", requests=serving_app.under_way, seconds=drain)
        self._server.should_exit = True
        await asyncio.wait({serving}, timeout=drain)
        await self.engine.stop()  # what still waits gets an error
        if self.faster is not None:
            await self.faster.stop()
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


def serve(
    models: Sequence[tuple[str, str]],
    *,
    limits: Limits,
    address: tuple[str, int],
    token_file: str = "",
    admin_token_file: str = "",
    metrics_port: int = 0,
    watch: str = "",
    allow_empty: bool = False,
    drain: float = 30.0,
    device: str = "auto",
    precision: ServePrecision = "auto",
    engine: EngineName = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Serve models until a signal.

    Args:
        models: name and place of each
        limits: of requests
        address: host and port; port 0 for any
        token_file: file with the token that requests must carry; empty for none
        admin_token_file: file with the token that changes models; empty for the same token
        metrics_port: another port of the same host, for /metrics without a token; 0 for none
        watch: folder whose models are served too; empty for none
        allow_empty: ready without a model, and an empty folder removes the last ones
        drain: seconds in which requests under way are answered after the signal
        device: auto, cpu, cuda, cuda:N or mps
        precision: auto, fp32, bf16 or int8, as `vitlab serve` has it
        engine: auto or one by its name, as `vitlab serve` has it
        say: tells a person where the service is, once it listens

    Returns:
        `url`, and how many `requests` about how many `images` there were.

    Raises:
        UserError: a model cannot be loaded, or the address cannot be listened on.
        KeyboardInterrupt: the signal was SIGINT.
    """
    log_to_stderr()
    token, admin = read_token(token_file), read_token(admin_token_file)
    core = Engine(
        limits=limits,
        allow_empty=allow_empty,
        device=device,
        precision=precision,
        engine=engine,
        int8_form=int8_form,
    )
    core.begin_imports()
    for name, place in models:
        add_model(core, name, place)
    hosts = hosts_of(address[0])
    app = application(core, token=token, admin_token=admin, hosts=hosts)
    watched = Watched(Path(watch), core) if watch else None
    opened = listen(*address)
    if metrics_port:
        start_http_server(metrics_port, address[0], core.metrics.registry)
    if not token and not is_loopback(address[0]):
        text = f"anybody who reaches {address[0]} can use this service: --token-file FILE"
        log("warning", logging.WARNING, reason=text)
    url = url_of(opened)
    cards = core.cards()
    line = example(url, token_file, classes=not cards or cards[0].answers != "features")
    log("listening", url=url, example=line)
    say(f"listening on {url}; try: {line}")
    service = Service(app, core, drain, watched, Faster(core))
    asyncio.run(service.run(opened))
    if service.signal == signal.SIGINT:
        raise KeyboardInterrupt("interrupted; every request that was accepted has its answer")
    return {"url": url, **app.state.serving.counts}


def add_model(engine: Engine, name: str, place: str) -> None:
    """Add a model before the service runs, and say so.

    Raises:
        UserError: it cannot be loaded.
    """
    log("loading", model=name)
    began = time.monotonic()
    with named_if_slow(f"loading {name}"):
        engine.add(name, place)
    card = engine.find(name).card
    seconds = round(time.monotonic() - began, 1)
    log("loaded", model=name, seconds=seconds, engine=card.engine, precision=card.precision)


def example(url: str, token_file: str = "", *, classes: bool = True) -> str:
    """Return a line for a shell that asks the service about a photograph.

    Args:
        url: of the service
        token_file: that holds the token it asks for
        classes: whether the model answers at /predict; else its features are asked for
    """
    header = f'-H "Authorization: Bearer $(cat {token_file})" ' if token_file else ""
    return f"curl {header}-F image=@photo.jpg {url}/{'predict' if classes else 'features'}"
