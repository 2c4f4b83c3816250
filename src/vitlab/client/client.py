"""`vitlab.Client`: what a service answers, in the shapes that the functions here return."""

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.client.attempts import Pause, Send, Steps, Terms, Work
from vitlab.client.calls import Calls, Plan
from vitlab.client.transport import address, opened, send
from vitlab.data.sources.pictures import Picture
from vitlab.evaluation.classification import Answer

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")
R = TypeVar("R")


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
    def predict(
        self, images: str | Path | bytes | Image.Image, model: str = "", top: int = 5
    ) -> Answer: ...
    @overload
    def predict(
        self, images: list[Picture] | tuple[Picture, ...], model: str = "", top: int = 5
    ) -> list[Answer]: ...
    @overload
    def predict(
        self, images: Picture | Iterable[Picture], model: str = "", top: int = 5
    ) -> Answer | list[Answer]: ...
    def predict(
        self, images: Picture | Iterable[Picture], model: str = "", top: int = 5
    ) -> Answer | list[Answer]:
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

    def features(self, images: Picture | Iterable[Picture], model: str = "") -> NDArray[np.float32]:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return cast(T, done.value)
            match step:
                case Send(ask, seconds):
                    result = send(self._http, ask, seconds)
                case Pause(seconds):
                    time.sleep(seconds)
                case Work(function):
                    result = function()
