"""Models, images and a running engine for tests of the service."""

import asyncio
import copy
import io
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import torch

import vitlab
from conftest import photo
from steady import PATIENCE
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits

T = TypeVar("T")


def figure(engine: Engine, name: str, **labels: str) -> float:
    """A number of the service's metrics by its name after `vitlab_`; 0 if there is none yet."""
    return engine.metrics.registry.get_sample_value(f"vitlab_{name}", labels) or 0.0


TINY = "ViT(width=16,depth=2,heads=2,mlp=32)/8"


def encoded(
    seed: int, kind: str = "PNG", rows: int = 24, columns: int = 32, **options: Any
) -> bytes:
    file = io.BytesIO()
    photo(seed, rows, columns).save(file, kind, **options)
    return file.getvalue()


def tiny(name: str = TINY, seed: int = 0, classes: int = 5, size: int = 16, **choices: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return nudged(vitlab.create(name, classes, size, generator=generator, **choices), seed)


def nudged(base: Any, seed: int, *parts: str) -> Any:
    """A copy with noise on the tensors whose names have one of these words, or on all."""
    generator, model = torch.Generator().manual_seed(seed), copy.deepcopy(base)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if not parts or any(part in name for part in parts):
                tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.1)
    return model.eval()


class Gate:
    """Lets a model compute only while it is open."""

    def __init__(self, model: Any) -> None:
        self.open, self.reached = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.open.set()
        model.head.register_forward_pre_hook(self._pass)

    def _pass(self, model: Any, inputs: Any) -> None:
        self.sizes.append(len(inputs[0]))
        self.reached.set()
        assert self.open.wait(PATIENCE)

    def close(self) -> None:
        self.sizes.clear()
        self.reached.clear()
        self.open.clear()


class Running:
    """An engine and its event loop."""

    def __init__(self, *models: tuple[str, Any], **limits: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = Engine(limits=Limits(decoders=1, **limits), device="cpu")
        for name, source in models:
            self.engine.add(name, source)
        self(self.engine.start())

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE):
                return await work

        return self.loop.run_until_complete(bounded())

    def answer(self, *images: bytes, model: str = "", what: Any = "classes") -> Any:
        return self(self.engine.answer(images, model, what))

    def close(self) -> None:
        self(self.engine.stop())
        self.loop.close()


async def until(condition: Any) -> None:
    """Wait until something is so."""
    while not condition():
        await asyncio.sleep(0.005)


def processes_below(number: int) -> list[int]:
    """The processes that a process has started, and those that they have, from the top down."""
    own = [
        int(child)
        for file in Path(f"/proc/{number}/task").glob("*/children")
        for child in file.read_text().split()
    ]
    return own + [each for child in own for each in processes_below(child)]
