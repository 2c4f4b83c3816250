"""One request to the engine: its images, its model, and the answer or why there is none."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from starlette.requests import Request

from vitlab.errors import UserError
from vitlab.serve.engine import Engine
from vitlab.serve.http.arrival import Held
from vitlab.serve.http.bodies import photos
from vitlab.serve.http.exchange import Exchange
from vitlab.serve.http.problems import Refused, busy, refused
from vitlab.serve.limits import Limits
from vitlab.serve.seen import Seen, ServedModel, What

LARGE = 2**16  # bytes of a body that is not read in vain


@dataclass(frozen=True)
class Asked:
    """What was asked, and what the engine saw.

    Attributes:
        card: of the model
        names: of the images
        seen: of each image
        request: the id
    """

    card: ServedModel
    names: list[str]
    seen: list[Seen]
    request: str


class Desk:
    """Takes requests to the engine.

    Args:
        engine: that computes
        limits: of the service
        held: memory for the bodies of all requests

    Attributes:
        ending: whether the service has been asked to stop
        under_way: requests about images that have no answer yet
        counts: `requests` and `images` so far
    """

    def __init__(self, engine: Engine, limits: Limits, held: Held) -> None:
        self.engine, self.limits, self.held = engine, limits, held
        self.ending, self.under_way = False, 0
        self.counts = {"requests": 0, "images": 0}

    def card(self, name: str) -> ServedModel:
        """Return the card of a model; the first one without a name.

        Raises:
            Refused: 404, there is none.
        """
        cards = self.engine.cards()
        for card in cards:
            if name in ("", card.name):
                return card
        known = ", ".join(card.name for card in cards[:10])
        advice = f"choose from {known}" if known else "none is served"
        raise Refused(404, f"unknown model {name[:80]!r}: {advice}")

    @asynccontextmanager
    async def ask(self, request: Request, model: str, what: What) -> AsyncIterator[Asked]:
        """Yield what the engine answers about the images of a request.

        Raises:
            Refused: an error of any kind, with its status.
        """
        exchange = exchange_of(request)
        if not self.engine.ready:
            raise busy("the service is not ready: try again soon")
        card = self.card(model)
        exchange.model = card.name
        self._check_room(request)
        with self._counted():
            async with photos(request, self.limits, self.held) as found:
                exchange.images = len(found)
                self.counts["images"] += len(found)
                images = [photo.data for photo in found]
                seen = await self._answer(exchange, images, card.name, what)
                yield Asked(card, [photo.name for photo in found], seen, exchange.id)

    def _check_room(self, request: Request) -> None:
        """Refuse a large body before it is read, if the queue is full now.

        Raises:
            Refused: 503, it is.
        """
        length = request.headers.get("content-length", "")
        if length.isdecimal() and len(length) < 9 and int(length) < LARGE:
            return  # the engine itself will tell, and the connection can stay
        figures = self.engine.figures()
        if figures.waiting + figures.computing >= self.limits.queue:
            raise busy("the queue is full: try again in 1 second")

    async def _answer(
        self, exchange: Exchange, images: list[bytes], model: str, what: What
    ) -> list[Seen]:
        """Wait for the engine, as long as the client does.

        Raises:
            Refused: the engine's error; or the client has left.
        """
        answering = asyncio.create_task(self.engine.answer(images, model, what))
        leaving = asyncio.create_task(exchange.left())
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise Refused(400, "the client has left")
            return answering.result()
        except UserError as error:
            raise refused(error) from None
        except asyncio.CancelledError:
            if answering.cancelled():  # by the engine
                raise busy("the service is ending") from None
            raise
        finally:
            answering.cancel()
            leaving.cancel()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.under_way += 1
        self.counts["requests"] += 1
        try:
            yield
        finally:
            self.under_way -= 1


def desk_of(request: Request) -> Desk:
    """Return the desk of the application that a request came to."""
    found: Desk = request.app.state.desk
    return found


def exchange_of(request: Request) -> Exchange:
    """Return the exchange that a request is part of."""
    found: Exchange = request.state.exchange
    return found
