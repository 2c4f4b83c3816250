"""The explorer behind its page: models, images, and what each makes of the other."""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.normalize import normalize
from vitlab.data.decode.headers import MAX_BYTES
from vitlab.errors import ImageError, OptionError, UserError
from vitlab.explore import views
from vitlab.explore.dataset_map import MapJob
from vitlab.explore.gallery import Gallery, OpenImage
from vitlab.explore.lru import Kept
from vitlab.explore.views import FirstPass, Shown, first_pass
from vitlab.files import read_bytes
from vitlab.inspect.tokens import colors_of
from vitlab.serve.decoders import Decoders, Wanted

Result = TypeVar("Result")
LATEST = 16  # images that share their colors
MOST_BYTES = 2**31  # of what is kept of images and models


class Worker(threading.Thread):
    """The one thread that computes, job after job, so that the event loop never waits for a model.

    Unlike that of an executor, it is not waited for when the process ends.
    """

    def __init__(self) -> None:
        super().__init__(name="vitlab-explore", daemon=True)
        self._jobs = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]()

    def stop(self) -> None:
        """Take no more jobs."""
        self._jobs.put(None)

    async def do(self, job: Callable[[], Result]) -> Result:
        """Wait for a job; one that nobody waits for any more when its turn comes is not begun."""
        future: Future[Result] = Future()
        self._jobs.put((future, job))
        return await asyncio.wrap_future(future)

    def run(self) -> None:
        """Do one job after the other."""
        while asked := self._jobs.get():
            future, job = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except BaseException as error:  # whoever asked is told
                    future.set_exception(error)


