"""`vitlab serve` with a real model, from its first line to its last."""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import call, environment
from serve.sockets import head, read, refuses, status, talk
from steady import PATIENCE, wait_until
from vitlab.serve.access import hosts_of
from vitlab.serve.service import example

TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/8"
TOKEN, ADMIN = "a-token-of-more-than-16", "another-token-of-more-than-16"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port: int = opened.getsockname()[1]
    return port


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a service with a model, tokens, and a folder that is watched."""
    monkeypatch.setattr("vitlab.serve.watched.PAUSE", 0.05)
    model = vitlab.create(TINY, 3, 32, generator=torch.Generator().manual_seed(0))
    vitlab.save(model, tmp_path / "base")
    for name, token in (("token", TOKEN), ("admin", ADMIN)):
        (tmp_path / name).write_text(token)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "watched").mkdir()
    options = {
        "port": free_port(), "metrics-port": free_port(), "token-file": tmp_path / "token",
        "admin-token-file": tmp_path / "admin", "watch": tmp_path / "watched", "decoders": 1,
        "device": "cpu",
    }  # fmt: skip
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [f"base={tmp_path / 'base'}", *given]


def delta(folder: Path) -> bytes:
    """A model that differs from the base in one tensor."""
    base, model = vitlab.load(folder / "base"), vitlab.load(folder / "base")
    with torch.no_grad():
        next(model.parameters()).add_(0.5)
    return vitlab.delta(model, base).save(folder / "task.safetensors").read_bytes()


def figures(port: int) -> str:
    """The metrics, for which nobody needs a token."""
    return httpx2.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text


def asked(port: int, metrics: int, folder: Path, body: bytes) -> None:
    """Ask a service about a photo, and change its models."""
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    photo = stream.getvalue()
    with httpx2.Client(
        base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=PATIENCE
    ) as client:
        assert client.post("/predict", content=photo).status_code == 401
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        found = client.post("/predict", files={"image": ("a.png", photo)}).json()["predictions"]
        (wanted,) = vitlab.classify(vitlab.load(folder / "base"), photo, device="cpu")
        assert found == [wanted.as_dict() | {"image": "a.png"}]
        assert client.put("/models/task", content=body).status_code == 403
        client.headers["Authorization"] = f"Bearer {ADMIN}"
        assert client.put("/models/task", content=body).json()["status"] == "added"
        changed = client.post("/predict?model=task", content=photo).json()["predictions"]
        assert changed[0]["top"] != found[0]["top"]
        shutil.copytree(folder / "base", folder / "watched" / "other")

        def names() -> list[str]:
            return [each["name"] for each in client.get("/models").json()["models"]]

        wait_until(lambda: names() == ["base", "task", "other"])
        assert client.delete("/models/task").json()["status"] == "removed"
        assert client.post("/predict?model=task", content=photo).status_code == 404
        text = figures(metrics)
    assert 'vitlab_images_answered_total{model="base"} 1.0' in text
    assert 'vitlab_request_seconds_count{method="POST",route="/predict",status="401"} 1.0' in text


def test_a_service_from_its_first_line_to_its_last(
    words: list[str], tmp_path: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, where the second signal ends nothing but says with which status it would."""
    exits, faults, body = list[int](), list[BaseException](), delta(tmp_path)
    monkeypatch.setattr(os, "_exit", exits.append)
    port, metrics = int(words[2]), int(words[4])

    def script() -> None:
        try:
            wait_until(lambda: exchanged(port, head("GET", "/ready")) == 200)
            asked(port, metrics, tmp_path, body)
        except BaseException as error:  # shown by the test itself
            faults.append(error)
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(head(Content_Length=2, Authorization=f"Bearer {TOKEN}") + b"n")
            wait_until(lambda: "vitlab_body_bytes 1.0" in figures(metrics))
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: refuses(port))
            os.kill(os.getpid(), signal.SIGINT)
            wait_until(lambda: exits)
            slow.sendall(b"o")
            read(slow)

    thread = threading.Thread(target=script, daemon=True)
    thread.start()
    code, out, err = call(capfd, "serve", *words)
    thread.join(PATIENCE)
    assert faults == []
    assert (code, out, exits) == (130, "", [130])
    *lines, last = err.splitlines()
    assert last.startswith("vitlab serve: interrupted; every request that was accepted has its ans")
    lines.remove("vitlab serve: ended at once")
    said = {each["event"]: each for each in map(json.loads, lines)}
    url = f"http://127.0.0.1:{port}"
    assert said["listening"]["url"] == url
    assert said["listening"]["example"] == example(url, str(tmp_path / "token"))
    assert example("http://x", classes=False).endswith("http://x/features")
    assert said["stopping"]["requests"] == 1
    assert {"ready", "model added", "model removed", "stopped"} <= set(said)


def exchanged(port: int, request: bytes) -> int:
    """The status of an answer; 0 where nobody listens yet."""
    try:
        return status(talk(port, [request]))
    except OSError:
        return 0


@pytest.mark.slow
def test_a_service_is_a_process_that_ends_by_a_signal(tmp_path: Path) -> None:
    """Everything that it writes to stderr is JSON, on a port that the system chose."""
    vitlab.save(vitlab.create(TINY, 3, 32), tmp_path / "base")
    with subprocess.Popen(
        [sys.executable, "-m", "vitlab", "serve", str(tmp_path / "base"), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    ) as process:  # fmt: skip
        assert process.stderr
        lines = (json.loads(text) for text in process.stderr)
        url = next(line["url"] for line in lines if line["event"] == "listening")
        assert next(line for line in lines if line["event"] == "ready")
        assert httpx2.get(f"{url}/ready", trust_env=False).status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert [line["event"] for line in lines][-1] == "stopped"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model to serve"),
        (["{0}", "--port", "-1"], "port must be at least 0 and at most 65535, not -1"),
        (["{0}", "{0}"], "two models are named base"),
        (["{0}", "--token-file", "{0}"], "cannot read the token"),
        (["{0}", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000"),
        (["{0}", "--port", "18123", "--metrics-port", "18123"], "cannot listen on 127.0.0.1"),
        (["{0}", "--max-pixels", "60"], "max_pixels must be above 0 and at most 50, not 60"),
        (["a=nowhere"], "no such file or folder: nowhere"),
    ],
)
def test_what_cannot_be_served(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitlab.save(vitlab.create(TINY, 3, 32), tmp_path / "base")
    given = [word.format(tmp_path / "base") for word in words]
    code, out, err = call(capsys, "serve", *given)
    assert (code, out) == (2, "")
    assert err.startswith(f"vitlab serve: {message}")


def test_hosts_by_which_a_service_is_called() -> None:
    assert hosts_of("127.0.0.1") == ("localhost", "127.0.0.1", "[::1]")
    assert hosts_of("::1") == ("localhost", "127.0.0.1", "[::1]")
    assert hosts_of("127.0.0.5")[-1] == "127.0.0.5"
    assert hosts_of("0.0.0.0") == ()
