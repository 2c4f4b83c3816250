"""Clients of a service: `vitlab.Client`, and `vitlab.AsyncClient` with the same methods awaited."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.client.calls import Calls, Plan, Steps, Terms, advance
from vitlab.client.transport import address, opened, send, send_async
from vitlab.data.sources.pictures import Picture
from vitlab.evaluation.classification import Answer

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
R = TypeVar("R")
One = str | Path | bytes | Image.Image
Many = list[Picture] | tuple[Picture, ...]
Some = Picture | Iterable[Picture]


class Client:
    """Ask a service that `vitlab serve` started. Threads may share one.

        with vitlab.Client("http://127.0.0.1:8000") as client:
            client.predict("photo.jpg").classes

    A full queue (status 503) is tried again after the seconds that the service names, and a broken
    connection after 0.1 s and more, within `timeout` and `retries`. Long lists are sent as several
    requests, some at a time. Every error is a `vitlab.UserError`:

    - `ImageError`: an image that cannot be read, here or by the service
    - `OptionError`: an unknown model, or a value that cannot be
    - `BusyError`: the queue was still full at the last try
    - `LateError`: no answer in time
    - `ServiceError`: no service at this address, a token missing, or another failure
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
        transport: "httpx2.BaseTransport | None" = None,
    ) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            url: root of the service, as `http://127.0.0.1:8000`
            token: that the service was started with, if it was
            timeout: most seconds for a request with all its tries
            retries: most tries after the first
            batch: most images per request; halved where the service takes fewer
            parallel: most requests at a time for one list
            transport: of httpx2, to send requests in another way than over the network

        Raises:
            OptionError: a value that cannot be.
        """
        import httpx2

        terms = Terms(timeout=timeout, retries=retries, batch=batch, parallel=parallel)
        place = address(url)
        self._calls = Calls(place, bool(token), terms)
        self._http = opened(httpx2.Client, place, token, transport)

    @overload
    def predict(self, images: One, model: str = "", top: int = 5) -> Answer: ...
    @overload
    def predict(self, images: Many, model: str = "", top: int = 5) -> list[Answer]: ...
    @overload
    def predict(self, images: Some, model: str = "", top: int = 5) -> Answer | list[Answer]: ...
    def predict(self, images: Some, model: str = "", top: int = 5) -> Answer | list[Answer]:
        """Return the likeliest classes, as `vitlab.classify` does.

        Args:
            images: one image or any number of them, as `vitlab.preprocess` takes them; files are
                sent as they are, others as PNG
            model: its name, if the service has several
            top: number of classes per image

        Returns:
            An answer for one image, a list of them for a list or a batch. In a list, an image that
            cannot be read has an `error`.

        Raises:
            ImageError: the one image cannot be read.
            OptionError: no such model.
            ServiceError: no answer; `BusyError` and `LateError` are two kinds of it.
        """
        return self._run(self._calls.predict(images, model, top))

    def features(self, images: Some, model: str = "") -> NDArray[np.float32]:
        """Return the features that the classifier of a model sees: (n, features).

        Args:
            images: one image or any number of them, as `predict` takes them
            model: its name, if the service has several

        Raises:
            ImageError: one of them cannot be read.
            OptionError: no such model.
            ServiceError: no answer; `BusyError` and `LateError` are two kinds of it.
        """
        return self._run(self._calls.features(images, model))

    def models(self) -> list[dict[str, Any]]:
        """Return what the service has: an object per model, with its `name` and `classes`.

        Raises:
            ServiceError: no answer.
        """
        return cast(list[dict[str, Any]], self._finish(self._calls.get("models"))["models"])

    def health(self) -> dict[str, Any]:
        """Return what the service says about itself.

        Raises:
            ServiceError: no answer.
        """
        return self._finish(self._calls.get("health"))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._calls.place!r})"

    def _run(self, plan: Plan[T, R]) -> R:
        """Drive the exchanges of a plan, some at a time."""
        if len(plan.parts) == 1:
            return plan.join(self._finish(plan.parts[0]))
        with ThreadPoolExecutor(self._calls.terms.parallel) as pool:
            futures = [pool.submit(self._finish, part) for part in plan.parts]
            try:
                return plan.join([one for future in futures for one in future.result()])
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _finish(self, steps: Steps[T]) -> T:
        """Drive one exchange to its end."""
        step, found = advance(steps)
        while step is not None:
            step, found = advance(steps, send(self._http, step))
        return cast(T, found)


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
    async def predict(self, images: One, model: str = "", top: int = 5) -> Answer: ...
    @overload
    async def predict(self, images: Many, model: str = "", top: int = 5) -> list[Answer]: ...
    @overload
    async def predict(
        self, images: Some, model: str = "", top: int = 5
    ) -> Answer | list[Answer]: ...
    async def predict(self, images: Some, model: str = "", top: int = 5) -> Answer | list[Answer]:
        """Return the likeliest classes: see `vitlab.Client.predict`."""
        return await self._run(self._calls.predict(images, model, top))

    async def features(self, images: Some, model: str = "") -> NDArray[np.float32]:
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

    async def __aexit__(self, *error: object) -> None:
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
        """Drive one exchange to its end; images are read and encoded before the first request."""
        step, found = await asyncio.to_thread(advance, steps)
        while step is not None:
            step, found = advance(steps, await send_async(self._http, step))
        return cast(T, found)
