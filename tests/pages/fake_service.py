"""A service whose answers are made up, behind the routes of the real one."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn

from serve.fakes import FakeEngine, FakeServed, card
from steady import PATIENCE, wait_until
from vitlab.serve.answers import Seen
from vitlab.serve.app import application as service
from vitlab.serve.registry import ServedModel

NASTY = "<img src=x onerror=alert(1)>"


class Service(FakeEngine):
    """Sees the middle square of a photo, 3:2, brightest at its upper left; or has no attention."""

    def __init__(self) -> None:
        super().__init__(names=())
        for name, classes in (("first", ("pagoda", NASTY, "dahlia")), ("second", ("a", "b"))):
            own = card(name).model_copy(update={"classes": classes})
            self.models[name] = FakeServed(own)

    def _seen(self, image: bytes, what: str, card: ServedModel) -> Seen:
        if super()._seen(image, "classes", card).error:
            return Seen(error="not an image")
        if card.name == "second":
            return Seen(probabilities=np.array([0.25, 0.75]))
        looked = np.array([[1, 0.5], [0.5, 0]], np.float32)
        return Seen(np.array([0.9996, 0.0004, 0]), attention=looked, box=(1 / 6, 0, 5 / 6, 1))


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application on a free port of 127.0.0.1; yield its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(PATIENCE)


def application() -> Any:
    return service(Service())  # type: ignore[arg-type]


def refusal(status: int, **headers: str) -> dict[str, Any]:
    """What Playwright's `route.fulfill` needs to answer with an error."""
    body = json.dumps({"error": f"reason {status}", "request": "id-3"})
    return {"status": status, "body": body, "headers": headers, "content_type": "application/json"}
