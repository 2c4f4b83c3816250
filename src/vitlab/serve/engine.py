"""Models in memory that answer questions about images, with bounds on everything."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from vitlab import device as devices
from vitlab.errors import BusyError, LateError, OptionError, ServiceError
from vitlab.machine.cores import cores
from vitlab.models.fast.accelerate import check_engine
from vitlab.models.model import Model
from vitlab.precision import Engine as EngineName
from vitlab.precision import ServePrecision, check_precision
from vitlab.serve.answers import Seen, Ticket, What, best_batch, warm
from vitlab.serve.batcher import Batcher
from vitlab.serve.decoder import Bounds
from vitlab.serve.decoders import Decoders
from vitlab.serve.limits import Limits
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import Registry, Served, ServedModel
from vitlab.weights.deltas import Delta

DECODING = 10.0  # seconds of computing that one image may take
CORES = 4  # for each decoder, if their number is not chosen
IN_TIME = 0.8  # of the time limit, within which an answer is expected, or the request refused
LEAST_WAIT, MOST_WAIT = 0.05, 60.0  # seconds after which a refused request may come again
OPEN = 2  # times the free places: what one of several models may hold


class Engine:
    """Models in memory that answer questions about images.

    `add`, `replace` and `remove` may be called from any thread, also while it runs; `start`,
    `answer` and `stop` belong to one event loop.

    Args:
        limits: of what may be asked
        allow_empty: whether it is ready without a model
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32; bf16; or auto: bf16 where the device multiplies it faster and a model's
            probabilities agree with those in fp32
        engine: that computes: auto, the fastest, or one by its name, as `vitlab.accelerate`

    Attributes:
        limits: of what may be asked
        allow_empty: whether it is ready without a model
        metrics: that count what it does
    """

    def __init__(
        self,
        *,
        limits: Limits = Limits(),
        allow_empty: bool = True,
        device: str = "auto",
        precision: ServePrecision = "auto",
        engine: EngineName = "auto",
    ) -> None:
        if precision != "int8":
            check_precision(precision)
        check_engine(engine)
        self.limits, self.allow_empty, self._started = limits, allow_empty, False
        self._registry = Registry(devices.choose(device), self._prepare, precision, engine)
        self.metrics = Metrics()
        self._batcher = Batcher(limits.max_delay / 1000, limits.timeout, self.metrics)
        bounds = Bounds(min(DECODING, limits.timeout), int(limits.max_pixels * 1e6))
        self._decoders = Decoders(limits.decoders or default_decoders(), bounds)
        self._held = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._measure()

    def _measure(self) -> None:
        """Let the metrics read what is counted here and below."""
        metrics, batcher, decoders = self.metrics, self._batcher, self._decoders
        metrics.gauge("ready", "1 while the service takes requests", lambda: self.ready)
        metrics.gauge("models", "Models that are served", lambda: len(self._registry))
        metrics.gauge("computing_images", "Images in a model now", lambda: batcher.computing)
        metrics.gauge(
            "waiting_images",
            "Images that wait to be decoded or computed",
            lambda: max(0, self._held - batcher.computing),
        )
        metrics.counter("images_decoded", "Images that were decoded", lambda: decoders.decoded)
        metrics.counter(
            "decoder_restarts", "Processes that ended and were replaced", lambda: decoders.restarts
        )

    def add(self, name: str, source: str | Path | Model | Delta) -> None:
        """Load a model in this thread, and serve it.

        A delta shares the weights of its base with the base and all its other deltas. A file of
        one may be added without its base, which is then loaded from where the file says; a `Delta`
        in memory, which may come from anyone, needs a base that is served.

        Args:
            name: new
            source: a run folder, a saved folder, a file or a name on the Hub, as `vitlab.load`
                takes it; a model, which must not be changed afterwards; or a delta

        Raises:
            OptionError: the name is empty or taken.
            WeightsError: it cannot be loaded.
        """
        self._registry.add(name, source)

    def replace(self, name: str, source: str | Path | Model | Delta) -> None:
        """Load a model in this thread, and serve it in place of another one.

        Requests that are under way are answered by the model that they were meant for.

        Raises:
            OptionError: there is no model of this name.
            WeightsError: it cannot be loaded.
        """
        self._leave(self._registry.replace(name, source))

    def remove(self, name: str) -> None:
        """Serve a model no longer; requests for it that are under way fail.

        Raises:
            OptionError: there is no model of this name.
        """
        self._leave(self._registry.remove(name))
        self.metrics.forget(name)

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self._started and not self.trouble and (self.allow_empty or len(self._registry) > 0)

    @property
    def trouble(self) -> str:
        """Why nothing can be computed until the process is started anew; empty while all is well.

        Its device is lost, or a batch does not end.
        """
        return self._batcher.trouble

    def crowded(self, under_way: int) -> float:
        """Return 0 if there is room for an image; else the seconds after which it may come again.

        Args:
            under_way: requests that have begun; those whose images have not arrived count as one
        """
        models, before = self._registry.models.values(), max(self._held, under_way)
        if not before or not models:
            return 0.0
        images = 1 + before - self._held
        wait = min(self._expected(each, images) for each in models) - IN_TIME * self.limits.timeout
        return 0.0 if before < self.limits.queue and wait <= 0 else _again(wait)

    def cards(self) -> list[ServedModel]:
        """Return what there is to know about each model, in the order in which they were added."""
        return self._registry.cards()

    async def start(self) -> None:
        """Start the processes that decode and the thread that computes.

        Raises:
            ServiceError: a process cannot be started.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await self._decoders.start()
        except BaseException:
            await self._decoders.stop()
            raise
        self._batcher.start()
        self._started = True

    async def stop(self, seconds: float = 30.0) -> None:
        """Answer what was accepted, as far as the time allows; then end everything.

        Args:
            seconds: that the requests under way have left
        """
        self._started = False
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            pass
        await self._batcher.stop()
        await self._decoders.stop()

    async def answer(
        self, images: Sequence[bytes], model: str = "", what: What = "classes"
    ) -> list[Seen]:
        """Answer a question about images.

        Args:
            images: JPEG, PNG or WebP files
            model: its name; empty for the first one
            what: "classes" for probabilities; "features"; or "attention" for probabilities and
                where the model looked

        Raises:
            OptionError: no such model or question, or more images than the queue has places.
            BusyError: the queue is full, or the answer could not be there in time.
            LateError: the answer was not there in time.
            FailedError: the model failed.
            ServiceError: the service is not ready, a decoder was killed, or the model was removed.
        """
        served = self.check(len(images), model, what)
        start = time.monotonic()
        due = start + self.limits.timeout
        self._hold(served, len(images))
        tasks = [
            asyncio.create_task(self._seen(data, f"image {number}", served, what, due))
            for number, data in enumerate(images)
        ]
        try:
            async with asyncio.timeout(self.limits.timeout):
                seen = list(await asyncio.gather(*tasks))
        except (TimeoutError, LateError):
            self._count("late", served, len(images))
            raise LateError(f"no answer within {self.limits.timeout:g} seconds") from None
        finally:
            for task in tasks:
                task.cancel()
            self._hold(served, -len(images))
        failed = sum(bool(each.error) for each in seen)
        self._count("failed", served, failed)
        if not served.gone:
            self.metrics.answered(served.card.name, len(seen) - failed, time.monotonic() - start)
        return seen

    def check(self, images: int, model: str, what: What) -> Served:
        """Return the model for so many images, or refuse them, as `answer` does."""
        if not self.ready:
            why = self.trouble or "it is starting or stopping, or has no model"
            raise ServiceError(f"the service is not ready: {why}")
        if what not in get_args(What):
            raise OptionError(f"unknown question {what!r}: ask for {', '.join(get_args(What))}")
        served, places = self._registry.find(model), self.limits.queue
        if what != "features" and not served.facts.config.classes:
            raise OptionError(
                f"{served.card.name} outputs features: it has no classifier; POST /features gives "
                "them"
            )
        if images > places:
            raise OptionError(f"{images} images at once; send at most {places}")
        # One of several models may hold twice as many places as are left free, so that there are
        # always some for the others (dynamic thresholds: Choudhury and Hahne, IEEE/ACM
        # Transactions on Networking 6(2), 1998). One that holds none may take what is free.
        own, free = served.held, places - self._held - images
        shared = len(self._registry) > 1 and own > 0
        if free < 0 or (shared and own + images > OPEN * free):
            raise self._busy("the queue is full", served, images, self._expected(served, 0))
        late = self._expected(served, images) - IN_TIME * self.limits.timeout
        if self._held and late > 0:  # a lone request is tried: the pace may be wrong by now
            raise self._busy("an answer would come too late", served, images, late)
        return served

    def _busy(self, why: str, served: Served, images: int, seconds: float) -> BusyError:
        """Count images that are refused; return what says so, and when to come again."""
        self._count("shed", served, images)
        wait = _again(seconds)
        return BusyError(f"{why}: try again in {wait:.1f} seconds", wait)

    def _count(self, what: str, served: Served, images: int) -> None:
        if not served.gone:
            self.metrics.count(what, served.card.name, images)

    def _expected(self, served: Served, images: int) -> float:
        """Return the seconds until further images of a model are answered, all others before."""
        computing = images * served.trunk.pace + sum(
            each.held * each.trunk.pace for each in self._registry.models.values()
        )
        decoders = self._decoders
        return max(computing, (self._held + images) * decoders.pace / decoders.count)

    def _hold(self, served: Served, images: int) -> None:
        """Count images accepted, or answered if negative."""
        served.hold(images)
        self._held += images
        if self._held:
            self._idle.clear()
        else:
            self._idle.set()

    async def _seen(self, data: bytes, name: str, served: Served, what: What, due: float) -> Seen:
        """Answer a question about one image."""
        with self._batcher.coming(served.trunk):
            image = await self._decoders.decode(data, name, served, served.wanted)
            served.check()
            if image.error:
                return Seen(error=image.error)
            future: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
            self._batcher.put(Ticket(served, what, image, time.monotonic(), due, future))
        return await future

    def _prepare(self, served: Served) -> None:
        """Let a model compute, and measure its best batch if none is chosen."""
        most = max(1, self.limits.queue // 2)  # while one batch computes, another gathers
        if not served.batch:
            served.batch = self.limits.max_batch
            if not served.batch:
                served.batch, served.trunk.pace = best_batch(served, most)
        warm(served, 1)

    def _leave(self, served: Served) -> None:
        """Free a model's weights once nobody waits for it, in the thread that counts."""
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(served.hold, 0)
        else:
            served.hold(0)


def _again(seconds: float) -> float:
    """Return after how many seconds a refused request may come again."""
    return min(max(seconds, LEAST_WAIT), MOST_WAIT)


def default_decoders() -> int:
    """Return one process per four cores, at least one."""
    return max(1, cores() // CORES)
