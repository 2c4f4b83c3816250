"""`vitlab explore` from its first line to its last, with its own process for images."""

import json
import os
import signal
import socket
import threading
import urllib.error
import urllib.request
import webbrowser
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import call, photo, photo_folder
from explore.made import SMALL
from serve.made import encoded, tiny
from steady import PATIENCE, wait_until
from vitlab.explore import explore_routes as exploring
from vitlab.explore.explore_routes import has_window
from vitlab.explore.parse_inputs import parse_inputs


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model and two images, one of them damaged."""
    monkeypatch.chdir(tmp_path)
    vitlab.save(tiny(SMALL), tmp_path / "saved")
    photo(0).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes((tmp_path / "good.png").read_bytes()[:99])
    return tmp_path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])


class Visitor(threading.Thread):
    """Asks as the page does, then ends the explorer as a person would."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.url = f"http://127.0.0.1:{port}"
        self.state: Any = None
        self.ended = threading.Event()
        self.status: dict[str, int] = {}
        self.errors: dict[str, str] = {}

    def ask(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(self.url + path, body, timeout=PATIENCE) as reply:
            return json.loads(reply.read())

    def open(self, name: str, body: bytes) -> None:
        try:
            self.ask(f"/api/images?name={name}", body)
            self.status[name] = 201
        except urllib.error.HTTPError as error:
            self.status[name], self.errors[name] = error.code, json.load(error)["error"]

    def has_answer(self) -> bool:
        """Whether the explorer answers already, or has ended before."""
        if self.ended.is_set():
            return True
        try:
            self.state = self.ask("/api/state")
        except OSError:
            return False
        return True

    def run(self) -> None:
        try:
            wait_until(self.has_answer)
            self.open("moving.gif", encoded(3, "GIF"))
            self.open("cut.jpg", encoded(3, "JPEG", 60, 80)[:700])
            self.open("text.txt", b"no image")
            self.look = self.ask(f"/api/look/0/{self.state['images'][0]['id']}")
            self.map = self.ask("/api/map")
        finally:
            if not self.ended.is_set():  # nobody else handles it
                os.kill(os.getpid(), signal.SIGINT)


def test_from_the_first_line_to_the_last(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(exploring, "has_window", lambda *about: True)
    monkeypatch.setattr(webbrowser, "open", shown.append)
    visitor = Visitor(free_port())
    visitor.start()
    port = visitor.url.rpartition(":")[2]
    words = ["*.png", "saved", "--data", str(photo_folder(here / "data", {"a": 2, "b": 2}))]
    code, out, err = call(capsys, "explore", *words, "--port", port, "--device", "cpu")
    visitor.ended.set()
    assert (code, out) == (130, "")
    lines = err.splitlines()
    assert lines[0].startswith("skipped: bad.png: ")
    assert lines[1] == f"explore at {visitor.url} (Ctrl-C ends)"
    assert lines[2:] == ["vitlab explore: interrupted"]
    assert [each["name"] for each in visitor.state["models"]] == ["saved"]
    assert [each["name"] for each in visitor.state["images"]] == ["good.png"]
    assert visitor.status == {"moving.gif": 201, "cut.jpg": 422, "text.txt": 415}
    assert visitor.errors["cut.jpg"].startswith("cut.jpg: ")
    assert len(visitor.look["top"]) == 5
    assert {"progress", "points"} & visitor.map.keys()
    assert shown == [visitor.url]


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"DISPLAY": ":10", "SSH_CONNECTION": "far away"}, False),
        ("linux", {"BROWSER": "lynx", "SSH_CONNECTION": "far away"}, True),
        ("darwin", {}, True),
        ("darwin", {"SSH_CONNECTION": "far away"}, False),
    ],
)
def test_a_browser_is_opened_where_it_has_a_window(
    platform: str, environment: dict[str, str], expected: bool
) -> None:
    assert has_window(platform, environment) is expected


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A saved model, a run that has not finished, weights, and images under various names."""
    monkeypatch.chdir(tmp_path)
    vitlab.save(tiny(), tmp_path / "saved")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.toml").touch()
    (tmp_path / "weights.pth").write_bytes(b"PK")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "pytorch_model.bin").touch()
    (tmp_path / "holiday").mkdir()
    photo(0).save(tmp_path / "holiday" / "one.png")
    photo(0).save(tmp_path / "model=3.png")
    photo(0).save(tmp_path / "no-ending", "PNG")
    (tmp_path / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    return tmp_path


def test_words_in_any_order(several: Path) -> None:
    words = ["holiday", "saved", "*.png", "no-ending", "pets=run", "model=3.png", "weights.pth",
             "cut.jpg", "hub"]  # fmt: skip
    weights, images = parse_inputs(words)
    assert weights == (
        ("saved", "saved"), ("pets", "run"), ("weights", "weights.pth"),
        ("hub", "hub"),
    )  # fmt: skip
    assert images == ("holiday", "*.png", "no-ending", "model=3.png", "cut.jpg")
