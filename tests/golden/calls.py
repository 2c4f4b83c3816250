"""What no line alone does: a run that is stopped, services that are asked, calls from Python."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from golden.reading import pretty
from golden.rules import without_progress

VIT = "ViT(width=16,depth=2,heads=2,mlp=32)/4"


def stopped(folder: str) -> None:
    """Train, and be asked to stop after the second of six steps, as a cluster does."""
    import vitlab

    def stop(line: dict[str, Any]) -> None:
        if line["kind"] == "train" and line["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    chosen: dict[str, Any] = {"model": VIT, "image_size": 16, "precision": "fp32", "seed": 1}
    chosen |= {"batch": 8, "warmup": 0.0, "steps": 6, "lr": 0.003}
    recipe = vitlab.recipe("small", "photos", **chosen)
    host = vitlab.Host(device="cpu", workers=0)
    try:
        vitlab.train(recipe, folder, host=host, on_line=stop)
    except KeyboardInterrupt as error:
        print(f"{type(error).__name__}: {error}")


def called() -> None:
    """Ask a model, open data and change a recipe, from Python."""
    import vitlab

    model = vitlab.load("run")
    answers = vitlab.classify(model, ["odd/0.png", "odd/1.png"], top=2, device="cpu")
    print(pretty([each.as_dict() for each in answers]))
    print(pretty(vitlab.evaluate(model, "photos", device="cpu", precision="fp32", workers=0)))
    recipe = vitlab.recipe("finetune", "photos", weights="run", epochs=2.0, lr=1e-3)
    print(pretty(recipe.as_tables()))
    try:
        vitlab.recipe("small", "photos", epoch=3)
    except vitlab.UserError as error:
        print(f"{type(error).__name__}: {error}")
    print(pretty(sorted(vitlab.__all__)))


def served() -> None:
    """Ask a service of two models, as programs do."""
    photo, broken = (Path(f"odd/{name}.png").read_bytes() for name in ("0", "9"))
    words = "serve run pixels=scenes-run --engine plain --precision fp32 --device cpu --decoders 1"
    with _service([*words.split(), "--port", "0"], '"event": "ready"') as ask:
        for path, body in (
            ("/health", None), ("/ready", None), ("/models", None), ("/predict?top=2", photo),
            ("/features", photo), ("/predict?model=pixels", photo), ("/attention", photo),
            ("/predict", broken), ("/predict?model=none", photo), ("/predict?tops=2", photo),
            ("/nowhere", None),
        ):  # fmt: skip
            ask(path, body)


def explored() -> None:
    """Ask an explorer, as its page does."""
    words = "explore run odd/0.png --device cpu --no-browser --port 0"
    with _service(words.split(), "explore at") as ask:
        found = ask("/api/state", None)
        image = found["images"][0]["id"]
        for path in (f"look/0/{image}", f"map/0/{image}/norms", f"map/0/{image}/none", "look/7/x"):
            ask(f"/api/{path}", None)


@contextmanager
def _service(words: list[str], ready: str) -> Iterator[Callable[[str, bytes | None], Any]]:
    """Run a service in a process of its own; give what asks it and prints its replies.

    Args:
        words: after `vitlab`
        ready: what it says once it can be asked
    """
    log = Path("said.log")
    with log.open("w") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "vitlab", *words], stdout=subprocess.DEVNULL, stderr=stream
        )
        while ready not in log.read_text() and process.poll() is None:
            time.sleep(0.05)
    url = re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())[0]

    def ask(path: str, body: bytes | None) -> Any:
        status, reply = _reply(url + path, body)
        print(f"{'POST' if body else 'GET'} {path}: {status}")
        print(pretty(json.loads(json.dumps(reply).replace(url, "URL"))))
        return reply

    try:
        yield ask
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        said = without_progress(log.read_text()).replace(url, "URL").splitlines()
        log.unlink()
    print(f"exit {process.returncode}")
    for line in said:
        event = json.loads(line)["event"] if line.startswith("{") else line
        if " …" not in event:
            print(f"said: {event}")


def _reply(url: str, body: bytes | None) -> tuple[int, Any]:
    """Ask, past any proxy of this machine; return the status and the JSON."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    asked = urllib.request.Request(url, body, {"Content-Type": "application/octet-stream"})
    try:
        with opener.open(asked, timeout=600) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        content = error.read().decode()
        return error.code, json.loads(content) if content.startswith("{") else content


CALLS: dict[str, Callable[..., None]] = {
    each.__name__: each for each in (stopped, called, served, explored)
}
