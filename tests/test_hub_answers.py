"""A mistyped folder that may be a name on the Hub, whatever the Hub and the network do."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import datasets
import pytest
from huggingface_hub import close_session, constants

import vitlab
from conftest import call
from vitlab.errors import DataError, HubError, SourceError, UnreachableError
from vitlab.hub import check_answers

NAME = "user/no-such-thing"
DOORS = {  # a command by what the name is to it, and the type from Python
    "data": ("train", NAME),
    "photos": ("predict", "model", NAME),
    "weights": ("load-check", NAME),
    "start": ("finetune", "digits", "--from", NAME),
}


def released(wait: threading.Event) -> None:
    """Do nothing until the test ends."""
    wait.wait(60)


class Server:
    """A hub that answers each request with a status, or not at all."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.asked, self.end = status, list[str](), threading.Event()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        """Return what answers."""
        own = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                own.asked.append(f"{self.command} {self.path}")
                if own.status == 0:
                    released(own.end)
                elif own.status < 0:
                    reset = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                else:
                    self.send_response(own.status)
                    self.send_header("Content-Length", "0")
                    if own.status in (401, 404):
                        self.send_header("X-Error-Code", "RepoNotFound")
                    self.end_headers()
                    return
                self.close_connection = True

            do_GET = do_HEAD  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        return Handler


@contextmanager
def hub(patch: pytest.MonkeyPatch, server: Server | None, url: str = "") -> Iterator[None]:
    """Let both libraries ask this hub, or a URL."""
    close_session()
    if server is not None:
        http = ThreadingHTTPServer(("127.0.0.1", 0), server.handler())
        http.daemon_threads, http.block_on_close = True, False
        threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}"
    patch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    patch.setattr(datasets.config, "HF_ENDPOINT", url)
    patch.setattr(time, "sleep", lambda seconds: None)  # between the tries of the libraries
    try:
        yield
    finally:
        close_session()
        if server is not None:
            server.end.set()
            http.shutdown()
            http.server_close()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache, a folder without `user`, and a model."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    shape = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    vitlab.save(vitlab.create(shape, 2, 8, labels=("a", "b")), tmp_path / "model")


def no_address(*_: object, **__: object) -> None:
    """What a resolver says without a network."""
    raise socket.gaierror(-3, "Temporary failure in name resolution")


CLOSED = "http://127.0.0.1:9"
SILENT = [
    ("refused", "Connection refused"),
    ("reset", "disconnected"),
    ("no address", "resolution"),
]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("what", "reason"), SILENT)
def test_a_hub_that_cannot_be_reached_is_asked_once(
    door: str, what: str, reason: str, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    server = Server(-1) if what == "reset" else None
    with hub(monkeypatch, server, CLOSED):
        if what == "no address":
            monkeypatch.setattr(socket, "getaddrinfo", no_address)
        status, out, err = call(capfd, *DOORS[door])
    assert (status, out) == (75, "")
    assert_names_both(err, reason)
    assert server is None or len(server.asked) == 1


def assert_names_both(err: str, reason: str) -> None:
    """One line: nothing of this name here, and the Hub does not answer."""
    (line,) = err.splitlines()
    assert f"no such file or folder: {NAME}; " in line
    assert "nor does the Hub answer" in line or "the Hub cannot be reached" in line
    assert reason in line


@pytest.mark.parametrize("door", ["data", "weights"])
def test_a_hub_that_never_answers_is_given_up(
    door: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    server = Server(0)
    with hub(monkeypatch, server):
        if door == "weights":  # the search for an address has no end either

            def forever(*_: object, **__: object) -> None:
                released(server.end)

            monkeypatch.setattr(socket, "getaddrinfo", forever)
        status, _, err = call(capfd, *DOORS[door])
    assert status == 75
    assert_names_both(err, "no answer within 2.5 s")
    assert len(server.asked) == (door == "data")


ANSWERS = [
    (401, 2, "not found here or on the Hub", "doesn't exist on the Hub or cannot be accessed"),
    (404, 2, "not found here or on the Hub", "doesn't exist on the Hub or cannot be accessed"),
    (503, 75, "the Hub answers 503", "the Hub answers 5"),
    (500, 75, "the Hub answers 500", "the Hub answers 5"),
]


@pytest.mark.parametrize("door", ["data", "weights"])
@pytest.mark.parametrize(("code", "status", "of_weights", "of_data"), ANSWERS)
def test_a_hub_that_answers_is_asked_as_before(
    door: str, code: int, status: int, of_weights: str, of_data: str,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with hub(monkeypatch, server := Server(code)):
        found, out, err = call(capfd, *DOORS[door])
    assert (found, out) == (status, "")
    line = err.splitlines()[-1]
    assert "no such f" in line
    assert NAME in line
    assert "Retrying" not in err
    assert (of_data if door == "data" else of_weights) in line
    assert len(server.asked) > 1


@pytest.mark.parametrize("door", DOORS)
def test_offline_nothing_is_asked(
    door: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with hub(monkeypatch, server := Server(200)):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        status, _, err = call(capfd, *DOORS[door])
    assert status == 2
    (line,) = err.splitlines()
    assert f"no such file or folder: {NAME}; " in line
    assert "HF_HUB_OFFLINE is set" in line
    assert server.asked == []


def test_from_python_each_has_its_type(monkeypatch: pytest.MonkeyPatch) -> None:
    model = vitlab.load("model")
    calls: list[tuple[type[Exception], Callable[[], object]]] = [
        (SourceError, lambda: vitlab.classify(model, NAME)),
        (SourceError, lambda: vitlab.evaluate(model, NAME)),
        (UnreachableError, lambda: vitlab.load(NAME)),
        (UnreachableError, lambda: vitlab.push(model, NAME, token="hf_secret")),
    ]
    with hub(monkeypatch, server := Server(-1)):
        for kind, ask in calls:
            with pytest.raises(kind) as caught:
                ask()
            assert "hf_secret" not in str(caught.value)
        assert len(server.asked) == len(calls)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        for number, (_, ask) in enumerate(calls):
            kind = DataError if number < 2 else HubError
            with pytest.raises(kind, match="HF_HUB_OFFLINE is set"):
                ask()


def test_an_answer_is_remembered_and_silence_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(monkeypatch, server := Server(-1)):
        for status in (-1, -1, 302, 302):
            server.status = status
            try:
                check_answers()
            except Exception as error:
                assert status == -1, error
    assert len(server.asked) == 3


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(monkeypatch, server := Server(407)):
        monkeypatch.setenv("http_proxy", constants.ENDPOINT)
        monkeypatch.setattr(constants, "ENDPOINT", "http://hub.test")
        check_answers()
    assert server.asked == ["HEAD http://hub.test/"]


def test_a_folder_beside_is_nearer_than_the_hub(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("photos/cats").mkdir(parents=True)
    with hub(monkeypatch, server := Server(200)):
        status, _, err = call(capfd, "train", "photos/cat")
    assert (status, server.asked) == (2, [])
    assert "did you mean photos/cats?" in err
