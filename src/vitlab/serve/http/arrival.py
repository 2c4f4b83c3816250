"""The bytes of a request's body as they arrive, within every bound."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from vitlab.serve.http.problems import Refused, busy

MEBI = 2**20
PIECE = 2**16  # bytes that are handled before other requests get their turn


class Held:
    """Memory that all bodies share: a request takes some as its bytes arrive.

    Args:
        most: bytes; a request beyond them is answered with 503 at once

    Attributes:
        bytes: in use
    """

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0

    @contextmanager
    def share(self) -> Iterator["Share"]:
        """Yield what one request holds; all of it is given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self.bytes -= share.bytes


class Share:
    """The memory of one request."""

    def __init__(self, of: Held) -> None:
        self._of, self.bytes = of, 0

    def take(self, count: int) -> None:
        """Take some more.

        Raises:
            Refused: 503, other requests hold it.
        """
        if self._of.bytes + count > self._of.most:
            raise busy("the service holds as many bodies of requests as it may: try again soon")
        self._of.bytes += count
        self.bytes += count


class Arrival:
    """A body that is read once.

    Args:
        request: whose body it is
        most: bytes, declared or received; beyond them the answer is 413
        patience: seconds in which all of it must arrive; beyond them the answer is 408
    """

    def __init__(self, request: Request, most: float, patience: float) -> None:
        self.request, self.most, self.patience = request, int(most), patience

    def check_length(self) -> None:
        """Refuse a body by its declared length, before any of it is read.

        Raises:
            Refused: 413, it is too large.
        """
        declared = self.request.headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self.most:
            raise self._too_large()

    async def into(self, sink: Callable[[bytes], object], share: Share | None = None) -> None:
        """Hand the body to a function in small pieces; between them other requests have their turn.

        Raises:
            Refused: 413, too large; 408, too slow; 503, no memory is left; 400, it was cut off.
        """
        self.check_length()
        try:
            async with asyncio.timeout(self.patience):
                await self._read(sink, share)
        except TimeoutError:
            message = f"the body did not arrive within {self.patience:g} seconds"
            raise Refused(408, message) from None
        except ClientDisconnect:
            raise Refused(400, "the connection was closed before the body was complete") from None

    async def _read(self, sink: Callable[[bytes], object], share: Share | None) -> None:
        received = 0
        async for chunk in self.request.stream():
            received += len(chunk)
            if received > self.most:
                raise self._too_large()
            if share is not None:
                share.take(len(chunk))
            for start in range(0, len(chunk), PIECE):
                sink(chunk[start : start + PIECE])
                await asyncio.sleep(0)

    def _too_large(self) -> Refused:
        return Refused(413, f"the body is larger than {self.most / MEBI:g} MiB")
