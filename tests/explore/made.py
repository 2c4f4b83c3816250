"""Models, and a running explorer, for the tests of its server."""

import asyncio
import json
from collections.abc import Coroutine, Hashable
from typing import Any, TypeVar

import torch

from serve.calling import Reply, send
from serve.made import tiny
from steady import PATIENCE
from vitlab.explore.explore_routes import application
from vitlab.explore.explorer import Explorer
from vitlab.explore.gallery import FORMATS
from vitlab.explore.views import Shown
from vitlab.models.heads.segment import Segmenter
from vitlab.serve.decoder import Bounds, _answered
from vitlab.serve.decoders import Decoded, Decoders, Wanted

T = TypeVar("T")
SMALL = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def kinds() -> dict[str, Any]:
    """A model of every kind that differs in what it can show, for images of 16 x 16 pixels."""
    choices: dict[str, dict[str, Any]] = {
        "plain": {},
        "registers": {"registers": 2, "pool": "mean"},
        "pool": {"pool": "attention"},
        "branches": {"name": "ViT(width=16,depth=2,heads=2,mlp=32,branches=2)/4"},
        "axial": {"attention": "axial", "pool": "mean"},
        "post-norm": {"norm_order": "after"},
        "rotary": {"positions": "rope"},
        "features": {"classes": 0},
        "native": {"fit": "native", "tokens": 12, "positions": "2d"},
        "queries": {"pool": "attention", "queries": 2},
        "resnet": {"name": "BiT-R50x1", "size": 32, "stages": (1, 1)},
    }
    return {key: tiny(**{"name": SMALL} | each) for key, each in choices.items()}


class InProcess(Decoders):
    """Decodes as the processes do, in this one: they take seconds to start."""

    def __init__(self) -> None:
        super().__init__(1, Bounds(formats=FORMATS))

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def decode(self, data: bytes, name: str, key: Hashable, wanted: Wanted) -> Decoded:
        answer, pixels = _answered(wanted.asked(name), data, self.bounds)
        if answer["error"]:
            return Decoded(pixels, error=answer["error"])
        return Decoded(pixels.copy(), answer["box"], size=answer["size"])


class Exploring:
    """An explorer, its application and its event loop."""

    def __init__(self, *models: tuple[str, Any], **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        device = torch.device("cpu")
        self.names = [name for name, _ in models]
        self.models = dict(models)
        shown = [
            Shown.of(name, each.model, device, each)
            if isinstance(each, Segmenter)
            else Shown.of(name, each, device)
            for name, each in models
        ]
        self.explorer = Explorer(shown, InProcess(), **options)
        self.app = application(self.explorer)
        self(self.explorer.start())

    def __call__(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE):
                return await work

        return self.loop.run_until_complete(bounded())

    def ask(self, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> Reply:
        """Send a GET, or a POST if there is a body."""
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        given = [(name.replace("_", "-"), value) for name, value in headers.items()]
        method = "GET" if body is None else "POST"
        return self(send(self.app, method, path, [content] if content else [], given))

    def close(self) -> None:
        self(self.explorer.stop())
        self.loop.close()
