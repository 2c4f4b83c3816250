"""`vitlab.AsyncClient`: the same as `Client`, to be awaited."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.client.attempts import Pause, Send, Steps, Terms, Work
from vitlab.client.calls import Calls, Plan
from vitlab.client.transport import address, opened, send_async
from vitlab.data.sources.pictures import Picture
from vitlab.evaluation.classification import Answer

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
R = TypeVar("R")


class AsyncClient:
    """Ask a service that `vitlab serve` started, from one event loop of asyncio.

        async with vitlab.AsyncClient("http://127.0.0.1:8000") as client:
            answer = await client.predict("photo.jpg")

    It tries again, splits lists and raises as `vitlab.Client` does. Files are read and images
    encoded in threads.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = Terms.timeout,
        retries: int = Terms.retries,
        batch: int = Terms.batch,
        parallel: int = Terms.parallel,
        transport: "httpx2.AsyncBaseTransport | None" = None,
    ) -> None:
        """Prepare to ask; nothing is sent yet. The arguments are those of `vitlab.Client`.

        Raises:
            OptionError: a value that cannot be.
        """
        import httpx2

        terms = Terms(timeout=timeout, retries=retries, batch=batch, parallel=parallel)
        place = address(url)
        self._calls = Calls(place, bool(token), terms)
        self._http = opened(httpx2.AsyncClient, place, token, transport)

    @overload
    async def predict(
        self, images: str | Path | bytes | Image.Image, model: str = "", top: int = 5
    ) -> Answer: ...
    @overload
    async def predict(
        self, images: list[Picture] | tuple[Picture, ...], model: str = "", top: int = 5
    ) -> list[Answer]: ...
    @overload
    async def predict(
        self, images: Picture | Iterable[Picture], model: str = "", top: int = 5
    ) -> Answer | list[Answer]: ...
    async def predict(
        self, images: Picture | Iterable[Picture], model: str = "", top: int = 5
    ) -> Answer | list[Answer]:
        """Return the likeliest classes: see `vitlab.Client.predict`."""
        return await self._run(self._calls.predict(images, model, top))

    async def features(
        self, images: Picture | Iterable[Picture], model: str = ""
    ) -> NDArray[np.float32]:
        """Return the features, (n, features): see `vitlab.Client.features`."""
        return await self._run(self._calls.features(images, model))

    async def models(self) -> list[dict[str, Any]]:
        """Return what the service has: see `vitlab.Client.models`."""
        found = await self._finish(self._calls.get("models"))
        return cast(list[dict[str, Any]], found["models"])

    async def health(self) -> dict[str, Any]:
        """Return what the service says about itself: see `vitlab.Client.health`."""
        return await self._finish(self._calls.get("health"))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self._calls.place!r})"

    async def _run(self, plan: Plan[T, R]) -> R:
        """Drive the exchanges of a plan, some at a time."""
        slots = asyncio.Semaphore(self._calls.terms.parallel)

        async def one(part: Steps[list[Any]]) -> list[Any]:
            async with slots:
                return await self._finish(part)

        tasks = [asyncio.ensure_future(one(part)) for part in plan.parts]
        try:
            return plan.join([each for found in await asyncio.gather(*tasks) for each in found])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _finish(self, steps: Steps[T]) -> T:
        """Drive one exchange to its end."""
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return cast(T, done.value)
            match step:
                case Send(ask, seconds):
                    result = await send_async(self._http, ask, seconds)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case Work(function):
                    result = await asyncio.to_thread(function)