class Explorer:
    """Models and open images; each first pass is computed once and kept while there is room.

    `start`, `stop` and everything that is awaited belong to one event loop.

    Args:
        models: that are shown
        decoders: that turn files into pixels; they are started and stopped here
        images: files that are opened at the start, in this order
        most: bytes of first passes that are kept
        map_job: makes the map of a data set; None without one
        say: tells a person which of the images cannot be opened
    """

    def __init__(
        self,
        models: Sequence[Shown],
        decoders: Decoders,
        *,
        images: Sequence[str] = (),
        most: int = MOST_BYTES,
        map_job: MapJob | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.models = list(models)
        self.map_job = map_job
        self._images = list(images)
        self._say = say
        self._decoders = decoders
        self.gallery = Gallery(decoders)
        self._worker = Worker()
        self._looks: Kept[tuple[int, str], FirstPass] = Kept(most)
        self._coming: dict[tuple[int, str], asyncio.Task[FirstPass]] = {}

    async def start(self) -> None:
        """Start the process that decodes and the thread that computes; open the first images.

        Raises:
            ServiceError: the process cannot be started.
        """
        await self._decoders.start()
        self._worker.start()
        if self.map_job is not None:
            self.map_job.start()
        for name in self._images:
            try:
                data = await asyncio.to_thread(read_bytes, Path(name), MAX_BYTES)
                await self.gallery.open(data, Path(name).name)
            except UserError as error:
                self._say(f"skipped: {error}")
            except OSError as error:
                self._say(f"skipped: {name}: {(error.strerror or str(error)).lower()}")

    async def stop(self) -> None:
        """End both; what is being computed is not waited for."""
        for task in self._coming.values():
            task.cancel()
        if self.map_job is not None:
            self.map_job.stop()
        self._worker.stop()
        await self._decoders.stop()

    async def look(self, number: int, image: OpenImage) -> FirstPass:
        """Return the first pass of an image, which is computed once whoever asks.

        Args:
            number: of the model
            image: that is open

        Raises:
            ImageError: it cannot be decoded for this model.
            ServiceError: the process that decoded it was killed.
        """
        key = (number, image.id)
        if (found := self._looks.get(key)) is not None:
            return found
        if (task := self._coming.get(key)) is None:
            task = self._coming[key] = asyncio.create_task(self._looked(number, image))
            task.add_done_callback(lambda done: self._coming.pop(key, None))
        return await asyncio.shield(task)

    async def _looked(self, number: int, image: OpenImage) -> FirstPass:
        model = self.models[number].model
        config = model.config
        decoded = await self._decoders.decode(image.data, image.name, number, Wanted.by(config))
        if decoded.error:
            raise ImageError(decoded.error)
        device = next(model.parameters()).device
        batch = torch.from_numpy(decoded.pixels)[None].to(device)
        images = normalize(batch, config)
        attention = not self.models[number].why_not["attention"]
        job = partial(first_pass, model, images, decoded.box, attention=attention)
        seen = await self._worker.do(job)
        self._looks.put((number, image.id), seen)
        return seen

    async def view(
        self,
        number: int,
        image: OpenImage,
        kind: str,
        *,
        label: int | None,
        layer: int | None,
        token: int,
    ) -> NDArray[np.float32]:
        """Return a view as numbers on the patch grid, (rows, columns).

        Args:
            number: of the model
            image: that is open
            kind: one of `views.UNITS`
            label: the class that is explained; None for the likeliest
            layer: as `model.intermediates` counts; None for the last
            token: that others are compared with

        Raises:
            OptionError: the model does not have the view, the class, the layer or the token.
        """
        shown = self.models[number]
        if reason := shown.why_not[kind]:
            raise OptionError(reason)
        seen = await self.look(number, image)
        if kind not in views.BY_GRADIENT:
            return _array(views.of_pass(seen, kind, layer, token))
        job = partial(views.explained, shown.model, seen, shown.label(seen, label), kind)
        return _array(await self._worker.do(job))

    async def colors(
        self, number: int, image: OpenImage, layer: int | None
    ) -> tuple[NDArray[np.uint8], list[str]]:
        """Return a color for each patch, (rows, columns, 3), and the images that share the basis.

        They are those that this model has seen, the latest at most `LATEST`.

        Raises:
            OptionError: a layer that the model does not have, or too few patches.
        """
        shown = self.models[number]
        if reason := shown.why_not["colors"]:
            raise OptionError(reason)
        own = await self.look(number, image)
        seen = [each for model, each in self._looks if model == number and each != image.id]
        chosen = [*seen[1 - LATEST :], image.id]
        looks = [self._looks.peek((number, each)) or own for each in chosen]
        maps = [each.look.dense(layer).map for each in looks]
        found = await self._worker.do(partial(colors_of, maps))
        return (255 * found[-1][0]).round().to(torch.uint8).numpy(), chosen

    async def mask(self, number: int, image: OpenImage) -> dict[str, Any]:
        """Return the class of each pixel that a model sees, as `views.mask_of`.

        Raises:
            OptionError: it is not of a run that segments.
        """
        shown = self.models[number]
        if shown.segmenter is None:
            raise OptionError(f"{shown.name} makes no mask: explore a run of --task segment")
        seen = await self.look(number, image)
        return await self._worker.do(partial(views.mask_of, shown.segmenter, seen))

    async def without(
        self, number: int, image: OpenImage, patches: Sequence[int]
    ) -> NDArray[np.float64]:
        """Return the probabilities of an image some of whose patches are covered, (classes,).

        Raises:
            OptionError: there is no such patch, or the model has no classifier.
        """
        shown = self.models[number]
        if reason := shown.why_not["gradcam"]:
            raise OptionError(reason)
        seen = await self.look(number, image)
        if not patches:
            return seen.probabilities
        job = partial(views.without, shown.model, seen.look.images, views.pixels_of(seen, patches))
        found = (await self._worker.do(job)).cpu().numpy()
        views.check_finite(found)
        return found


def _array(values: Tensor) -> NDArray[np.float32]:
    """Return numbers as the page gets them.

    Raises:
        WeightsError: some are not numbers.
    """
    found: NDArray[np.float32] = values.detach().float().cpu().numpy()
    views.check_finite(found)
    return found
