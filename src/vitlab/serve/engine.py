"""Models in memory that answer questions about images, with bounds on everything."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from vitlab import device as devices
from vitlab.errors import BusyError, LateError, OptionError, ServiceError
from vitlab.machine.cores import cores
from vitlab.models.fast.accelerate import check_engine
from vitlab.precision import Engine as EngineName
from vitlab.precision import ServePrecision, check_precision
from vitlab.serve.answers import Question, Seen, What, best_batch
from vitlab.serve.batcher import Batcher
from vitlab.serve.decoder import Bounds
from vitlab.serve.decoders import Decoders
from vitlab.serve.heads import Kind
from vitlab.serve.limits import Limits
from vitlab.serve.metrics import Metrics
from vitlab.serve.registry import Registry, Served, ServedModel
from vitlab.serve.trunk import MakeInt8

DECODING = 10.0  # seconds of computing that one image may take
CORES = 4  # for each decoder, if their number is not chosen
IN_TIME = 0.8  # of the time limit, within which an answer is expected, or the request refused
LEAST_WAIT, MOST_WAIT = 0.05, 60.0  # seconds after which a refused request may come again
ASKED: dict[Kind, tuple[What, ...]] = {
    "classes": ("classes", "features", "attention"),
    "features": ("features",),
    "masks": ("classes",),
    "boxes": ("classes",),
    "numbers": ("classes", "features"),
}  # of models, by what they answer with
T = TypeVar("T")
OPEN = 2  # times the free places: what one of several models may hold


class Engine(Registry):
    """Models in memory that answer questions about images.

    `add` and `remove`, the registry's, may be called from any thread, also while it runs; `start`,
    `answer` and `stop` belong to one event loop.

    Args:
        limits: of what may be asked
        allow_empty: whether it is ready without a model
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32; bf16; or auto: bf16 where the device multiplies it faster and a model's
            probabilities agree with those in fp32
        engine: that computes: auto, the fastest, or one by its name, as `vitlab.accelerate`
        int8_form: makes the form for int8

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
        int8_form: MakeInt8 | None = None,
    ) -> None:
        if precision != "int8":
            check_precision(precision)
        check_engine(engine)
        self.limits, self.allow_empty, self._started = limits, allow_empty, False
        super().__init__(devices.choose(device), self._prepare, precision, engine, int8_form)
        self.metrics = metrics = Metrics()
        self._batcher = batcher = Batcher(limits.timeout, metrics)
        bounds = Bounds(min(DECODING, limits.timeout), int(limits.max_pixels * 1e6))
        count = limits.decoders or max(1, cores() // CORES)
        self._decoders = decoders = Decoders(count, bounds)
        self._held = 0  # images without an answer
        self._holding = Counter[Served]()  # the same by model, also of those that have left
        metrics.gauge("ready", "1 while the service takes requests", lambda: self.ready)
        metrics.gauge("models", "Models that are served", lambda: len(self.models))
        metrics.gauge("computing_images", "Images in a model now", lambda: batcher.computing)
        metrics.gauge(
            "waiting_images",
            "Images that wait to be decoded or computed",
            lambda: max(0, self._held - batcher.computing),
        )
        metrics.gauge("decoded_images", "Images decoded since the start", lambda: decoders.decoded)
        metrics.gauge(
            "decoder_restarts", "Decoders replaced since the start", lambda: decoders.restarts
        )

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return self._computes and (self.allow_empty or bool(self.models))

    @property
    def _computes(self) -> bool:
        return self._started and not self.trouble

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
        models, before = self.models.values(), max(self._held, under_way)
        if not before or not models:
            return 0.0
        images = 1 + before - self._held
        wait = min(self._expected(each, images) for each in models) - IN_TIME * self.limits.timeout
        return 0.0 if before < self.limits.queue and wait <= 0 else _again(wait)

    def cards(self) -> list[ServedModel]:
        """Return what there is to know about each model, in the order in which they were added."""
        return [each.card for each in self.models.values()]

    def alone(self, work: Callable[[], T], due: float) -> T:
        """Do something in the thread that computes, and wait for it: not in the event loop.

        Args:
            work: computed once no image waits; between two batches if there is always one
            due: by `time.monotonic`, from when on it takes its turn so

        Raises:
            ServiceError: the engine stops, or has not been started.
            Exception: what `work` raises.
        """
        return self._batcher.alone(work, due)

    def begin_imports(self) -> None:
        """Let the processes that decode import what they need, while models are loaded here."""
        self._decoders.begin_imports()

    async def start(self) -> None:
        """Start the processes that decode and the thread that computes.

        Raises:
            ServiceError: a process cannot be started.
        """
        await self._decoders.start()
        self._batcher.start()
        self._started = True

    async def stop(self) -> None:
        """Refuse what waits, and end everything after the batch that is computed."""
        self._started = False
        await self._batcher.stop()
        await self._decoders.stop()

    async def answer(
        self, images: Sequence[bytes], model: str | Served = "", what: What = "classes"
    ) -> list[Seen]:
        """Answer a question about images.

        Args:
            images: JPEG, PNG or WebP files
            model: as `find` gave it, which may have been replaced or removed; or a name, empty for
                the first one
            what: "classes" for probabilities, or the masks, boxes or numbers that the model answers
                with; "features"; or "attention" for probabilities and where the model looked

        Raises:
            OptionError: no such model, or it does not answer this.
            BusyError: the queue is full, or the answer could not be there in time.
            LateError: the answer was not there in time.
            FailedError: the model failed.
            ServiceError: the service is not ready, or a decoder was killed.
        """
        if not isinstance(model, Served):
            if not self.models:
                raise ServiceError("the service is not ready: it has no model")
            model = self.find(model)
        served = model
        self.check(len(images), served, what)
        due = time.monotonic() + self.limits.timeout
        self._hold(served, len(images))
        tasks = [
            asyncio.create_task(self._seen(data, f"image {number}", served, what, due))
            for number, data in enumerate(images)
        ]
        try:
            async with asyncio.timeout(self.limits.timeout):
                seen = list(await asyncio.gather(*tasks))
        except (TimeoutError, LateError):
            self.metrics.count("late", served.card.name, len(images))
            raise LateError(f"no answer within {self.limits.timeout:g} seconds") from None
        finally:
            for task in tasks:
                task.cancel()
            self._hold(served, -len(images))
        failed = sum(bool(each.error) for each in seen)
        self.metrics.count("failed", served.card.name, failed)
        self.metrics.count("answered", served.card.name, len(seen) - failed)
        return seen

    def check(self, images: int, served: Served, what: What) -> None:
        """Refuse so many images of a model, as `answer` does."""
        if not self._computes:
            why = self.trouble or "it is starting or stopping"
            raise ServiceError(f"the service is not ready: {why}")
        places = self.limits.queue
        if what not in ASKED[kind := served.card.answers]:
            path, none = ("features", "classifier") if kind == "features" else ("predict", what)
            besides = "; the folder model/ of its run has features" * (what == "features")
            raise OptionError(
                f"{served.card.name} outputs {kind}: it has no {none}; POST /{path} gives them"
                + besides
            )
        # One of several models may hold twice as many places as are left free, so that there are
        # always some for the others (dynamic thresholds: Choudhury and Hahne, IEEE/ACM
        # Transactions on Networking 6(2), 1998). One that holds none may take what is free.
        own, free = self._holding[served], places - self._held - images
        shared = len(self.models) > 1 and own > 0
        if free < 0 or (shared and own + images > OPEN * free):
            raise self._busy("the queue is full", served, images, self._expected(served, 0))
        late = self._expected(served, images) - IN_TIME * self.limits.timeout
        if self._held and late > 0:  # a lone request is tried: the pace may be wrong by now
            raise self._busy("an answer would come too late", served, images, late)

    def _busy(self, why: str, served: Served, images: int, seconds: float) -> BusyError:
        """Count images that are refused; return what says so, and when to come again."""
        self.metrics.count("shed", served.card.name, images)
        wait = _again(seconds)
        return BusyError(f"{why}: try again in {wait:.1f} seconds", wait)

    def _expected(self, served: Served, images: int) -> float:
        """Return the seconds until further images of a model are answered, all others before."""
        computing = images * served.form.pace + sum(
            count * each.form.pace for each, count in self._holding.items()
        )
        decoders = self._decoders
        return max(computing, (self._held + images) * decoders.pace / decoders.count)

    def _hold(self, served: Served, images: int) -> None:
        """Count images accepted, or answered if negative."""
        self._held += images
        self._holding[served] += images
        if not self._holding[served]:
            del self._holding[served]  # it may have left

    async def _seen(self, data: bytes, name: str, served: Served, what: What, due: float) -> Seen:
        """Answer a question about one image."""
        image = await self._decoders.decode(data, name, served, served.wanted)
        if image.error:
            return Seen(error=image.error)
        future: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._batcher.put(Question(served, what, image, due, future))
        return await future

    def _prepare(self, served: Served) -> int:
        """Let a model compute, and measure its pace and its best batch."""
        batch, seconds = best_batch(served)
        half = max(1, self.limits.queue // 2)  # while one batch computes, another gathers
        served.form.pace = served.form.pace or seconds
        return self.limits.max_batch or min(batch, half)


def _again(seconds: float) -> float:
    """Return after how many seconds a refused request may come again."""
    return min(max(seconds, LEAST_WAIT), MOST_WAIT)
