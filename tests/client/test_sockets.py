"""The client over real sockets of this machine: what no function in the place of one can show."""

import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from client.conftest import Make
from vitlab.errors import LateError
from vitlab.evaluation.classified_image import ClassifiedImage

GOOD = b'{"predictions": [{"top": [{"class": "a", "probability": 0.5}]}]}'
over = Event()


class Handler(BaseHTTPRequestHandler):
    """Answers by the first byte of the image."""

    protocol_version = "HTTP/1.1"
    dropped = 0

    def do_POST(self) -> None:
        first = self.rfile.read(int(self.headers["Content-Length"]))[:1]
        if first == b"d" and not Handler.dropped:
            Handler.dropped = 1
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", str(10**9 if first == b"s" else len(GOOD)))
        self.end_headers()
        while first == b"s" and not over.wait(0.02):
            try:
                self.wfile.write(b" ")
            except OSError:
                return
        self.wfile.write(GOOD)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        over.set()
        server.shutdown()
        thread.join()


def test_an_answer_that_drips_is_late(make: Make, url: str) -> None:
    began = time.monotonic()
    with pytest.raises(LateError, match=r"did not answer within 0\.3 s: give a larger timeout"):
        make(None, url, timeout=0.3).predict(b"slow")
    assert time.monotonic() - began < 30


def test_a_dropped_connection_is_opened_again(make: Make, url: str) -> None:
    Handler.dropped = 0
    assert make(None, url).predict(b"drop me") == ClassifiedImage("image 0", (("a", 0.5),))
    assert Handler.dropped == 1


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(
    make: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert make(None, url).predict(b"a").classes == (("a", 0.5),)
