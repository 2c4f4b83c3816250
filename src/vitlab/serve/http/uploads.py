"""Models that come in a request, in a private folder and under our name until they are loaded."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from starlette.requests import Request

from vitlab.errors import UserError
from vitlab.models.model import Model
from vitlab.serve.http.arrival import Arrival
from vitlab.serve.http.bodies import FORM
from vitlab.serve.http.form_files import Form
from vitlab.serve.http.problems import Refused, busy
from vitlab.weights.deltas import Delta
from vitlab.weights.load import load, load_delta

FILE, CONFIG = "model.safetensors", "config.json"
PATIENCE = 600.0  # seconds in which a model must arrive


class Uploads:
    """Takes one model at a time.

    Args:
        most: bytes of a model
    """

    def __init__(self, most: float) -> None:
        self.most = most
        self._one = asyncio.Lock()

    @asynccontextmanager
    async def model(self, request: Request) -> AsyncIterator[Model | Delta]:
        """Yield the model in a request's body; its file is gone at the end.

        Raises:
            Refused: 503, another one is arriving; 413, 408 or 400, as for every body; 422, it is
                not a model that can be read.
        """
        if self._one.locked():
            raise busy("another model is being loaded: try again soon", 5)
        async with self._one:
            with tempfile.TemporaryDirectory(prefix="vitlab-serve-") as folder:
                place = Path(folder)
                try:
                    with ExitStack() as stack:
                        await self._receive(request, place, stack)
                except OSError as error:
                    message = f"the model cannot be kept here: {error.strerror}"
                    raise Refused(507, message) from None
                whole = (place / CONFIG).exists()
                yield await asyncio.to_thread(_read, place if whole else place / FILE)

    async def _receive(self, request: Request, folder: Path, stack: ExitStack) -> None:
        """Write the body into one file, or the files of a form under the two names there are."""

        def keep(name: str) -> Callable[[bytes], object]:
            known = {each: folder / each for each in (CONFIG, FILE)}
            if name not in known or known[name].exists():
                raise Refused(400, f"a saved model is one {CONFIG} and one {FILE}, not {name!r}")
            return stack.enter_context(known[name].open("xb")).write

        arrival, kind = (
            Arrival(request, self.most, PATIENCE),
            request.headers.get("content-type", ""),
        )
        if kind.partition(";")[0].strip().lower() != FORM:
            await arrival.into(keep(FILE))
            return
        form = Form(kind, 2, keep)
        await arrival.into(form.write)
        form.finish()


def _read(file: Path) -> Model | Delta:
    """Load a model or its folder; or a delta without its base, whose place is not followed."""
    try:
        delta = load_delta(file)
        return load(file) if delta is None else delta
    except UserError as error:
        raise Refused(
            422, str(error).replace(str(file), "the model").replace(str(file.parent), "the model")
        ) from None
