"""How the service ends: what was accepted is answered, and nothing waits without end."""

import asyncio
import os
import signal
import socket
from contextlib import ExitStack

import pytest

from serve.fakes import FakeEngine, png
from serve.sockets import head, read, refuses, served, status
from steady import wait_until
from vitlab.errors import DeviceError, OptionError
from vitlab.serve.access import is_loopback, listen, url_of

IMAGE = png()
REQUEST = head(Content_Length=len(IMAGE)) + IMAGE


class Gated(FakeEngine):
    """Answers once a thread says so, or the engine stops."""

    def __init__(self) -> None:
        super().__init__(gate=asyncio.Event())
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        await super().start()
        self.loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        await super().stop()
        assert self.gate
        self.gate.set()

    def open(self) -> None:
        assert self.gate
        assert self.loop
        self.loop.call_soon_threadsafe(self.gate.set)


def test_what_was_accepted_is_answered_after_the_signal() -> None:
    engine = Gated()

    def script(port: int) -> list[int]:
        with ExitStack() as stack:
            crowd = [
                stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(6)
            ]
            for each in crowd[:5]:
                each.sendall(REQUEST)
            half = len(REQUEST) // 2
            crowd[5].sendall(REQUEST[:half])  # a body that is still arriving
            wait_until(lambda: (len(engine.asked), engine.checked) == (5, 6))
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: refuses(port))
            crowd[5].sendall(REQUEST[half:])
            wait_until(lambda: len(engine.asked) == 6)
            engine.open()
            return [status(read(each)) for each in crowd]

    found, service = served(script, engine)
    assert found == [200] * 6
    assert service.signal == signal.SIGTERM
    assert engine.stopped


def test_what_is_not_answered_in_time_gets_an_error() -> None:
    engine = Gated()

    def script(port: int) -> int:
        with socket.create_connection(("127.0.0.1", port)) as opened:
            opened.sendall(REQUEST)
            wait_until(lambda: engine.asked)
            os.kill(os.getpid(), signal.SIGTERM)
            return status(read(opened))

    found, _ = served(script, engine, drain=0.1)
    assert found == 503


def test_an_engine_that_cannot_start_ends_the_service() -> None:
    class Broken(FakeEngine):
        async def start(self) -> None:
            raise DeviceError("out of memory")

    with pytest.raises(DeviceError, match="out of memory"):
        served(None, Broken())


def test_addresses() -> None:
    with listen("127.0.0.1", 0) as opened:
        port = opened.getsockname()[1]
        assert url_of(opened) == f"http://127.0.0.1:{port}"
        with pytest.raises(OptionError, match=f"port {port}: Address already in use; choose"):
            listen("127.0.0.1", port)
    with pytest.raises(OptionError, match=r"cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)
    with pytest.raises(OptionError, match="cannot listen on no such host"):
        listen("no such host", 0)
    assert [is_loopback(each) for each in ("127.9.9.9", "::1", "localhost", "0.0.0.0", "x.y")] == [
        True, True, True, False, False,
    ]  # fmt: skip
