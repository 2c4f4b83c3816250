"""`vitlab serve` as a process of its own, with a real model, from its first line to its last."""

import io
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import call, environment
from serve.sockets import head
from vitlab.serve.access import hosts_of
from vitlab.serve.service import example

TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/8"
TOKEN, ADMIN = "a-token-of-more-than-16", "another-token-of-more-than-16"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        port: int = opened.getsockname()[1]
    return port


class Running:
    """The process, and the lines that it has written."""

    def __init__(self, *words: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vitlab", "serve", *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(OMP_NUM_THREADS="1"),
        )  # fmt: skip

    def until(self, event: str) -> dict[str, Any]:
        """Read on to the line of an event; everything on stderr is JSON."""
        assert self.process.stderr
        for text in self.process.stderr:
            self.lines.append(json.loads(text))
            if self.lines[-1]["event"] == event:
                return self.lines[-1]
        raise AssertionError(self.lines)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Running, Path]]:
    model = vitlab.create(TINY, 3, 32, generator=torch.Generator().manual_seed(0))
    vitlab.save(model, tmp_path / "base")
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    (tmp_path / "watched").mkdir()
    words = ["--port", "0", "--token-file", str(token), "--watch", str(tmp_path / "watched")]
    words += ["--decoders", "1", "--device", "cpu", "--metrics-port", str(free_port())]
    admin = tmp_path / "admin"
    admin.write_text(ADMIN)
    admin.chmod(0o600)
    words += ["--admin-token-file", str(admin)]
    started = Running(f"base={tmp_path / 'base'}", *words)
    yield started, tmp_path
    started.process.kill()
    started.process.communicate()


def delta(folder: Path) -> bytes:
    """A model that differs from the base in one tensor."""
    base, model = vitlab.load(folder / "base"), vitlab.load(folder / "base")
    with torch.no_grad():
        next(model.parameters()).add_(0.5)
    return vitlab.delta(model, base).save(folder / "task.safetensors").read_bytes()


def test_a_service_from_its_first_line_to_its_last(running: tuple[Running, Path]) -> None:
    service, folder = running
    body = delta(folder)
    line = service.until("listening")
    assert line["example"] == example(line["url"], str(folder / "token"))
    assert example("http://x", classes=False).endswith("http://x/features")
    service.until("ready")
    stream = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "PNG")
    photo = stream.getvalue()
    with httpx2.Client(base_url=line["url"], trust_env=False, timeout=30) as client:
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
        while service.until("model added")["model"] != "other":
            pass
        names = [each["name"] for each in client.get("/models").json()["models"]]
        assert names == ["base", "task", "other"]
        assert client.delete("/models/task").json()["status"] == "removed"
        assert client.post("/predict?model=task", content=photo).status_code == 404
    words = service.process.args
    metrics = words[words.index("--metrics-port") + 1]
    with httpx2.Client(trust_env=False) as client:  # without a token
        found = client.get(f"http://127.0.0.1:{metrics}/metrics").text
    assert 'vitlab_images_answered_total{model="base"} 1.0' in found
    assert 'vitlab_request_seconds_count{method="POST",route="/predict",status="401"} 1.0' in found
    port = int(line["url"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.sendall(head(Content_Length=9, Authorization=f"Bearer {TOKEN}"))
        time.sleep(0.3)
        service.process.send_signal(signal.SIGTERM)
        assert service.until("stopping")["requests"] == 1
        with pytest.raises(subprocess.TimeoutExpired):
            service.process.wait(0.3)
        service.process.send_signal(signal.SIGINT)
        out, err = service.process.communicate(timeout=20)
    assert (service.process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "vitlab serve: ended at once"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a model to serve"),
        (["{0}", "--port", "-1"], "port must be at least 0 and at most 65535, not -1"),
        (["{0}", "{0}"], "two models are named base"),
        (["{0}", "--token-file", "{0}"], "cannot read the token"),
        (["{0}", "--host", "192.0.2.1"], "cannot listen on 192.0.2.1, port 8000"),
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
