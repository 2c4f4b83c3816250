"""Faster forms of models that are served: engines are timed while the service runs.

A model whose engines have not been timed on this machine begins with the plain one. They are timed
while no image waits, and the fastest takes over as another model would: with its own card, for the
requests that come from then on. The choice is kept, so that the next start begins with it.
"""

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from torch import Tensor

from vitlab.errors import ServiceError, UserError
from vitlab.models.fast.accelerate import pass_seconds
from vitlab.models.model import Model
from vitlab.serve.engine import Engine
from vitlab.serve.logs import log
from vitlab.serve.registry import Served
from vitlab.serve.trunk import fastest_form

T = TypeVar("T")
PAUSE = 1.0  # seconds between two looks for models
BUSY = 60.0  # seconds without an idle moment, after which passes are timed between batches
TURN = 1.0  # seconds from then on until a pass takes its turn
LEAVE = 10.0  # seconds that an engine in the making has at the end


class Stopped(BaseException):
    """The service ends while engines are timed."""


class Faster:
    """Times engines for the models of a service, one model after the other.

    Args:
        engine: that serves them, with `precision` auto, fp32 or bf16
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ending = False
        self._busy_from = 0.0
        self._tried: weakref.WeakSet[Served] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    async def watch(self) -> None:
        """Look again and again for models whose engines have not been timed."""
        while True:
            if (served := self._next()) is not None:
                await self._in_thread(served)
                del served  # it may have left
            else:
                await asyncio.sleep(PAUSE)

    async def stop(self) -> None:
        """Time no more; the engine must have been stopped."""
        self._ending = True
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, LEAVE)

    def _next(self) -> Served | None:
        """Return a model whose engines have not been timed, nor tried."""
        for served in self.engine.models.values():
            if served.untimed and served not in self._tried:
                self._tried.add(served)
                return served
        return None

    async def _in_thread(self, served: Served) -> None:
        """Look for a faster form in a thread, which nothing at the end has to wait for."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def run() -> None:
            try:
                self.improve(served)
            finally:
                with suppress(RuntimeError):  # the loop has ended before
                    loop.call_soon_threadsafe(done.set)

        self._thread = threading.Thread(target=run, name="vitlab-timing", daemon=True)
        self._thread.start()
        await done.wait()

    def improve(self, served: Served) -> None:
        """Time the engines for a model, and let the fastest compute it; not in the event loop."""
        name = served.card.name
        log("timing engines", model=name)
        self._busy_from = time.monotonic() + BUSY
        began = time.monotonic()
        precision = self.engine.precision
        assert precision != "int8"  # which has one form, and begins with it
        try:
            form = fastest_form(served.trunk, precision, self._pass_seconds)
            change = partial(self.engine.change_form, served, form)
            fits = form is served.form or self._alone(change)
        except Stopped:
            return
        except Exception as error:  # of any engine; the model is computed as before
            expected = isinstance(error, UserError)
            log("engines not timed", logging.WARNING, error=not expected, model=name, reason=error)
            return
        finally:
            gc.collect()  # forms refer to themselves: those not chosen go now
        seconds = round(time.monotonic() - began, 1)
        log(
            "engine chosen" if fits else "model has left",
            model=name,
            seconds=seconds,
            engine=form.network.engine,
            precision=form.precision,
        )

    def _pass_seconds(self, form: Model, images: Tensor) -> float:
        """Return the seconds of a pass, which no request disturbs."""
        return self._alone(partial(pass_seconds, form, images))

    def _alone(self, work: Callable[[], T]) -> T:
        """Do something in the thread that computes, while no image waits.

        Raises:
            Stopped: the service ends.
        """
        if self._ending:
            raise Stopped
        try:
            return self.engine.alone(work, max(self._busy_from, time.monotonic() + TURN))
        except ServiceError:
            raise Stopped from None
